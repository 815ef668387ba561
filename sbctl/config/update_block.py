"""`fleet.update`: how an apply rolls over hosts."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.base.field_types import Block, Id, expected

__all__ = ["UpdateModel"]

_MOST = 1000


def _check_at_once(value: int | str) -> int | str:
    number = str(value).removesuffix("%")
    is_share = isinstance(value, str)
    if (
        (is_share and number == value)
        or not number.isdecimal()
        or number.startswith("0")
        or int(number) > (100 if is_share else _MOST)
    ):
        raise expected(f'a number of hosts from 1 to {_MOST}, or a share of them as "25%"')
    return value


HostsAtOnce = Annotated[
    int | str,
    AfterValidator(_check_at_once),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "minimum": 1, "maximum": _MOST},
                {"type": "string", "minLength": 2, "maxLength": 4, "pattern": "^(100|[1-9][0-9]?)%"},
            ]
        }
    ),
]


class UpdateModel(Block):
    """How many hosts change at once, and in which order."""

    noun: ClassVar[str] = "an update"

    max_unavailable: HostsAtOnce = Field(
        default=1, description="How many hosts may be out of service at once: a number, or a share of all hosts (25%)."
    )
    canary: Id | None = Field(default=None, description="Host that goes first and alone; its failure stops the run.")
    pause_secs: int = Field(default=0, ge=0, le=86_400, description="Seconds between two batches of hosts.")
    max_failures: int = Field(
        default=1, ge=1, le=_MOST, description="After so many failed hosts no further one is started."
    )

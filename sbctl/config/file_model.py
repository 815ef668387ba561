"""sb.yml as a whole: its top-level blocks."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.base.field_types import Block, Id, PlainText, expected
from sbctl.config.fleet import FleetModel
from sbctl.config.models import ProxyModel
from sbctl.config.origins import OriginModel, OriginName

__all__ = ["FileShape", "SbFile", "SecretReference"]

_SECRET_SOURCES = ("env:", "file:", "exec:", "node-file:")


def _check_reference(text: str) -> str:
    source = next((each for each in _SECRET_SOURCES if text.startswith(each)), None)
    if source is None or not text[len(source) :].strip() or len(text) > 4096 or not text.isprintable():
        raise expected("a reference, never the secret itself: env:NAME, file:PATH, exec:COMMAND or node-file:PATH")
    return text


SecretReference = Annotated[
    str,
    AfterValidator(_check_reference),
    WithJsonSchema({"type": "string", "maxLength": 4096, "pattern": "^(env|file|exec|node-file):[^ ]"}),
]


class SbFile(Block):
    """Every field of sb.yml that sbctl reads; the published schema and `explain` follow it."""

    noun: ClassVar[str] = "sb.yml"

    required_sbctl: PlainText | None = Field(
        default=None, description='Which versions of sbctl may use this file, as ">=0.1".'
    )
    include: Any = Field(default=None, description="Other files to read; not in this version.")
    fleet: FleetModel = Field(default=FleetModel(), description="Hosts, trust and callers. Unset: this machine.")
    secrets: dict[Id, SecretReference] = Field(
        default_factory=dict, max_length=256, description="Where secrets are, by name; used as secret:NAME."
    )
    proxy: ProxyModel = Field(default=ProxyModel(), description="Listeners, admin and model host.")
    origins: dict[OriginName, OriginModel] = Field(
        default_factory=dict, max_length=1024, description="Hostnames and what they expose."
    )


class FileShape(SbFile):
    """The top level alone: its blocks are read one by one, since hosts change them."""

    fleet: Any = None
    proxy: Any = None
    origins: Any = None

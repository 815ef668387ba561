"""The number of this start of the runtime, which peers use to tell a running process from what an ended one left behind.

`<state>/boot-epoch.json` holds the last number. The next one is higher than that and not below the seconds of the clock, so a node whose file
was lost, or brought back from a copy, still comes after what its peers saw. It is on disk before anything is signed with it: two processes
never have one number, whatever is killed in between.
"""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs, strict_json
from sbctl.base.errors import InputError
from sbctl.base.limits import JSON_INT_MAX, KIB
from sbctl.runtime.log import get_log

__all__ = ["next_boot_epoch", "take_boot_epoch"]

_NAME: Final = "boot-epoch.json"
_MAX_BYTES: Final = 4 * KIB
_BELIEVED_MAX: Final = 10**12
"""No clock and no number of starts comes near it: a higher one is damage, and would leave no room above."""


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: int = Field(default=1, ge=1, le=1)
    boot_epoch: int = Field(ge=1, le=JSON_INT_MAX)


def next_boot_epoch(last: int, now: datetime) -> int:
    """Above the last one (0: none is known), and not below the clock."""
    return max(last + 1, int(now.timestamp()), 1)


def take_boot_epoch(state: Path, now: datetime) -> int:
    """The number of this process, durable. Call it once, under the serve lock. Raises what `fs.write_atomic` raises."""
    taken = next_boot_epoch(_last(state / _NAME), now)
    fs.write_atomic(state / _NAME, _Kept(boot_epoch=taken).model_dump_json().encode())
    return taken


def _last(path: Path) -> int:
    """0 where there is none, or none that can be read: the clock has to do then."""
    try:
        document = strict_json.loads(fs.read_bounded(path, max_bytes=_MAX_BYTES), max_bytes=_MAX_BYTES)
        last = _Kept.model_validate_json(json.dumps(document)).boot_epoch
        if last <= _BELIEVED_MAX:
            return last
        get_log("cluster").warning("the last boot epoch is damaged; the clock gives the next", place=str(path))
    except InputError as error:
        if error.code != "file.missing":
            get_log("cluster").warning(
                "the last boot epoch cannot be read; the clock gives the next", reason=error.message
            )
    except ValidationError:
        get_log("cluster").warning("the last boot epoch is damaged; the clock gives the next", place=str(path))
    return 0

"""The last snapshots that a node believed, on its disk: a gateway that starts while the store is away asks the nodes that it knew.

They are verified again, as of the time when they were kept; none counts for placement, and each gives way to whatever is heard of its node.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.limits import MIB
from sbctl.runtime.log import get_log

__all__ = ["RosterMemory"]

_NAME: Final = "directory.json"
_MAX_BYTES: Final = 64 * MIB


class _Kept(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)

    schema_version: int = Field(default=1, ge=1, le=1)
    kept_at_unix_ms: int = Field(ge=0)
    snapshots: dict[str, str]


class RosterMemory:
    """`<state>/directory.json`. Its methods block for the disk and never raise: what cannot be kept or read is not remembered."""

    def __init__(self, state: Path) -> None:
        self._path = state / _NAME

    def keep(self, texts: Mapping[str, str], at: datetime) -> None:
        """As the store showed them, by node."""
        data = _Kept(kept_at_unix_ms=int(at.timestamp() * 1000), snapshots=dict(texts)).model_dump_json().encode()
        try:
            if len(data) <= _MAX_BYTES:
                fs.write_atomic(self._path, data)
        except SbctlError as error:
            get_log("cluster").warning("the directory was not kept", code=error.code, reason=error.message)

    def recall(self) -> tuple[Mapping[str, str], datetime] | None:
        """What was kept last, and when."""
        try:
            kept = _Kept.model_validate_json(fs.read_bounded(self._path, max_bytes=_MAX_BYTES))
        except InputError as error:
            if error.code != "file.missing":
                get_log("cluster").warning("the kept directory cannot be read", reason=error.message)
            return None
        except ValidationError:
            get_log("cluster").warning("the kept directory is damaged and not used", place=str(self._path))
            return None
        return kept.snapshots, datetime.fromtimestamp(kept.kept_at_unix_ms / 1000, UTC)

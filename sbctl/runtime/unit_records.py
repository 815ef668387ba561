"""Ownership records of engines that are systemd units: durable before the unit is asked for, gone when the unit is.

<state>/engines/units/<token>.json     one engine

A record says how the engine was started, so that the next daemon can tell whether it is the one it would start now.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError
from sbctl.base.fs import ensure_directory, read_bounded, remove_file, write_atomic
from sbctl.engines.model import EngineAddress, LaunchSpec
from sbctl.runtime.launcher.spec import UNIT_RE

__all__ = ["UnitRecord", "UnitRecords", "start_fingerprint"]

_RECORD_MAX_BYTES: Final = 64 * 1024


class UnitRecord(BaseModel):
    """One engine unit that this state directory asked for."""

    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)

    schema_version: int = 1
    token: str = Field(pattern="^[0-9a-f]{16}$")
    unit: str = Field(pattern=f"^{UNIT_RE.pattern}$")
    deployment: str
    replica: int
    generation: int
    started_as: str
    """`start_fingerprint` of its launch."""
    unix_path: str | None = None
    port: int | None = None
    memory_max_bytes: int | None = None
    devices: tuple[str, ...] = ()

    @property
    def address(self) -> EngineAddress:
        return EngineAddress(None if self.unix_path is None else Path(self.unix_path), self.port)


def start_fingerprint(spec: LaunchSpec) -> str:
    """Equal for two launches exactly when an engine that was started by the one does the work of the other: all but the address
    and the ceiling of its memory, which follows what was seen of its kind.
    """
    own = str(spec.address.unix_path) if spec.address.unix_path is not None else None
    words = [
        "" if word == own or (position and spec.argv[position - 1] == "--port") else word
        for position, word in enumerate(spec.argv)
    ]
    kind = "unix" if own is not None else "port"
    return fingerprint(
        {"argv": words, "env": dict(spec.env), "address": kind, "slots": spec.slots, "context": spec.context_length}
    )


class UnitRecords:
    """The directory of records."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, record: UnitRecord) -> None:
        """Durable when it returns. Raises SbctlError `disk.*`."""
        ensure_directory(self._directory)
        write_atomic(self._directory / f"{record.token}.json", record.model_dump_json().encode())

    def remove(self, token: str) -> None:
        if self._directory.is_dir():
            remove_file(self._directory / f"{token}.json")

    def read(self) -> Iterator[UnitRecord]:
        """Every record. A file that is none is removed: its unit, if there is one, has no record and is stopped for that."""
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.glob("*.json")):
            try:
                record = UnitRecord.model_validate_json(read_bounded(path, max_bytes=_RECORD_MAX_BYTES))
            except (ValidationError, InputError):
                remove_file(path)
                continue
            if path.stem == record.token:
                yield record

"""The journal of our units, by journalctl: bounded, from its end or behind a cursor of its own."""

from __future__ import annotations

import json
import selectors
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from sbctl.base.errors import HostError

__all__ = ["JournalEntry", "JournalPart", "read_journal"]

_DEADLINE_S: Final = 30.0
_CHUNK_BYTES: Final = 1 << 16
_LINE_MAX_BYTES: Final = 1 << 20
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FIELDS: Final = "MESSAGE,_SYSTEMD_UNIT,_SYSTEMD_USER_UNIT,UNIT,USER_UNIT"


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """`at_us`: microseconds since the epoch. `unit` is what printed, or what systemd tells of."""

    at_us: int
    unit: str
    text: str


@dataclass(frozen=True, slots=True)
class JournalPart:
    """Oldest first. `cursor` is that of the last entry, empty when there is none. `more`: it was cut at the limit."""

    entries: tuple[JournalEntry, ...]
    cursor: str
    more: bool = False


def read_journal(
    kind: Literal["system", "user"],
    units: Sequence[str],
    *,
    after: str = "",
    since_s: int | None = None,
    lines: int | None = None,
    max_bytes: int,
    environ: Mapping[str, str],
) -> JournalPart:
    """Entries of `units` (patterns allowed): the newest `lines`, or all behind the cursor `after`, or from `since_s` (epoch) on.

    Raises HostError `journal.unreadable`.
    """
    argv = ["journalctl", "--quiet", "--no-pager", "--output=json", f"--output-fields={_FIELDS}"]
    argv += ["--user"] if kind == "user" else []
    argv += [f"--unit={unit}" for unit in units]
    argv += [f"--after-cursor={after}"] if after else []
    argv += [f"--since=@{since_s}"] if since_s is not None and not after else []
    argv += [f"--lines={lines}"] if lines is not None else []
    entries: list[JournalEntry] = []
    cursor, size = "", 0
    for line in _printed(argv, environ):
        document = _document(line)
        entry = None if document is None else _entry(document)
        if document is None or entry is None:
            continue
        size += len(entry.text)
        if entries and size > max_bytes:
            return JournalPart(tuple(entries), cursor, more=True)
        entries.append(entry)
        cursor = str(document.get("__CURSOR", cursor))[:512]
    return JournalPart(tuple(entries), cursor)


def _printed(argv: Sequence[str], environ: Mapping[str, str]) -> Iterator[bytes]:
    """Its lines as they come; left early, it is ended."""
    env = {"PATH": _SYSTEM_PATH, "LANG": "C.UTF-8", **environ}
    try:
        process = subprocess.Popen(
            list(argv), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env, cwd="/"
        )
    except OSError as error:
        raise _unreadable(f"journalctl cannot be started: {error.strerror}") from error
    assert process.stdout is not None
    begun = b""
    try:
        for chunk in _chunks(process):
            *whole, begun = (begun + chunk).split(b"\n")
            yield from whole
            if len(begun) > _LINE_MAX_BYTES:
                raise _unreadable("an entry of it is larger than is read")
        if process.wait(_DEADLINE_S):
            raise _unreadable(f"journalctl ended with status {process.returncode}")
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        process.stdout.close()


def _chunks(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    assert process.stdout is not None
    end_s = time.monotonic() + _DEADLINE_S
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while selector.select(max(0.0, end_s - time.monotonic())):
            chunk = process.stdout.read1(_CHUNK_BYTES)  # type: ignore[attr-defined]
            if not chunk:
                return
            yield chunk
    raise _unreadable(f"journalctl gave nothing for {_DEADLINE_S:.0f} s")


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None


def _entry(document: Mapping[str, Any]) -> JournalEntry | None:
    message = document.get("MESSAGE")
    if isinstance(message, list):
        # What is not UTF-8 comes as numbers.
        message = bytes(one for one in message if isinstance(one, int) and 0 <= one < 256).decode("utf-8", "replace")
    at = str(document.get("__REALTIME_TIMESTAMP", ""))
    if not isinstance(message, str) or not at.isdigit():
        return None
    unit = next(
        (document[name] for name in ("UNIT", "USER_UNIT", "_SYSTEMD_UNIT", "_SYSTEMD_USER_UNIT") if name in document),
        "",
    )
    return JournalEntry(int(at), str(unit), message)


def _unreadable(why: str) -> HostError:
    return HostError(
        "journal.unreadable",
        f"the system's journal cannot be read: {why}",
        place="journalctl",
        next_step="look at: journalctl --unit sbctl-runtime (as root, or as a member of systemd-journal)",
        retryable=True,
    )

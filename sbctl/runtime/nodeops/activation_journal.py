"""What an activation replaces, kept until the new runtime has proved itself.

    <etc>/activation/kept/<n>       copies of the files that the activation will replace, each durable before the journal is
    <etc>/activation/journal.json   where each belongs, what is wanted and what ran before; while it stands, an activation is not ended
    <etc>/activation/switched       everything wanted stands in its place: from here on the new runtime may prove itself

The directory is root's (the user's own), 0700: nobody else says what is put back. Putting back is idempotent: cut anywhere, it is done again.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs, strict_json
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import HostError, InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES, MIB
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.running import Wanted

__all__ = ["Activation", "begin", "end", "mark_switched", "put_back", "read_journal"]

_SCHEMA_VERSION: Final = 1
_FILE_MAX_BYTES: Final = 4 * BUNDLE_MAX_BYTES


@dataclass(frozen=True, slots=True)
class Activation:
    """One that was begun and not ended."""

    wanted: Wanted
    previous: Wanted
    previous_pid: int
    rebind: bool
    """Whether the two listen on different ports."""
    kept: tuple[Mapping[str, Any], ...]
    switched: bool = False


def begin(
    paths: NodePaths, replaced: Sequence[Path], *, wanted: Wanted, previous: Wanted, previous_pid: int, rebind: bool
) -> Activation:
    """Keep the files and links at `replaced`, or that nothing is there; durable on return. Raises SbctlError `disk.*`."""
    end(paths)
    kept_directory = _kept_directory(paths)
    fs.ensure_directory(paths.activation, mode=0o700)
    fs.ensure_directory(kept_directory, mode=0o700)
    kept = tuple(_keep(path, kept_directory / str(number)) for number, path in enumerate(replaced))
    journal = {
        "schema_version": _SCHEMA_VERSION,
        "wanted": wanted.document(),
        "previous": previous.document(),
        "previous_pid": previous_pid,
        "rebind": rebind,
        "kept": list(kept),
    }
    fs.write_atomic(paths.activation_journal, canonical_json(journal), mode=0o600)
    return Activation(wanted, previous, previous_pid, rebind, kept)


def _keep(path: Path, copy: Path) -> dict[str, Any]:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return {"path": str(path), "kind": "absent"}
    except OSError as error:
        raise fs.disk_error(error, path) from error
    if stat.S_ISLNK(status.st_mode):
        return {"path": str(path), "kind": "link", "value": os.readlink(path)}
    data = fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES)
    fs.write_atomic(copy, data, mode=0o600)
    mode = stat.S_IMODE(status.st_mode)
    return {"path": str(path), "kind": "file", "copy": copy.name, "sha256": sha256_bytes(data), "mode": mode}


def mark_switched(paths: NodePaths) -> None:
    """Before the new runtime is started: all its files are there."""
    fs.write_atomic(_switched(paths), b"", mode=0o600)


def read_journal(paths: NodePaths) -> Activation | None:
    """The activation that was not ended; None when there is none. Raises HostError `runtime.activation_damaged`."""
    try:
        data = fs.read_bounded(paths.activation_journal, max_bytes=MIB)
    except InputError as error:
        if error.code == "file.missing":
            return None
        raise _damaged(paths, error.message) from error
    try:
        document: Any = strict_json.loads(data, max_bytes=MIB)
        if document["schema_version"] != _SCHEMA_VERSION:
            raise _damaged(paths, "it was written by another version of sbctl")
        return Activation(
            Wanted.parse(document["wanted"]),
            Wanted.parse(document["previous"]),
            int(document["previous_pid"]),
            bool(document["rebind"]),
            tuple({**entry, "path": str(entry["path"])} for entry in document["kept"]),
            _switched(paths).exists(),
        )
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise _damaged(paths, "it is not a journal") from error


def put_back(paths: NodePaths, activation: Activation) -> None:
    """Everything as it was before. Raises HostError `runtime.activation_damaged`, SbctlError `disk.*`; done again it goes on.

    From the first file on the new one has no chance any more, also for whoever ends this in our place.
    """
    fs.remove_file(_switched(paths))
    for entry in activation.kept:
        path = Path(entry["path"])
        match entry.get("kind"):
            case "absent":
                fs.remove_file(path)
            case "link":
                if not path.is_symlink() or os.readlink(path) != entry["value"]:
                    fs.replace_symlink(path, str(entry["value"]))
            case _:
                _put_file_back(paths, path, entry)


def _put_file_back(paths: NodePaths, path: Path, entry: Mapping[str, Any]) -> None:
    try:
        data = fs.read_bounded(_kept_directory(paths) / Path(str(entry["copy"])).name, max_bytes=_FILE_MAX_BYTES)
    except (InputError, KeyError) as error:
        raise _damaged(paths, f"the copy of {path} is gone") from error
    if sha256_bytes(data) != entry.get("sha256"):
        raise _damaged(paths, f"the copy of {path} has other bytes than were kept")
    fs.ensure_directory(path.parent, mode=0o700)
    try:
        stands = fs.read_bounded(path, max_bytes=_FILE_MAX_BYTES)
    except InputError:
        stands = None
    if stands != data:
        fs.write_atomic(path, data, mode=int(entry["mode"]))


def end(paths: NodePaths) -> None:
    """The activation is ended: the journal goes first. Copies that cannot be removed now go with the next activation."""
    if paths.activation.is_dir():
        fs.remove_file(paths.activation_journal)
        with contextlib.suppress(SbctlError):
            fs.remove_tree(paths.activation)


def _switched(paths: NodePaths) -> Path:
    return paths.activation / "switched"


def _kept_directory(paths: NodePaths) -> Path:
    return paths.activation / "kept"


def _damaged(paths: NodePaths, what: str) -> SbctlError:
    return HostError(
        "runtime.activation_damaged",
        f"an activation was interrupted here, and its journal cannot be used: {what}",
        place=str(paths.activation_journal),
        next_step=f"look who changed it; remove {paths.activation}, then run sbctl apply again",
    )

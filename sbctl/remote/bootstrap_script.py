"""What runs on a host before, and after, it has a runtime: claim and release the host, accept uploaded blobs, install a runtime.

Sent as text to the host's Python (3.8 or newer) by `sbctl.remote.bootstrap` together with the modules it imports; for the local machine called in
process. Only the standard library and modules that have only it. Every command is idempotent, and a command that fails leaves nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Final

from sbctl.base import fs
from sbctl.base.errors import HostError, LockedError, RefusedError, SbctlError
from sbctl.base.flock import FileLock
from sbctl.node.facts import FactsError, installed_versions, read_marker
from sbctl.node.paths import NodePaths, node_paths
from sbctl.remote.bootstrap_blobs import blob_begin, blob_finish, blob_write
from sbctl.remote.bootstrap_install import install

__all__ = ["COMMANDS", "perform", "serve"]

_WITH_BODY: Final = "blob_write"
_LOOK: Final = "run the command again; if it stays so, see what sbctl doctor says of the host"
_OPERATOR_CACHE: Final = "operator"
"""The control side's own folder, which a user's node cache has beside its own."""


def mark(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Claim the host for `lineage` as `host`. Raises RefusedError `host.other_lineage`, `host.other_host`."""
    wanted = {"lineage": str(params["lineage"]), "host": str(params["host"])}
    fs.ensure_directory(paths.etc, mode=0o755)
    with _marker_lock(paths):
        found = _owner(paths, wanted["lineage"])
        if found is not None and found["host"] != wanted["host"]:
            raise RefusedError(
                "host.other_host",
                f'this machine is already the host "{found["host"]}" of this fleet',
                place=str(paths.marker),
                next_step=f'name it "{found["host"]}" in sb.yml, or destroy that host first',
            )
        if found is None:
            fs.write_atomic(paths.marker, (json.dumps(wanted, sort_keys=True) + "\n").encode(), mode=0o644)
    return {"marker": wanted}


def unmark(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Give the host up: directories of ours, at last the marker. Raises RefusedError `host.not_empty`, `host.other_lineage`."""
    if not paths.etc.is_dir() and not paths.state.is_dir() and not paths.opt.is_dir() and not paths.cache.is_dir():
        return {}
    if _owner(paths, str(params["lineage"])) is None and installed_versions(paths):
        raise RefusedError(
            "host.other_lineage",
            "a runtime stands here that no fleet claims",
            place=str(paths.opt),
            next_step="claim the host anew by sbctl apply, then give it up again",
        )
    if installed_versions(paths):
        raise RefusedError(
            "host.not_empty",
            "a runtime is still installed on this host",
            place=str(paths.opt),
            next_step="remove the runtime first (sbctl destroy does it in this order)",
        )
    kept = {_OPERATOR_CACHE, paths.models.name} if params.get("keep_weights") else {_OPERATOR_CACHE}
    with contextlib.suppress(FileNotFoundError):
        for entry in sorted(os.listdir(paths.cache)):
            if entry not in kept:
                _remove(paths.cache / entry)
    for directory in (paths.opt, paths.state, paths.etc):
        if directory.is_dir():
            fs.remove_tree(directory)
    for directory in (paths.cache, *_prefix_directories(paths)):
        with contextlib.suppress(OSError):
            directory.rmdir()
    return {}


COMMANDS: Final[Mapping[str, Callable[[NodePaths, Mapping[str, Any]], dict[str, Any]]]] = {
    "mark": mark,
    "unmark": unmark,
    "blob_begin": blob_begin,
    "blob_finish": blob_finish,
    "install": install,
}


def perform(
    command: str, params: Mapping[str, Any], env: Mapping[str, str], uid: int, body: BinaryIO | None = None
) -> dict[str, Any]:
    """Run one command here; `blob_write` reads `body`. Raises SbctlError."""
    paths = node_paths(uid, env)
    try:
        if command == _WITH_BODY and body is not None:
            return blob_write(paths, params, body)
        return COMMANDS[command](paths, params)
    except FactsError as error:
        raise HostError(error.code, error.message, place=error.place, next_step=error.next_step) from error
    except OSError as error:
        # A write that fails names no file.
        raise fs.disk_error(
            error, str(error.filename or (paths.opt if command == "install" else paths.state))
        ) from error
    except ValueError as error:
        raise HostError("host.bootstrap_failed", str(error), next_step=_LOOK) from error


def serve(marker: str) -> None:
    """Answer commands, a JSON line each, until the input ends; each answer is one line behind `marker`.

    A last line that was cut is no command: the other side knows that it did not arrive. After a `blob_write` that failed nobody knows
    where the next line begins, so it is the last.
    """
    for line in sys.stdin.buffer:
        if not line.endswith(b"\n"):
            return
        document = json.loads(line)
        command = document.pop("command")
        try:
            result = perform(command, document, os.environ, os.getuid(), sys.stdin.buffer)
            reply: dict[str, Any] = {"result": result}
        except SbctlError as error:
            reply = {"error": error.to_wire()}
        except Exception as error:
            failed = HostError("host.bootstrap_failed", f"{type(error).__name__}: {error}", next_step=_LOOK)
            reply = {"error": failed.to_wire()}
        sys.stdout.write("\n" + marker + json.dumps(reply) + "\n")
        sys.stdout.flush()
        if command == _WITH_BODY and "error" in reply:
            return


def _owner(paths: NodePaths, lineage: str) -> dict[str, str] | None:
    found = read_marker(paths)
    if found is not None and found["lineage"] != lineage:
        raise RefusedError(
            "host.other_lineage",
            f'this machine belongs to another fleet: it is its host "{found["host"]}", lineage {found["lineage"]}',
            place=str(paths.marker),
            next_step="destroy it from the fleet that owns it, or take the machine out of this sb.yml",
        )
    return found


@contextlib.contextmanager
def _marker_lock(paths: NodePaths) -> Iterator[None]:
    lock = FileLock(paths.etc / "marker.lock")
    if not lock.try_acquire():
        raise LockedError(
            "host.locked",
            "another operator is claiming this host now",
            place=str(paths.etc),
            next_step="run the command again: it says then whose the host is",
        )
    try:
        yield
    finally:
        lock.release()


def _prefix_directories(paths: NodePaths) -> list[Path]:
    """The prefix itself, where all four directories stand in one that has the names a prefix gives."""
    parents = {directory.parent for directory in (paths.etc, paths.state, paths.cache, paths.opt)}
    return list(parents) if len(parents) == 1 else []


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        fs.remove_tree(path)
    else:
        fs.remove_file(path)

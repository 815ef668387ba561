"""What runs on a host before, and after, it has a runtime: claim and release the host, accept uploaded blobs, install a runtime.

Sent as text to the host's Python (3.8 or newer) by `sbctl.remote.bootstrap` together with the modules it imports; for the local machine called in
process. Only the standard library and modules that have only it. Every command is idempotent, and a command that fails leaves nothing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Final

from sbctl.base import fs
from sbctl.base.errors import HostError, LockedError, RefusedError, SbctlError
from sbctl.base.flock import FileLock, exclusive
from sbctl.node.facts import FactsError, installed_versions, read_marker
from sbctl.node.paths import NodePaths, node_paths
from sbctl.node.standalone import require_python

__all__ = ["COMMANDS", "perform", "serve"]

_UV_MEMBER: Final = re.compile(r"uv-[A-Za-z0-9.+]+\.data/scripts/uv")
_UV_MAX_BYTES: Final = 256 * 1024 * 1024
_WHEEL_NAME: Final = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9.+_!]+)-[A-Za-z0-9._-]+\.whl")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
_RECORD: Final = "sbctl-install.json"
_WITH_BODY: Final = "blob_write"
_PIECE_BYTES: Final = 1 << 20
_INSTALL_DEADLINE_S: Final = 300.0
_NOTHING_CHANGED: Final = "what ran before runs on; correct what it says, then run the command again"
_SMOKE_DEADLINE_S: Final = 60.0
_UMASK: Final[Mapping[str, Any]] = (
    {"umask": 0o022} if sys.version_info >= (3, 9) else {"preexec_fn": lambda: os.umask(0o022)}
)
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
        raise RefusedError("host.other_lineage", "a runtime stands here that no fleet claims", place=str(paths.opt))
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


def blob_begin(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Make room for a blob: `complete` when it is there, else `part`, the path to upload to, which may hold a beginning already."""
    fs.ensure_directory(paths.state, mode=0o755)
    fs.ensure_directory(paths.staging, mode=0o700)
    fs.ensure_directory(paths.blobs, mode=0o700)
    blob, part = _blob(paths, str(params["sha256"]))
    size = int(params["size_bytes"])
    complete = blob.is_file() and blob.stat().st_size == size
    free = fs.free_bytes(paths.blobs)
    have = part.stat().st_size if part.is_file() else 0
    if not complete and free is not None and free < size - have:
        raise SbctlError(
            "disk.full",
            f"{size - have} bytes have to be sent, and {free} are free",
            place=str(paths.blobs),
            next_step="free space on this filesystem, then run the command again",
            retryable=True,
        )
    return {"complete": complete, "part": str(part), "offset": have if have <= size else 0}


def blob_write(paths: NodePaths, params: Mapping[str, Any], body: BinaryIO) -> dict[str, Any]:
    """Append `count` bytes of `body` to the beginning of a blob, from `offset` on. Raises HostError `put.cut` when there are fewer."""
    _blob_path, part = _blob(paths, str(params["sha256"]))
    offset, left = int(params["offset"]), int(params["count"])
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb", buffering=0) as file:
        file.truncate(offset)
        file.seek(offset)
        while left:
            piece = body.read1(min(left, _PIECE_BYTES))  # type: ignore[attr-defined]
            if not piece:
                raise HostError("put.cut", f"{left} bytes did not arrive", place=str(part), retryable=True)
            view = memoryview(piece)
            while view:
                view = view[file.write(view) :]
            left -= len(piece)
    return {"part": str(part)}


def blob_finish(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Verify an uploaded blob and give it its name, durably; one with other bytes is removed. Raises HostError `put.digest_mismatch`."""
    digest = str(params["sha256"])
    blob, part = _blob(paths, digest)
    if _sha256(part) != digest:
        fs.remove_file(part)
        raise HostError(
            "put.digest_mismatch",
            "the bytes that arrived are not the bytes that were sent",
            place=str(part),
            next_step="run the command again; if it stays so, test memory and disk of both machines",
            retryable=True,
        )
    fs.install_file(part, blob, mode=0o444)
    return {"path": str(blob)}


def install(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    """Create `<opt>/<version>` from uploaded wheels, offline, hashes required. One that stands whole and runs is left as it is.

    An installation whose operator went away is waited for, and what one that was killed has left is removed.
    """
    fs.ensure_directory(paths.state, mode=0o755)
    with exclusive(paths.install_lock, deadline_s=float(params.get("deadline_s", _INSTALL_DEADLINE_S))):
        return _install_alone(paths, params)


def _install_alone(paths: NodePaths, params: Mapping[str, Any]) -> dict[str, Any]:
    version, python = str(params["version"]), str(params["python"])
    if not _VERSION.fullmatch(version):
        raise HostError("runtime.install_failed", f'"{version[:64]}" is not a version')
    target = paths.version(version)
    standalone = params.get("standalone")
    if standalone is not None:
        python = str(require_python(paths, str(standalone["sha256"]), str(standalone["program"])))
    record = {"python": python, "wheels": sorted([wheel["filename"], wheel["sha256"]] for wheel in params["wheels"])}
    if _installed_record(target) == record and _smoke_failure(target, version) is None:
        _forget_blobs(paths, params)
        return {"path": str(target), "installed": False}
    fs.ensure_directory(paths.opt, mode=0o755)
    fs.sweep_temporaries(paths.opt, older_than_s=0.0, now_s=time.time())
    staged = paths.opt / f".sbctl-tmp-{secrets.token_hex(8)}"
    try:
        fs.ensure_directory(staged, mode=0o755)
        environment = _build_environment(paths, params, staged, python)
        failure = _smoke_failure(environment, version)
        if failure is not None:
            raise HostError(
                "runtime.install_failed",
                f"the installed runtime does not start: {failure}",
                place=str(target),
                next_step=_NOTHING_CHANGED,
            )
        fs.write_atomic(environment / _RECORD, (json.dumps(record, sort_keys=True) + "\n").encode(), mode=0o644)
        _sync(environment)
        fs.replace_directory(environment, target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    _forget_blobs(paths, params)
    return {"path": str(target), "installed": True}


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
        raise HostError("host.bootstrap_failed", str(error)) from error


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
            reply = {"error": HostError("host.bootstrap_failed", f"{type(error).__name__}: {error}").to_wire()}
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
        raise LockedError("host.locked", "another operator is claiming this host now", place=str(paths.etc))
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


def _blob(paths: NodePaths, digest: str) -> tuple[Path, Path]:
    if not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise HostError("put.invalid", "a blob is named by 64 hexadecimal characters")
    return paths.blobs / digest, paths.blobs / f"{digest}.part"


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with os.fdopen(fd, "rb", buffering=0) as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _forget_blobs(paths: NodePaths, params: Mapping[str, Any]) -> None:
    for wheel in (params["uv"], *params["wheels"]):
        fs.remove_file(_blob(paths, str(wheel["sha256"]))[0])


def _installed_record(target: Path) -> Any:
    try:
        return json.loads(fs.read_bounded(target / _RECORD, max_bytes=1 << 20))
    except (SbctlError, ValueError):
        return None


def _build_environment(paths: NodePaths, params: Mapping[str, Any], staged: Path, python: str) -> Path:
    wheels = staged / "wheels"
    wheels.mkdir(mode=0o755)
    lines = []
    for wheel in params["wheels"]:
        match = _WHEEL_NAME.fullmatch(str(wheel["filename"]))
        if match is None:
            raise HostError("runtime.install_failed", f'"{wheel["filename"]}" is not the name of a wheel')
        fs.link_or_copy(_present_blob(paths, wheel), wheels / match[0])
        lines.append(f"{match[1]}=={match[2]} --hash=sha256:{wheel['sha256']}\n")
    requirements = staged / "requirements.txt"
    requirements.write_text("".join(sorted(lines)), encoding="ascii")
    uv = _extract_uv(_present_blob(paths, params["uv"]), params["uv"]["sha256"], staged / "uv")
    environment = staged / "environment"
    common = ["--no-config", "--offline", "--quiet", "--cache-dir", str(staged / "cache"), "--no-python-downloads"]
    deadline = time.monotonic() + float(params.get("deadline_s", _INSTALL_DEADLINE_S))
    _tool([str(uv), "venv", *common, "--relocatable", "--python", python, str(environment)], staged, deadline)
    exactly = ["--no-index", "--no-deps", "--require-hashes", "--compile-bytecode"]
    sources = ["--find-links", str(wheels), "--requirements", str(requirements)]
    into = ["--python", str(environment / "bin/python")]
    _tool([str(uv), "pip", "install", *common, *exactly, *into, *sources], staged, deadline)
    (environment / ".lock").unlink(missing_ok=True)  # uv leaves it writable by everybody
    return environment


def _present_blob(paths: NodePaths, wheel: Mapping[str, Any]) -> Path:
    blob, _part = _blob(paths, str(wheel["sha256"]))
    if not blob.is_file():
        raise HostError(
            "put.missing", f"{wheel['filename']} was not sent to this host", place=str(blob), retryable=True
        )
    return blob


def _extract_uv(wheel: Path, digest: str, target: Path) -> Path:
    """The one program in the wheel: one regular member of the expected name, bounded, after the wheel's digest was checked."""
    if _sha256(wheel) != digest:
        raise HostError("put.digest_mismatch", "the wheel of uv has other bytes than its name says", place=str(wheel))
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if _UV_MEMBER.fullmatch(member.filename)]
            if (
                len(members) != 1
                or members[0].file_size > _UV_MAX_BYTES
                or (members[0].external_attr >> 28) not in (0, 8)
            ):
                raise HostError(
                    "runtime.install_failed", "the wheel of uv does not hold exactly one program", place=str(wheel)
                )
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
            with archive.open(members[0]) as source, os.fdopen(fd, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise HostError("runtime.install_failed", f"the wheel of uv is damaged: {error}", place=str(wheel)) from error
    return target


def _clean_environment(home: Path) -> dict[str, str]:
    return {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8"}


def _tool(argv: Sequence[str], staged: Path, deadline: float) -> None:
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_clean_environment(staged),
            cwd=staged,
            **_UMASK,
            timeout=max(1.0, deadline - time.monotonic()),
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise HostError(
            "runtime.install_timeout",
            "the installation did not end in time",
            place=argv[0],
            next_step="look at the load and the disk of the host, then run the command again",
            retryable=True,
        ) from error
    except PermissionError as error:
        raise HostError(
            "host.noexec",
            "a program of ours may not be executed there",
            place=argv[0],
            next_step="mount this filesystem without noexec, or allow it in the host's security policy",
        ) from error
    if done.returncode == 0:
        return
    said = done.stdout[-2000:].decode("utf-8", "replace").strip()
    if "No space left on device" in said or "os error 28" in said:
        raise SbctlError(
            "disk.full",
            "the disk is full",
            place=str(staged.parent),
            next_step="free space on this filesystem, then run the command again",
            retryable=True,
        )
    why = f"{Path(argv[0]).name} {argv[1]} ended with {done.returncode}: {_last_lines(said, 5)}"
    raise HostError("runtime.install_failed", why, next_step=_NOTHING_CHANGED)


def _smoke_failure(environment: Path, version: str) -> str | None:
    """Why the runtime in `environment` does not start, or None when it names its version."""
    argv = [str(environment / "bin/python"), "-I", str(environment / "bin/sbctl-runtime"), "check"]
    try:
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=_clean_environment(Path("/")),
            cwd="/",
            timeout=_SMOKE_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    said = done.stdout[-1000:].decode("utf-8", "replace").strip()
    if done.returncode != 0:
        return f"status {done.returncode}: {_last_lines(said, 2)}"
    return None if version in said.split() else f'it says "{said[:100]}" instead of {version}'


def _last_lines(said: str, count: int) -> str:
    """What a program said at its end, on one line."""
    return "; ".join(line.strip() for line in said.splitlines()[-count:] if line.strip())


def _sync(directory: Path) -> None:
    """Everything below `directory` reaches the disk; a whole filesystem at once is cheaper than thousands of files one by one."""
    try:
        subprocess.run(["/bin/sync", "-f", str(directory)], check=True, timeout=300, stdin=subprocess.DEVNULL, env={})
    except (OSError, subprocess.SubprocessError):
        os.sync()

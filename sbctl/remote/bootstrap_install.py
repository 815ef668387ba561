"""A runtime on a host: its environment is built beside its place from wheels that were sent, proved to start, and put there whole.

Offline, every wheel by its hash. Sent to hosts as part of `bootstrap_script`: only the standard library of Python 3.8, and modules that have
only it.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.flock import exclusive
from sbctl.node.paths import NodePaths
from sbctl.node.standalone import require_python
from sbctl.remote.bootstrap_blobs import forget_blob, present_blob, sha256_of

__all__ = ["install"]

_UV_MEMBER: Final = re.compile(r"uv-[A-Za-z0-9.+]+\.data/scripts/uv")
_UV_MAX_BYTES: Final = 256 * 1024 * 1024
_WHEEL_NAME: Final = re.compile(r"([A-Za-z0-9._]+)-([A-Za-z0-9.+_!]+)-[A-Za-z0-9._-]+\.whl")
_VERSION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,63}")
_RECORD: Final = "sbctl-install.json"
_INSTALL_DEADLINE_S: Final = 300.0
_NOTHING_CHANGED: Final = "what ran before runs on; correct what it says, then run the command again"
_ANOTHER_UV: Final = (
    "remove the wheel of uv from the wheelhouse in sbctl's cache on the operator's machine, then run the command again"
)
_SMOKE_DEADLINE_S: Final = 60.0
_UMASK: Final[Mapping[str, Any]] = (
    {"umask": 0o022} if sys.version_info >= (3, 9) else {"preexec_fn": lambda: os.umask(0o022)}
)


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
        raise HostError(
            "runtime.install_failed", f'"{version[:64]}" is not a version', next_step="correct fleet.runtime.version"
        )
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


def _forget_blobs(paths: NodePaths, params: Mapping[str, Any]) -> None:
    for wheel in (params["uv"], *params["wheels"]):
        forget_blob(paths, str(wheel["sha256"]))


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
            raise HostError(
                "runtime.install_failed",
                f'"{wheel["filename"]}" is not the name of a wheel',
                next_step="remove it from the wheelhouse in sbctl's cache on the operator's machine, then run the command again",
            )
        fs.link_or_copy(present_blob(paths, wheel), wheels / match[0])
        lines.append(f"{match[1]}=={match[2]} --hash=sha256:{wheel['sha256']}\n")
    requirements = staged / "requirements.txt"
    requirements.write_text("".join(sorted(lines)), encoding="ascii")
    uv = _extract_uv(present_blob(paths, params["uv"]), params["uv"]["sha256"], staged / "uv")
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


def _extract_uv(wheel: Path, digest: str, target: Path) -> Path:
    """The one program in the wheel: one regular member of the expected name, bounded, after the wheel's digest was checked."""
    if sha256_of(wheel) != digest:
        raise HostError(
            "put.digest_mismatch",
            "the wheel of uv has other bytes than its name says",
            place=str(wheel),
            next_step="remove this file, then run the command again: it is sent anew",
        )
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [member for member in archive.infolist() if _UV_MEMBER.fullmatch(member.filename)]
            if (
                len(members) != 1
                or members[0].file_size > _UV_MAX_BYTES
                or (members[0].external_attr >> 28) not in (0, 8)
            ):
                raise HostError(
                    "runtime.install_failed",
                    "the wheel of uv does not hold exactly one program",
                    place=str(wheel),
                    next_step=_ANOTHER_UV,
                )
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o700)
            with archive.open(members[0]) as source, os.fdopen(fd, "wb") as file:
                shutil.copyfileobj(source, file, 1 << 20)
    except (zipfile.BadZipFile, NotImplementedError, EOFError) as error:
        raise HostError(
            "runtime.install_failed",
            f"the wheel of uv is damaged: {error}",
            place=str(wheel),
            next_step=_ANOTHER_UV,
        ) from error
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

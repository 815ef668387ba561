"""Standalone Pythons on a host: `<opt>/python/<12 digits of the archive's digest>`, unpacked whole under that name or not at all.

Standard library only and Python 3.8, since the bootstrap carries this module. Whoever calls `require_python` holds the lock of installations.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import BinaryIO

from sbctl.base import fs
from sbctl.base.errors import HostError
from sbctl.base.flock import held
from sbctl.node.facts import standalone_pythons
from sbctl.node.paths import STANDALONE_RECORD, NodePaths
from sbctl.node.python_archive import unpack_python

__all__ = ["require_python", "standalone_program", "sweep_pythons"]

_START_DEADLINE_S = 60.0
_NEEDED = "import ssl, sqlite3, ctypes, zlib, venv, sys; print('%d.%d' % sys.version_info[:2])"


def standalone_program(paths: NodePaths, digest: str, program: str) -> Path:
    """Where the interpreter of an archive is, or will be."""
    return paths.pythons / digest[:12] / program


def require_python(paths: NodePaths, digest: str, program: str) -> Path:
    """The interpreter, unpacked from the blob `digest` unless it stands there and starts. The blob goes.

    Raises HostError `put.missing`, `put.digest_mismatch`, `python.does_not_start`; InputError of the archive; SbctlError `disk.*`.
    """
    found = standalone_program(paths, digest, program)
    blob = paths.blobs / digest
    if digest not in standalone_pythons(paths) or _failure(found) is not None:
        _unpack(paths, digest, program, blob)
    fs.remove_file(blob)
    return found


def _unpack(paths: NodePaths, digest: str, program: str, blob: Path) -> None:
    try:
        fd = os.open(str(blob), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise HostError(
            "put.missing",
            "the standalone Python was not sent to this host",
            place=str(blob),
            retryable=True,
            next_step="run the command again: it is sent then",
        ) from error
    with os.fdopen(fd, "rb") as opened:
        if _sha256(opened) != digest:
            raise HostError(
                "put.digest_mismatch",
                "the standalone Python has other bytes than its name says",
                place=str(blob),
                next_step="remove this file, then run the command again: it is sent anew",
            )
        opened.seek(0)
        fs.ensure_directory(paths.pythons, mode=0o755)
        fs.sweep_temporaries(paths.pythons, older_than_s=0.0, now_s=time.time())
        staged = fs.temporary_path(paths.pythons)
        try:
            staged.mkdir(mode=0o755)
            staged.chmod(0o755)
            unpack_python(opened, str(blob), staged)
            _prove(staged / program, paths)
            (staged / STANDALONE_RECORD).write_text(digest + "\n", encoding="ascii")
            os.sync()
            fs.replace_directory(staged, paths.pythons / digest[:12])
        except OSError as error:
            raise fs.disk_error(error, str(error.filename or paths.pythons)) from error
        finally:
            shutil.rmtree(str(staged), ignore_errors=True)


def _prove(program: Path, paths: NodePaths) -> None:
    failure = _failure(program)
    if failure is not None:
        raise HostError(
            "python.does_not_start",
            f"the standalone Python does not start on this host: {failure}",
            place=str(paths.pythons),
            next_step="take a build for this machine and its C library; is the filesystem mounted noexec?",
        )


def _failure(program: Path) -> str | None:
    """Why the interpreter cannot be used here; None when it starts, has what the runtime needs and is what its name says."""
    try:
        done = subprocess.run(
            [str(program), "-I", "-B", "-c", _NEEDED],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"},
            cwd="/",
            timeout=_START_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    said = done.stdout[-500:].decode("utf-8", "replace").strip()
    if done.returncode:
        return f"status {done.returncode}: {said}"
    return None if "bin/python" + said in str(program) else f"it says it is {said[:40]}"


def _sha256(opened: BinaryIO) -> str:
    digest = hashlib.sha256()
    while True:
        piece = opened.read(1 << 20)
        if not piece:
            return digest.hexdigest()
        digest.update(piece)


def sweep_pythons(paths: NodePaths) -> list[str]:
    """Remove those that neither an installed program nor a running process uses; the digests of what went. Where somebody installs at this
    moment nothing is removed. Raises SbctlError `disk.*`."""
    if not paths.pythons.is_dir():
        return []
    with held(paths.install_lock) as nobody_installs:
        return _sweep(paths) if nobody_installs else []


def _sweep(paths: NodePaths) -> list[str]:
    used = _used(paths)
    gone = []
    for digest in standalone_pythons(paths):
        directory = paths.pythons / digest[:12]
        if directory.name not in used:
            fs.remove_tree(directory)
            gone.append(digest)
    with contextlib.suppress(OSError):
        paths.pythons.rmdir()
    return gone


def _used(paths: NodePaths) -> set[str]:
    """By the links of environments below our programs, and by what runs on this machine."""
    base = str(paths.pythons) + os.sep
    programs = [
        *paths.opt.glob("*/bin/python"),
        *paths.engines.glob("*/*/bin/python"),
        *Path("/proc").glob("[0-9]*/exe"),
    ]
    used = set()
    for program in programs:
        with contextlib.suppress(OSError):
            real = os.path.realpath(str(program))
            if real.startswith(base):
                used.add(real[len(base) :].split(os.sep)[0])
    return used

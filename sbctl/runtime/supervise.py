"""A small parent that keeps `serve` running where no systemd does, and another one for the cluster's store. Nothing of them survives a reboot.

    sbctl-runtime supervise      forks into the background, exits 0 once the pid file is written
      └─ supervisor              its own session; <state>/supervisor.lock held; log in <state>/logs/runtime.log, at most 3 x 8 MiB
           └─ serve              restarted after 1 s, doubled, at most 60 s; SIGTERM is passed on, then the supervisor exits

    sbctl-runtime supervise --store     the same for `sbctl-runtime store`, which becomes the store's server

`serve` asks the kernel for SIGTERM when its supervisor dies, so a killed supervisor leaves nothing running. Where `<prefix>/owner.lock` is, the
supervisor ends when nobody holds it: a `sbctl run` that was killed takes its runtime with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Final

from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.base.errors import HostError, LockedError, SbctlError
from sbctl.base.flock import FileLock, held
from sbctl.base.fs import ensure_directory, read_bounded, remove_file, write_atomic
from sbctl.base.limits import MIB
from sbctl.node.paths import OWNER_LOCK, PREFIX_VARIABLE, NodePaths, node_paths
from sbctl.runtime.processes import ProcessIdentity, own_identity, process_identity, signal_process
from sbctl.runtime.restarts import backoff_s

__all__ = [
    "RUNTIME",
    "STORE",
    "Supervised",
    "die_with_supervisor",
    "passed_environment",
    "run_supervise",
    "start_supervised",
    "stop_supervised",
    "supervisor_of",
]


@dataclass(frozen=True, slots=True)
class Supervised:
    """What one supervisor keeps running. `name` is that of its files, `command` that of its child, `held` a lock that its child holds; one that
    `may_end` is not started again when it ends without a fault."""

    name: str
    command: str
    log: str
    option: tuple[str, ...] = ()
    held: str | None = None
    may_end: bool = False


RUNTIME: Final = Supervised("supervisor", "serve", "runtime.log", held="serve.lock", may_end=True)
STORE: Final = Supervised("store-supervisor", "store", "store.log", option=("--store",))

_SUPERVISED_VARIABLE: Final = "SBCTL_SUPERVISOR_PID"
_LOG_MAX_BYTES: Final = 8 * MIB
_LOG_FILES: Final = 2
_STABLE_AFTER_S: Final = 60.0
_START_DEADLINE_S: Final = 20.0
_KILL_WAIT_S: Final = 5.0
_POLL_S: Final = 0.05
_OWNER_POLL_S: Final = 0.5
_PASSED: Final = ("HOME", "PATH", "LANG", "TZ", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR",
                  "SSL_CERT_FILE", "SSL_CERT_DIR", "LD_LIBRARY_PATH", PREFIX_VARIABLE)  # fmt: skip


def passed_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """What our own long-lived processes get of an environment."""
    return {name: environ[name] for name in _PASSED if name in environ}


def _pid_path(paths: NodePaths, what: Supervised) -> Path:
    return paths.state / f"{what.name}.json"


def _lock_path(paths: NodePaths, what: Supervised) -> Path:
    return paths.state / f"{what.name}.lock"


def die_with_supervisor() -> None:
    """In `serve`: be told to stop when the supervisor that started this process dies. Nothing without one."""
    expected = os.environ.pop(_SUPERVISED_VARIABLE, "")
    if expected.isdigit():
        import ctypes

        ctypes.CDLL(None).prctl(1, int(signal.SIGTERM), 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != int(expected):
            raise HostError("runtime.supervisor_gone", "the supervisor died while the runtime was starting")


class _Supervisor:
    """The loop. Everything in it is synchronous: it waits for one child."""

    def __init__(self, paths: NodePaths, what: Supervised) -> None:
        import logging.handlers

        self._paths = paths
        self._what = what
        self._child: subprocess.Popen[str] | None = None
        self._stopping = False
        handler = logging.handlers.RotatingFileHandler(
            paths.logs / what.log, maxBytes=_LOG_MAX_BYTES, backupCount=_LOG_FILES, encoding="utf-8"
        )
        handler.setFormatter(logging.Formatter("%(message)s"))
        self._out = logging.getLogger("sbctl-supervisor")
        self._out.propagate = False
        self._out.setLevel(logging.INFO)
        self._out.addHandler(handler)

    def run(self) -> int:
        signal.signal(signal.SIGTERM, self._pass_on)
        signal.signal(signal.SIGINT, self._pass_on)
        threading.Thread(target=self._watch_owner, name="owner", daemon=True).start()
        failures = 0
        while not self._is_stopping():
            began_s = time.monotonic()
            returncode = self._run_once()
            if self._is_stopping() or (returncode == 0 and self._what.may_end):
                break
            failures = 1 if time.monotonic() - began_s >= _STABLE_AFTER_S else failures + 1
            delay_s = backoff_s(min(failures, 10), random.random())  # noqa: S311 - jitter, not a secret
            self._say(f"{self._what.command} ended with {returncode}; it starts again in {delay_s:.1f} s")
            self._pause(delay_s)
        return 0

    def _run_once(self) -> int:
        env = passed_environment(os.environ)
        self._child = subprocess.Popen(
            [sys.executable, "-I", "-m", "sbctl.runtime.main", self._what.command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**env, _SUPERVISED_VARIABLE: str(os.getpid())},
            cwd=self._paths.state,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        if self._is_stopping():
            self._child.terminate()
        assert self._child.stdout is not None
        with self._child.stdout as lines:
            for line in lines:
                self._out.info(line.rstrip("\n")[:8192])
        return self._child.wait()

    def _is_stopping(self) -> bool:
        return self._stopping

    def _watch_owner(self) -> None:
        """End when the process that this runtime belongs to is gone; without such a process, never."""
        prefix = os.environ.get(PREFIX_VARIABLE)
        path = Path(prefix) / OWNER_LOCK if prefix else None
        while path is not None and path.exists() and not self._is_stopping():
            with contextlib.suppress(SbctlError), held(path, shared=True) as ownerless:
                if ownerless:
                    self._say("the process that this runtime belongs to is gone")
                    self._stop()
                    return
            time.sleep(_OWNER_POLL_S)

    def _pass_on(self, _number: int, _frame: FrameType | None) -> None:
        self._stop()

    def _stop(self) -> None:
        self._stopping = True
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()

    def _pause(self, seconds: float) -> None:
        """A signal ends it early."""
        deadline_s = time.monotonic() + seconds
        while not self._is_stopping() and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)

    def _say(self, text: str) -> None:
        entry = {"at": rfc3339(SYSTEM_CLOCK.now()), "part": "supervisor", "event": text}
        self._out.info(json.dumps(entry))


def _detach() -> bool:
    """Double fork. True in the process that goes on; the caller's process gets False and its child is reaped."""
    first = os.fork()
    if first:
        _, status = os.waitpid(first, 0)
        if status:
            raise HostError(
                "runtime.supervisor_failed",
                "the supervisor did not start",
                next_step="its log says why: sbctl logs; then run the command again",
            )
        return False
    os.setsid()
    if os.fork():
        os._exit(0)
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(devnull, fd)
    os.chdir("/")
    return True


def run_supervise(argv: list[str]) -> int:
    """Go into the background and keep `serve` running, or the store; `--foreground` stays. Raises LockedError when one supervises already."""
    os.umask(0o077)
    what = STORE if "--store" in argv else RUNTIME
    paths = node_paths(os.getuid(), os.environ)
    ensure_directory(paths.state)
    ensure_directory(paths.logs)
    lock = FileLock(_lock_path(paths, what))
    if not lock.try_acquire():
        raise LockedError(
            "runtime.already_supervised",
            "a supervisor runs already",
            place=str(paths.state),
            next_step="let that one serve, or end it first",
        )
    if "--foreground" not in argv:
        lock.release()
        if not _detach():
            return _await_start(paths, what)
        lock = FileLock(_lock_path(paths, what))
        if not lock.try_acquire():
            os._exit(1)
    me = own_identity()
    write_atomic(_pid_path(paths, what), json.dumps({"pid": me.pid, "start_ticks": me.start_ticks}).encode())
    try:
        status = _Supervisor(paths, what).run()
    finally:
        remove_file(_pid_path(paths, what))
        lock.release()
    if "--foreground" not in argv:
        os._exit(status)
    return status


def supervisor_of(paths: NodePaths, what: Supervised = RUNTIME) -> ProcessIdentity | None:
    """The live supervisor of a node, by pid and start time; None when there is none."""
    with contextlib.suppress(SbctlError, ValueError, KeyError, TypeError):
        written = json.loads(read_bounded(_pid_path(paths, what), max_bytes=4096))
        found = ProcessIdentity(int(written["pid"]), int(written["start_ticks"]))
        return found if process_identity(found.pid) == found else None
    return None


def _await_start(paths: NodePaths, what: Supervised) -> int:
    deadline_s = time.monotonic() + _START_DEADLINE_S
    while time.monotonic() < deadline_s:
        if supervisor_of(paths, what) is not None:
            return 0
        time.sleep(_POLL_S)
    raise HostError(
        "runtime.supervisor_failed",
        "the supervisor did not start",
        place=str(paths.logs),
        next_step="its log says why: sbctl logs; then run the command again",
    )


def start_supervised(
    paths: NodePaths, python: Path, environ: Mapping[str, str] = os.environ, what: Supervised = RUNTIME
) -> int:
    """Start a supervisor with the interpreter of an installed version; at once when one runs. Returns its pid.

    Raises HostError `runtime.supervisor_failed`.
    """
    running = supervisor_of(paths, what)
    if running is None:
        env = passed_environment(environ)
        argv = [str(python), "-I", "-m", "sbctl.runtime.main", "supervise", *what.option]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, env=env, cwd="/", timeout=60, check=False
        )
        running = supervisor_of(paths, what)
        if done.returncode or running is None:
            said = done.stderr.decode("utf-8", "replace").strip()[-300:]
            raise HostError(
                "runtime.supervisor_failed",
                f"the supervisor did not start: {said or 'it said nothing'}",
                next_step="its log says why: sbctl logs; then run the command again",
            )
    return running.pid


def stop_supervised(paths: NodePaths, *, deadline_s: float = 45.0, what: Supervised = RUNTIME) -> bool:
    """Stop a supervisor and its child; False when none ran. After the deadline it is killed, and the child with it.

    Returns only when the state directory is free. Raises HostError `runtime.not_stopped`.
    """
    running = supervisor_of(paths, what)
    if running is None:
        return False
    signal_process(running, signal.SIGTERM)
    end_s = time.monotonic() + deadline_s
    while not _is_free(paths, what):
        if time.monotonic() > end_s + _KILL_WAIT_S:
            raise HostError(
                "runtime.not_stopped",
                f"{what.command} does not end",
                place=f"pid {running.pid}",
                next_step="look what holds this process (a disk that does not answer?), end it, then run the command again",
            )
        if time.monotonic() > end_s:
            signal_process(running, signal.SIGKILL)
        time.sleep(_POLL_S)
    remove_file(_pid_path(paths, what))
    return True


def _is_free(paths: NodePaths, what: Supervised) -> bool:
    """Whether neither a supervisor nor its child holds its lock."""
    held = () if what.held is None else (paths.state / what.held,)
    for path in (_lock_path(paths, what), *held):
        lock = FileLock(path)
        if not lock.try_acquire():
            return False
        lock.release()
    return True

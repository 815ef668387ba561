"""The last program before an engine: waits until its ownership record is durable, then becomes the engine.

Run by path with `python -I -S`; standard library only. Arguments: the gate's file descriptor, the daemon's pid, the engine's argv.
The engine dies with the daemon (PR_SET_PDEATHSIG), gains no privileges by exec, dumps no core, and goes first when memory runs out.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_OOM_SCORE = "300"
_NOT_STARTED = 125
_NOT_EXECUTABLE = 127


def main(argv: list[str]) -> int:
    """Returns only when the engine was not started."""
    gate, daemon_pid, engine = int(argv[1]), int(argv[2]), argv[3:]
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    # The daemon may have died before the signal was asked for; the gate then reads as closed, too.
    if os.getppid() != daemon_pid or os.read(gate, 1) != b"1":
        return _NOT_STARTED
    os.close(gate)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(_OOM_SCORE)  # when the machine's memory runs out, an engine goes before the daemon
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execve(engine[0], engine, os.environ)  # noqa: S606 - argv, no shell
    except OSError as error:
        sys.stderr.write(f"{engine[0]} cannot be executed: {error.strerror}\n")
        return _NOT_EXECUTABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv))

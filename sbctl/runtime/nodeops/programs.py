"""Programs that node operations run: fixed names, an environment built from empty, a deadline, bounded output."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base.display import display_safe
from sbctl.base.errors import HostError
from sbctl.base.secret import redact

__all__ = ["SYSTEM_PATH", "Finished", "run_program"]

_OUTPUT_MAX_BYTES: Final = 256 * 1024
SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Finished:
    """`output` is both streams, safe to show; its last lines say why."""

    returncode: int
    output: str

    def tail(self, lines: int = 5) -> str:
        return "; ".join(line.strip() for line in self.output.splitlines()[-lines:] if line.strip())


def run_program(
    argv: Sequence[str], *, deadline_s: float, environ: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Finished:
    """Run to the end whatever the status. Raises HostError `host.program_missing`, `host.program_timeout`."""
    env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **(environ or {})}
    try:
        done = subprocess.run(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=env,
            cwd=cwd or "/",
            timeout=deadline_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise HostError(
            "host.program_missing",
            f"{argv[0]} is not on this host",
            place=argv[0],
            next_step="install the package that has it, then run the command again",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise HostError(
            "host.program_timeout",
            f"{Path(argv[0]).name} did not end in {deadline_s:.0f} s",
            place=argv[0],
            next_step="look what holds it up on this host (its disks, systemd), then run the command again",
            retryable=True,
        ) from error
    except OSError as error:
        raise HostError(
            "host.program_failed",
            f"{argv[0]} cannot be started: {error.strerror}",
            place=argv[0],
            next_step="look at its file and its rights on this host",
        ) from error
    text = done.stdout[-_OUTPUT_MAX_BYTES:].decode("utf-8", "replace")
    return Finished(done.returncode, display_safe(redact(text), max_chars=8192, keep_newlines=True))

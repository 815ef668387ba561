"""How an engine ended, and whose doing it was: its own exit, a signal from outside, the kernel for lack of memory, or nobody saw it.

A SIGKILL alone says nothing. The engine's own control group counts the kernel's kills; where there is no group the whole machine's counter
does, which makes it likely but not certain.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.display import format_bytes
from sbctl.runtime.engine_cgroup import EngineCgroup, oom_kills_of_kernel

__all__ = ["EngineExit", "ExitCause", "OomEvidence"]

ExitCause = Literal["exit", "signal", "oom", "oom_likely", "lost"]

_SAID: Final = {
    "signal": " from outside",
    "oom": ": the kernel killed it, since memory ran out{ceiling}",
    "oom_likely": ": the kernel killed a process of this machine for memory at that time, probably this one",
}


@dataclass(frozen=True, slots=True)
class OomEvidence:
    """What was counted when the engine started, and where."""

    group: EngineCgroup | None
    in_group: int | None
    in_kernel: int | None

    @classmethod
    def before(cls, group: EngineCgroup | None) -> OomEvidence:
        return cls(group, None if group is None else group.oom_kills(), oom_kills_of_kernel())

    def cause(self) -> Literal["signal", "oom", "oom_likely"]:
        """Of a SIGKILL that was not ours."""
        in_group = None if self.group is None else self.group.oom_kills()
        if in_group is not None and self.in_group is not None:
            return "oom" if in_group > self.in_group else "signal"
        in_kernel = oom_kills_of_kernel()
        if in_kernel is not None and self.in_kernel is not None and in_kernel > self.in_kernel:
            return "oom_likely"
        return "signal"


@dataclass(frozen=True, slots=True)
class EngineExit:
    """`returncode` as subprocess has it (negative: the signal); None when nobody can tell any more."""

    returncode: int | None
    cause: ExitCause = "exit"
    ceiling_bytes: int | None = None
    """What it might have of the host's memory, where it had a ceiling of its own."""

    @classmethod
    def told(
        cls,
        returncode: int | None,
        evidence: OomEvidence | None = None,
        *,
        by_us: bool = False,
        ceiling_bytes: int | None = None,
    ) -> EngineExit:
        """With the cause, as far as there is evidence."""
        if returncode is None:
            return cls(None, "lost")
        if returncode >= 0 or by_us:
            return cls(returncode, "exit" if returncode >= 0 else "signal")
        if returncode == -signal.SIGKILL and evidence is not None:
            return cls(returncode, evidence.cause(), ceiling_bytes)
        return cls(returncode, "signal")

    def __str__(self) -> str:
        if self.returncode is None:
            return "an exit that nobody saw (stopped from outside)"
        if self.returncode >= 0:
            return f"exit code {self.returncode}"
        try:
            name = signal.Signals(-self.returncode).name
        except ValueError:
            name = str(-self.returncode)
        crashed = self.returncode in (-signal.SIGSEGV, -signal.SIGABRT, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE)
        ceiling = "" if self.ceiling_bytes is None else f" (it may have {format_bytes(self.ceiling_bytes)})"
        return f"signal {name}" + (": it crashed" if crashed else _SAID.get(self.cause, "").format(ceiling=ceiling))

"""How an apply over five hosts may have ended: for the views."""

from __future__ import annotations

from typing import Any

from sbctl.apply.outcome import ApplyResult, ChangeResult, HostResult
from sbctl.base.errors import EngineError, SbctlError, StalePlanError
from sbctl.base.ids import Address

__all__ = ["BROKEN", "BUNDLE", "PARTIAL", "STALE", "row"]

BROKEN = EngineError(
    "engine.broken", "it \x1b[31msaid\u202e [/x]", place="gpu-b", next_step="repair it, then run apply again"
)
STALE = StalePlanError(
    "plan.facts_changed",
    "engine.gpu-c/x is not as it was planned: state was 1, now it is 2",
    place="gpu-c",
    next_step="plan again; nothing was changed on this host",
)


def row(text: str, status: Any, cause: SbctlError | None = None, **more: Any) -> ChangeResult:
    address = Address.parse(text)
    more.setdefault("action", "create")
    return ChangeResult(address, host=address.scope, status=status, cause=cause, **more)


BUNDLE = Address("bundle", "gpu-b")
PARTIAL = ApplyResult(
    serial=42,
    mode="apply",
    status="partial",
    changes=(
        row("engine.gpu-a/x", "done", duration_s=4.0),
        row("artifact.gpu-b/m", "done"),
        row("engine.gpu-b/x", "failed", BROKEN, step="install engine x", steps_done=1, steps_total=2),
        row("bundle.gpu-b", "skipped", because="engine.gpu-b/x is not done"),
        row("deployment.gpu-b/chat", "skipped", because="engine.gpu-b/x is not done", member_of=BUNDLE),
        row("engine.gpu-c/x", "not_started", STALE, because=STALE.message),
    ),
    hosts=(
        HostResult("gpu-a", "done", {"done": 1}, degraded=("deployment chat: replica 0 failed: exit status 1",)),
        HostResult("gpu-b", "failed", {"done": 1, "failed": 1, "skipped": 2}),
        HostResult("gpu-c", "stale", {"not_started": 1}, STALE),
        HostResult("gpu-d", "unreachable", {}),
        HostResult("gpu-e", "unchanged", {}),
    ),
    duration_s=12.0,
    unreachable={"gpu-d": "ssh 10.10.0.23:22 gave no answer in 10 s"},
)

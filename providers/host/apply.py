"""Perform: mark, give up."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.node.messages import HostMark, HostUnmark, Method, RuntimeRemove
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform"]


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    if step.method == Method.HOST_MARK:
        mark = HostMark(lineage=step.params["lineage"], host=step.params["host"])
        return _call(step, context, Method.HOST_MARK, mark.model_dump(mode="json"))
    return _give_up(step, context)


def _give_up(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Programs that an interrupted apply installed, and that no `runtime.H` in the state would remove, go first."""
    lineage = step.params["lineage"]
    if context.node.snapshot(SNAPSHOT_DEADLINE_S).runtime.installed_versions:
        _call(step, context, Method.RUNTIME_REMOVE, RuntimeRemove(lineage=lineage).model_dump(mode="json"))
    unmark = HostUnmark(lineage=lineage, keep_weights=step.params["keep_weights"])
    return _call(step, context, Method.HOST_UNMARK, unmark.model_dump(mode="json"))


def _call(step: Step, context: PerformContext, method: Method, params: Mapping[str, Any]) -> Mapping[str, Any]:
    return context.node.call(method, params, secrets={}, deadline_s=step.deadline_s, progress=context.progress)

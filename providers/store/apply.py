"""Perform: the program to the host where it is pushed, then all that the store is told; or its removal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from providers.comparison import result_of
from providers.sending import put_files
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Desired
from sbctl.engines.store_pins import StorePin, store_pin
from sbctl.node.messages import Method
from sbctl.node.store_messages import StoreInstall, StoreMember, StoreNode, StoreRemove, StoreWheel
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform", "record"]

_SAME: Final = (
    "lineage", "cluster_id", "server_name", "node_id", "bind_address", "port", "monitor_port", "delivery"
)  # fmt: skip


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Raises EngineError `store.not_pinned`, `store.incompatible` where the architecture was not known to the plan."""
    if step.method == Method.STORE_INSTALL:
        return _install(step, context)
    remove = StoreRemove(lineage=step.params["lineage"])
    return _call(Method.STORE_REMOVE, remove.model_dump(mode="json"), step, context)


def _install(step: Step, context: PerformContext) -> Mapping[str, Any]:
    params = step.params
    pin = None if params["program"] is not None else _pin(params, context)
    if pin is not None and params["delivery"] == "push":
        wheel = context.services.engine_wheel(pin.project, pin.version, pin.filename, pin.sha256, context.progress)
        put_files(context, {pin.sha256: wheel}, deadline_s=step.deadline_s)
    install = StoreInstall(
        **{name: params[name] for name in _SAME},
        members=tuple(
            StoreMember(node_id=name, address=one["address"], port=one["port"])
            for name, one in sorted(params["members"].items())
        ),
        nodes=tuple(
            StoreNode(node_id=name, is_authority=role == "authority") for name, role in sorted(params["nodes"].items())
        ),
        program=params["program"] or "",
        wheel=None if pin is None else _wheel(pin),
        expects_quorum=params["completes_quorum"],
    )
    return _call(Method.STORE_INSTALL, install.model_dump(mode="json"), step, context)


def _pin(params: Mapping[str, Any], context: PerformContext) -> StorePin:
    planned = params["wheel"]
    if planned is not None:
        return StorePin(**planned)
    return store_pin(params["version"], context.node.snapshot(SNAPSHOT_DEADLINE_S).host.arch)


def _wheel(pin: StorePin) -> StoreWheel:
    return StoreWheel(**{name: value for name, value in asdict(pin).items() if name != "size_bytes"})


def _call(method: Method, params: Mapping[str, Any], step: Step, context: PerformContext) -> Mapping[str, Any]:
    return context.node.call(method, params, secrets={}, deadline_s=step.deadline_s, progress=context.progress)


def record(desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    """What the host must show from now on. What a lost answer leaves unknown is None and not compared."""
    answer = result_of(results, Method.STORE_INSTALL) or {}
    found = {name: answer.get(name) for name in ("content_sha256", "unit_sha256", "version")}
    return {**found, "node_id": desired.spec["node_id"]}

"""A fleet for planning tests: pure planners without any kind's details, and builders for the truths.

What a host "has" is told by its snapshot: one `EngineState` per resource whose `engine` is the address and whose `version` the fingerprint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from sbctl.base.connection import Connection
from sbctl.base.digests import fingerprint
from sbctl.base.ids import KINDS, Address
from sbctl.node.snapshot import EngineState, HostMarker, NodeSnapshot
from sbctl.plan.blast_radius import action_radius, routed_deployments
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, Change, Desired, DiffContext, Observed, Recorded, Step

NOW = datetime(2026, 11, 28, 9, 12, tzinfo=UTC)
LINEAGE = "0d6c7ef1-5d5a-4a37-8a6e-0f4b0f6f0a11"
LOCAL = Connection("local")


def address(text: str) -> Address:
    return Address.parse(text)


def desired(
    text: str,
    spec: Mapping[str, Any] | None = None,
    *,
    after: Iterable[str] = (),
    member_of: str | None = None,
    prevent_destroy: bool = False,
    keep: bool = False,
) -> Desired:
    where = address(text)
    content = dict(spec or {"value": 1})
    return Desired(
        where,
        content,
        fingerprint(content),
        where.scope,
        LOCAL,
        frozenset(map(address, after)),
        None if member_of is None else address(member_of),
        prevent_destroy,
        keep,
    )


def recorded(one: Desired, *, pending_delete: bool = False) -> Recorded:
    return Recorded(
        one.address,
        {},
        1,
        one.fingerprint,
        one.spec,
        one.host,
        one.connection,
        one.after,
        one.member_of,
        one.keep,
        one.prevent_destroy,
        pending_delete,
    )


def records(items: Iterable[Desired]) -> dict[Address, Recorded]:
    return {one.address: recorded(one) for one in items}


def snapshot(items: Iterable[Desired], *, lineage: str = LINEAGE, host: str = "a") -> NodeSnapshot:
    return NodeSnapshot(
        bootstrapped=True,
        marker=HostMarker(lineage=lineage, host=host),
        engines=tuple(
            EngineState(engine=str(one.address), launch="wheel", version=one.fingerprint, path="/x") for one in items
        ),
    )


def snapshots(items: Iterable[Desired], hosts: Iterable[str] = ()) -> dict[str, NodeSnapshot | None]:
    by_host: dict[str, list[Desired]] = {host: [] for host in hosts}
    for one in items:
        by_host.setdefault(one.host, []).append(one)
    return {host: snapshot(there, host=host) for host, there in by_host.items()}


def host_resources(host: str, *, chat: Mapping[str, Any] | None = None, port: int = 8080) -> list[Desired]:
    """One whole host: seven resources with the edges that the real kinds have."""
    chat_spec = dict(chat or {"model": "m", "max_concurrency": 4, "rollout": "rolling", "artifact": "d1"})
    origin_spec = {"models": {"chat": "chat"}}
    bundle_spec = {
        "deployments": {"chat": chat_spec},
        "origins": {"ai.internal": origin_spec},
        "api_keys": {"app": {"sha256": "3f", "models": ["chat"]}},
        "public": False,
    }
    bundle = f"bundle.{host}"
    return [
        desired(f"host.{host}", {"labels": {}}),
        desired(f"runtime.{host}", {"version": "0.1.0", "config": {"http_bind_port": port}}, after=[f"host.{host}"]),
        desired(f"engine.{host}/llama_cpp", {"version": "1"}, after=[f"runtime.{host}"]),
        desired(f"artifact.{host}/m:q4", {"artifact": "d1"}, after=[f"runtime.{host}"]),
        desired(bundle, bundle_spec, after=[f"runtime.{host}", f"engine.{host}/llama_cpp", f"artifact.{host}/m:q4"]),
        desired(
            f"deployment.{host}/chat",
            chat_spec,
            after=[f"engine.{host}/llama_cpp", f"artifact.{host}/m:q4"],
            member_of=bundle,
        ),
        desired(f"origin.{host}/ai.internal", origin_spec, after=[f"deployment.{host}/chat"], member_of=bundle),
    ]


class FakePlanner:
    """Compares fingerprints of desired, recorded and observed; nothing else."""

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        if snapshot is None:
            return Observed("unreachable")
        owner = "ours" if snapshot.marker is None or snapshot.marker.lineage == LINEAGE else "other_lineage"
        text = str(address)
        for engine in snapshot.engines:
            if engine.engine == text:
                return Observed("present", owner, {"version": engine.version}, {"pid": 7})
        return Observed("absent" if snapshot.bootstrapped else "not_bootstrapped", owner)

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        action, reason, drifted = self._decide(desired, recorded, observed, context)
        source = desired or recorded
        assert source is not None
        leaves = leaf_changes(recorded.spec, desired.spec) if action == "update" and desired and recorded else ()
        routed = routed_deployments(spec for other, spec in context.recorded_specs.items() if other.kind == "origin")
        return Change(
            source.address,
            action,
            reason,
            source.host,
            source.connection,
            leaves,
            action_radius(source.address.kind, action, leaves, routed=source.address.name in routed),
            steps=()
            if action == "no-op" or source.member_of
            else (Step(f"{source.address}#1:fake.{action}", f"fake.{action}", {}, f"{action} {source.address}"),),
            decisive=observed.decisive,
            drifted=drifted,
        )

    def _decide(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> tuple[Action, str, bool]:
        if desired is None:
            return "delete", "not in sb.yml any more", False
        if recorded is None:
            return "create", "new in sb.yml", False
        if context.replace:
            return "replace", "asked for by --replace", False
        moved = observed.decisive.get("version") != recorded.fingerprint
        if desired.fingerprint != recorded.fingerprint:
            return "update", "sb.yml asks for something else", moved
        if moved:
            return "update", "it changed on its host", True
        if any(member.action != "no-op" for member in context.member_changes):
            return "update", "members change", False
        return "no-op", "", False


FAKE_PLANNERS: dict[str, FakePlanner] = dict.fromkeys(KINDS, FakePlanner())


def inputs(
    wanted: Iterable[Desired] = (),
    known: Iterable[Desired] = (),
    *,
    observed: Iterable[Desired] | None = None,
    **more: Any,
) -> PlanInputs:
    """`known` is recorded; hosts have what is recorded unless `observed` says otherwise."""
    wanted, known = list(wanted), list(known)
    hosts = {one.host: one.connection for one in (*wanted, *known)}
    values: dict[str, Any] = {
        "mode": "apply",
        "desired": wanted,
        "recorded": records(known),
        "snapshots": snapshots(known if observed is None else observed, hosts),
        "hosts": hosts,
        "lineage": LINEAGE if known else None,
        "serial": 41 if known else 0,
        "config_digest": "c" * 64,
        "catalog_digest": "d" * 64,
        "now": NOW,
    }
    values.update(more)
    return PlanInputs(**values)

"""`sbctl cluster status` of a cluster that runs: what is wrong first, then deployments, nodes and who decides, in 80 columns or as JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.base.display import format_duration_s, plural
from sbctl.base.errors import ExitCode, SbctlError
from sbctl.node.cluster_status import ClusterStatus, RejectionRow, StatusDeployment, StatusNode
from sbctl.placement.explain import refusal_text, rollout_text
from sbctl.placement.model import Refusal, RefusalReason, Rollout
from sbctl.views.cluster_action_views import action_text
from sbctl.views.layout import joined, safe, sentence
from sbctl.views.places import place_words
from sbctl.views.tables import Column, render_fields, render_rows

__all__ = ["alerts", "live_body", "live_exit_code", "live_text"]

_HEALTH_STYLES: Final = {"healthy": "green", "degraded": "yellow", "unhealthy": "bold red"}
_BAD_PHASES: Final = frozenset({"timed_out", "no_room", "restoring", "restored"})
_REASONS_SHOWN: Final = 4
_NODES_NAMED: Final = 3
_ACTIONS_SHOWN: Final = 8
_ROLES_COLUMNS: Final = 72
"""A narrower terminal has no column for them."""
_OF_THE_STORE: Final = "snapshot_expired"
"""While the store is not heard no word of anybody arrives: that is the store's fault, and told as such."""
_NODES_SHOWN: Final = 200
"""Rows of a table that a person reads; who is not well is among them first, and JSON has all."""


def live_exit_code(status: ClusterStatus, silent: Mapping[str, SbctlError]) -> ExitCode:
    """7 when a host that was asked gave no answer, 8 when something is wrong, else 0."""
    if silent:
        return ExitCode.UNREACHABLE
    return ExitCode.DEGRADED if alerts(status) else ExitCode.DONE


def live_body(
    host: str, document: Mapping[str, Any], status: ClusterStatus, silent: Mapping[str, SbctlError]
) -> dict[str, Any]:
    return {
        "asked": host,
        "exit_code": int(live_exit_code(status, silent)),
        "alerts": list(alerts(status)),
        "silent": {name: {"code": error.code, "message": error.message} for name, error in silent.items()},
        "status": dict(document),
    }


def live_text(host: str, status: ClusterStatus, silent: Mapping[str, SbctlError], *, width: int) -> RenderableType:
    """Alerts stand on top; the last line counts."""
    parts: list[RenderableType] = []
    said = [*(f"{name} gives no answer: {error.message}" for name, error in silent.items()), *alerts(status)]
    for text in said:
        line = sentence(safe(text), indent=0, width=width, style="red", first="! ")
        line.rstrip()
        parts.append(line)
    if said:
        parts.append(Text(""))
    tables = (_deployment_table(status), Text(""), _node_table(status, width))
    parts += [_head(host, status, width), Text(""), *tables]
    return Group(*parts, Text(f"\n{_verdict(status, len(said))}"))


def alerts(status: ClusterStatus) -> tuple[str, ...]:
    """What somebody should know now, the worst first; empty: all is well."""
    return (
        *_store_alerts(status),
        *(text for node in status.nodes if not _is_for_want_of_the_store(status, node) for text in _node_alerts(node)),
        *(text for one in status.deployments for text in _deployment_alerts(one)),
    )


_STORE_WORDS: Final = {"no_quorum": "has no quorum", "no_writes": "takes no writes"}


def _store_alerts(status: ClusterStatus) -> Iterator[str]:
    store = status.store
    if store.state != "connected":
        why = f" ({store.problem})" if store.problem else ""
        word = _STORE_WORDS.get(store.state, "is not heard")
        yield (
            f"the store {word} since {store.since or 'an unknown time'}{why}: what runs goes on and requests are served, "
            "nothing is placed or published; sbctl status shows each store"
        )
    if status.brake:
        yield f"placement holds back: {status.brake}; who is gone for good: sbctl cluster confirm-lost NODE"
    if status.problem:
        yield f"{status.local_node_id}: {status.problem}"
    for what, why in sorted(status.local_problems.items()):
        yield f"{status.local_node_id}: {what}: {why}"


def _is_for_want_of_the_store(status: ClusterStatus, node: StatusNode) -> bool:
    return status.store.state != "connected" and node.unhealthy_reasons == (_OF_THE_STORE,)


def _node_alerts(node: StatusNode) -> Iterator[str]:
    if node.removed or node.health == "healthy":
        return
    reasons = ", ".join(node.unhealthy_reasons) or "no reason was given"
    why = f": {node.problem}" if node.problem else ""
    yield f"{node.node_id} is {node.health} ({reasons}), {_heard(node)}{why}"


def _deployment_alerts(one: StatusDeployment) -> Iterator[str]:
    if one.unplaced_replicas:
        count = f"{one.unplaced_replicas} of {one.desired_replicas} replicas"
        reasons = "; ".join(_rejections(one)) or "no worker is known that could take it"
        yield f"{one.deployment_id}: no place for {count}: {reasons}"
    if one.timed_out or one.phase in _BAD_PHASES:
        again = f"; once it is mended: sbctl cluster retry {one.deployment_id}"
        yield f"{one.deployment_id}: generation {one.generation} {_phase(one)}{again}"


def _rejections(one: StatusDeployment) -> Iterator[str]:
    """One sentence for each different reason, with the nodes that it holds for."""
    by_reason: dict[str, list[str]] = {}
    for node, rejection in sorted(one.rejections.items()):
        by_reason.setdefault(_refusal(rejection), []).append(node)
    for reason, nodes in sorted(by_reason.items(), key=lambda item: -len(item[1]))[:_REASONS_SHOWN]:
        more = len(nodes) - _NODES_NAMED
        yield f"{', '.join(nodes[:_NODES_NAMED])}{f' and {more} more' if more > 0 else ''}: {reason}"
    left_out = len(by_reason) - _REASONS_SHOWN
    if left_out > 0:
        yield f"and {plural(left_out, 'other reason')} (--format json)"


def _refusal(rejection: RejectionRow) -> str:
    try:
        return refusal_text(
            Refusal(cast("RefusalReason", rejection.reason), rejection.variant, tuple(rejection.facts.items()))
        )
    except (KeyError, ValueError):
        # Of a runtime that knows more reasons than this program.
        return rejection.reason


def _phase(one: StatusDeployment) -> str:
    try:
        return rollout_text(Rollout(cast("Any", one.phase)))
    except KeyError:
        return one.phase


def _heard(node: StatusNode) -> str:
    if node.snapshot_age_ms is None:
        return "never heard"
    return f"heard {format_duration_s(node.snapshot_age_ms / 1000)} ago"


def _head(host: str, status: ClusterStatus, width: int) -> RenderableType:
    told = status.deployment_authority
    revision = told.get("active_revision")
    holder = told.get("signer_node_id")
    epoch = f", epoch {status.lease_epoch}" if status.lease_epoch is not None else ""
    store = status.store
    fields = [
        ("as seen by", f"{host}, {rfc3339(datetime.fromtimestamp(status.generated_at_unix_ms / 1000, UTC))}"),
        ("bundle", "none was published" if revision is None else f"revision {revision}"),
        ("placed by", f"{holder}{epoch}" if holder else "nobody yet"),
        ("store", joined((store.state, f"since {store.since}" if store.since else "", store.server or ""), ", ")),
    ]
    fields += [
        ("asked" if number == 0 else "", action_text(one)) for number, one in enumerate(status.actions[:_ACTIONS_SHOWN])
    ]
    if len(status.actions) > _ACTIONS_SHOWN:
        fields.append(("", f"and {len(status.actions) - _ACTIONS_SHOWN} more (--format json)"))
    return render_fields(
        [(label, safe(text)) for label, text in fields], title=f"Cluster {status.cluster_id}", width=width
    )


def _deployment_table(status: ClusterStatus) -> RenderableType:
    columns: list[Column | str] = ["deployment", Column("gen", "right"), Column("ready", "right"), "phase", "on"]
    rows = [
        [
            one.deployment_id,
            one.generation,
            f"{_ready(status, one)}/{one.desired_replicas}",
            joined((one.phase, *_leaving(one)), ", "),
            _places(one),
        ]
        for one in status.deployments
    ]
    return render_rows(columns, rows, empty="nothing is placed")


def _ready(status: ClusterStatus, one: StatusDeployment) -> int:
    """Of nodes that count; while the store is not heard, as it was last heard."""
    if status.store.state == "connected":
        return one.ready_replicas
    return sum(
        replica.state == "ready" and replica.deployment_generation == one.generation
        for node in status.nodes
        for replica in node.replicas
        if replica.deployment == one.deployment_id
    )


def _ready_there(node: StatusNode) -> str | int | None:
    """Of a worker; of one that nobody hears what it said last, as such."""
    if "worker" not in node.roles:
        return None
    ready = sum(replica.state == "ready" for replica in node.replicas)
    if not (node.unhealthy or node.removed):
        return ready
    return "?" if node.snapshot_age_ms is None else f"was {ready}"


def _leaving(one: StatusDeployment) -> Iterator[str]:
    if one.retained:
        yield f"{len(one.retained)} retained"
    if one.draining:
        yield f"{len(one.draining)} draining"


def _places(one: StatusDeployment) -> str | None:
    named = place_words((row.node_id, row.devices) for row in one.assignments)
    more = len(named) - 2 * _NODES_NAMED
    return ", ".join(named[: 2 * _NODES_NAMED]) + (f" and {more} more" if more > 0 else "") or None


def _node_table(status: ClusterStatus, width: int) -> RenderableType:
    has_roles = width >= _ROLES_COLUMNS
    columns: list[Column | str] = [
        "node", Column("health", style_by=_HEALTH_STYLES), *(["roles"] if has_roles else []), Column("heard", "right"),
        Column("ready", "right"), "reasons",
    ]  # fmt: skip
    order = {"unhealthy": 0, "degraded": 1}
    listed = sorted(status.nodes, key=lambda node: (order.get(node.health, 2), node.node_id))
    rows = [
        [
            node.node_id,
            "removed" if node.removed else node.health,
            *([", ".join(node.roles) or None] if has_roles else []),
            None if node.snapshot_age_ms is None else format_duration_s(node.snapshot_age_ms / 1000),
            _ready_there(node),
            ", ".join(node.unhealthy_reasons) or None,
        ]
        for node in listed[:_NODES_SHOWN]
    ]
    table = render_rows(columns, rows, empty="no node was heard of yet")
    more = len(listed) - _NODES_SHOWN
    return Group(table, Text(f"and {plural(more, 'node')} more (--format json)")) if more > 0 else table


def _verdict(status: ClusterStatus, said: int) -> str:
    health = Counter(node.health for node in status.nodes if not node.removed)
    counted = ", ".join(f"{health[word]} {word}" for word in _HEALTH_STYLES if health[word])
    ready = sum(_ready(status, one) for one in status.deployments)
    wanted = sum(one.desired_replicas for one in status.deployments)
    alerted = f"; {plural(said, 'alert')}" if said else ""
    return f"{plural(sum(health.values()), 'node')}: {counted or 'none'}; {ready} of {wanted} replicas ready{alerted}"

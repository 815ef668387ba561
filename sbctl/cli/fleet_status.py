"""`status`: what hosts say of themselves against what the state remembers. The judgement is pure; `fleet_status` gathers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from sbctl.base.connection import Connection
from sbctl.base.errors import SbctlError
from sbctl.base.ids import Address
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.base.truths import Recorded
from sbctl.cli.cluster_words import cluster_problems, store_notes, store_problems
from sbctl.cli.host_lines import Lines
from sbctl.cli.public_certificates import certificate_notes, certificate_problems
from sbctl.cli.workspace import Workspace
from sbctl.node.snapshot import CertificateState, DeploymentState, NodeSnapshot
from sbctl.views.status_views import Condition, DeploymentStatus, HostStatus

__all__ = ["Remembered", "fleet_status", "remembered", "status_of"]

_WARN_BEFORE: Final = timedelta(days=14)
_IDLE_STATES: Final = ("configured", "cached", "stopped", "assigned", "preparing", "draining", "ready")


@dataclass(frozen=True, slots=True)
class Remembered:
    """What the state has of one host."""

    has_runtime: bool = False
    revision: int | None = None
    """Of the bundle that the last apply brought; None when it brought none."""
    deployments: frozenset[str] = frozenset()


def remembered(resources: Mapping[Address, Recorded]) -> dict[str, Remembered]:
    """By host. What an unfinished apply only began is not remembered."""
    hosts: dict[str, list[Recorded]] = {}
    for recorded in resources.values():
        if not recorded.attempted and not recorded.pending_delete:
            hosts.setdefault(recorded.host, []).append(recorded)
    return {host: _remembered(found) for host, found in hosts.items()}


def _remembered(found: Sequence[Recorded]) -> Remembered:
    bundle = next((one for one in found if one.address.kind == "bundle"), None)
    revision = None if bundle is None else bundle.record.get("revision")
    return Remembered(
        has_runtime=any(one.address.kind == "runtime" for one in found),
        revision=revision if isinstance(revision, int) else None,
        deployments=frozenset(one.address.name or "" for one in found if one.address.kind == "deployment"),
    )


def fleet_status(
    workspace: Workspace, lines: Lines, connections: Mapping[str, Connection], *, parallelism: int
) -> list[HostStatus]:
    """One look at every host, in parallel, in the order of `connections`."""
    state = workspace.state
    known = remembered(state.resources) if state is not None else {}

    def look(host: str) -> HostStatus:
        found: NodeSnapshot | SbctlError
        try:
            found = lines.ask(host, lambda session: session.snapshot(SNAPSHOT_DEADLINE_S))
        except SbctlError as error:
            found = error
        return status_of(host, found, known.get(host, Remembered()), workspace.clock.now())

    with ThreadPoolExecutor(max(1, min(parallelism, len(connections))), thread_name_prefix="status") as pool:
        return list(pool.map(look, connections))


def status_of(host: str, found: NodeSnapshot | SbctlError, known: Remembered, now: datetime) -> HostStatus:
    """The judgement over one host. Pure."""
    if isinstance(found, SbctlError):
        then = f". {found.next_step}" if found.next_step else ""
        return HostStatus(host, "unreachable", recorded_revision=known.revision, problems=(f"{found.message}{then}",))
    problems = tuple(_problems(found, known, now))
    rows = tuple(_deployment(one) for one in found.deployments)
    condition: Condition = "degraded" if problems else "healthy" if found.runtime.running else "bare"
    lease, drain = found.lease, found.drain
    service = (
        "" if condition == "bare" else "in service" if drain is None else "drained" if drain.persistent else "draining"
    )
    return HostStatus(
        host=host,
        condition=condition,
        runtime_version=found.runtime.version_running or found.runtime.current_version,
        service=service,
        leased_by=None if lease is None else lease.owner,
        revision=_held_revision(found),
        recorded_revision=known.revision,
        deployments=rows,
        running=sum(row.running for row in rows),
        waiting=sum(row.waiting for row in rows),
        memory_available_bytes=found.host.memory_available_bytes or None,
        memory_total_bytes=found.host.memory_total_bytes or None,
        certificate_until=None if found.certificate is None else found.certificate.not_after,
        problems=problems,
        notes=tuple(_notes(host, found, now)),
    )


def _problems(found: NodeSnapshot, known: Remembered, now: datetime) -> Iterator[str]:
    yield from store_problems(found.store)
    runtime = found.runtime
    if not runtime.running:
        if known.has_runtime:
            yield (
                "the runtime is gone: sbctl apply"
                if not runtime.installed_versions
                else "the runtime does not run: sbctl logs, sbctl apply"
            )
        return
    if not runtime.healthy:
        yield "the runtime runs and is not healthy: it is starting, or sbctl logs says why"
        return
    held = _held_revision(found)
    if known.revision is not None and held != known.revision:
        yield f"it serves revision {held or 'none'}, and the state remembers {known.revision}: sbctl plan"
    cluster = found.cluster
    yield from cluster_problems(cluster)
    is_placed = cluster is not None and cluster.bundle is not None
    served = (
        set(cluster.members) if cluster is not None and is_placed else {one.deployment for one in found.deployments}
    )
    for missing in sorted(known.deployments - served):
        yield f"deployment {missing} is not there: sbctl plan"
    for deployment in found.deployments:
        yield from _broken(deployment)
    yield from _certificate_problems(found.certificate, now)
    yield from certificate_problems(runtime.tls, now)


def _held_revision(found: NodeSnapshot) -> int | None:
    """Of the bundle that counts on the host: its cluster's, if it is in one that has a bundle; where it runs is the cluster's matter."""
    bundle = found.bundle if found.cluster is None or found.cluster.bundle is None else found.cluster.bundle
    return None if bundle is None else bundle.revision


def _broken(deployment: DeploymentState) -> Iterator[str]:
    failed = [one for one in deployment.replicas if one.state == "failed"]
    if failed:
        cause = failed[0].cause or deployment.last_error or "no cause was given"
        reason = f" ({failed[0].reason_code})" if failed[0].reason_code else ""
        count = f"{len(failed)} of {len(deployment.replicas)} replicas"
        yield f"deployment {deployment.deployment}: {count} failed{reason}: {cause}"
    elif deployment.state not in _IDLE_STATES:
        yield f"deployment {deployment.deployment} is {deployment.state}: {deployment.last_error or 'no cause was given'}"
    elif deployment.last_error:
        yield f"deployment {deployment.deployment} serves, but {deployment.last_error}"


def _certificate_problems(certificate: CertificateState | None, now: datetime) -> Iterator[str]:
    if certificate is None:
        return
    until = _moment(certificate.not_after)
    if until is not None and until <= now:
        yield f"its certificate ended {certificate.not_after}: sbctl apply (of a PKI of your own: have it issue the next one first)"
    elif certificate.renewal_problem is not None:
        yield f"it cannot renew its identity, {certificate.renewal_problem}"
    elif certificate.problem is not None:
        yield f"its identity does not count: {certificate.problem}"


def _notes(host: str, found: NodeSnapshot, now: datetime) -> Iterator[str]:
    drain, lease, runtime = found.drain, found.lease, found.runtime
    yield from store_notes(found.store)
    if drain is not None and drain.persistent:
        yield f"out of service since {drain.since}, by {drain.by}; back by: sbctl host resume {host}"
    if lease is not None:
        yield f"{lease.owner} is changing it ({lease.purpose}) since {lease.since}"
    if runtime.started_by_hand:
        yield "its runtime was started by hand and takes no bundle"
    for deployment in found.deployments:
        if deployment.stopped_by == "operator":
            yield f"deployment {deployment.deployment} was stopped by an operator"
    until = _moment(None if found.certificate is None else found.certificate.not_after)
    if until is not None and now < until < now + _WARN_BEFORE:
        of_theirs = found.certificate is not None and found.certificate.attestation == "manual_pki"
        remedy = "have your PKI issue the next one, then sbctl apply" if of_theirs else "sbctl apply renews it"
        yield f"its certificate ends {until.date().isoformat()}: {remedy}"
    yield from certificate_notes(runtime.tls, now)


def _deployment(state: DeploymentState) -> DeploymentStatus:
    memory = [one.memory_bytes for one in state.replicas if one.memory_bytes is not None]
    return DeploymentStatus(
        deployment=state.deployment,
        state=state.state,
        ready=sum(one.state == "ready" for one in state.replicas),
        replicas=tuple(one.state for one in state.replicas),
        running=sum(one.active_requests for one in state.replicas),
        waiting=sum(one.queued_requests for one in state.replicas),
        restarts=sum(one.restarts for one in state.replicas),
        memory_bytes=sum(memory) if memory else None,
    )


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None

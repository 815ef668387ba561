"""`status`: the judgement over one host, the exit code over all, and what people read."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.cli.fleet_status import Remembered, status_of
from sbctl.node.snapshot import (
    BundleState,
    CertificateState,
    ClusterState,
    DeploymentState,
    DrainState,
    HostFacts,
    LeaseState,
    NodeSnapshot,
    ReplicaState,
    RuntimeState,
    StoreState,
)
from sbctl.views.status_views import HostStatus, status_body, status_exit_code, status_text

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
KNOWN = Remembered(has_runtime=True, revision=12, deployments=frozenset({"chat"}))
RUNS = {"running": True, "healthy": True, "version_running": "0.1.0", "installed_versions": ("0.1.0",)}
READY = ReplicaState(state="ready", pid=7, active_requests=3, queued_requests=1, memory_bytes=1 << 30)
FAILED = ReplicaState(state="failed", last_error="exit code 1", reason_code="crash_loop", restarts=5)


def told(**given: Any) -> NodeSnapshot:
    chat = DeploymentState(deployment="chat", state="ready", replicas=(READY, READY))
    facts: dict[str, Any] = {
        "bootstrapped": True,
        "host": HostFacts(memory_available_bytes=20 << 30, memory_total_bytes=32 << 30),
        "runtime": RuntimeState(**RUNS),
        "bundle": BundleState(revision=12, content_digest="d"),
        "deployments": (chat,),
    }
    return NodeSnapshot(**{**facts, **given})


def judged(snapshot: NodeSnapshot | SbctlError, known: Remembered = KNOWN) -> HostStatus:
    return status_of("gpu-a", snapshot, known, NOW)


def in_cluster(revision: int, **more: Any) -> ClusterState:
    bundle = BundleState(revision=revision, content_digest="d")
    return ClusterState(**{"cluster_id": "prod", "bundle": bundle, "members": {"chat": "d"}, **more})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"runtime": RuntimeState()}, "the runtime is gone"),
        ({"runtime": RuntimeState(installed_versions=("0.1.0",))}, "does not run"),
        ({"runtime": RuntimeState(**{**RUNS, "healthy": False})}, "not healthy"),
        ({"store": StoreState()}, "store does not run here"),
        ({"store": StoreState(running=True, problem="no meta leader")}, "not whole: no meta leader"),
        ({"store": StoreState(stuck=True, problem="its disk is full")}, "takes no writes here: its disk is full"),
        ({"bundle": None}, "revision none, and the state remembers 12"),
        ({"bundle": None, "cluster": ClusterState(cluster_id="c")}, "revision none, and the state remembers 12"),
        ({"bundle": None, "cluster": in_cluster(11)}, "revision 11"),
        ({"bundle": None, "cluster": in_cluster(12, members={})}, "deployment chat is not there"),
        (
            {"bundle": None, "cluster": in_cluster(12, problem="cluster.db is lost: do this")},
            "cluster.db is lost: do this",
        ),
        ({"bundle": BundleState(revision=11, content_digest="d")}, "revision 11"),
        ({"deployments": ()}, "deployment chat is not there"),
        (
            {"deployments": (DeploymentState(deployment="chat", state="failed", replicas=(FAILED, READY)),)},
            "1 of 2 replicas failed (crash_loop): exit code 1",
        ),
        ({"certificate": CertificateState(not_after="2026-11-01T00:00:00Z")}, "its certificate ended"),
        ({"certificate": CertificateState(problem="signed by a stranger")}, "signed by a stranger"),
    ],
)
def test_what_is_wrong_is_degraded_and_said(given: dict[str, Any], said: str) -> None:
    status = judged(told(**given))
    assert status.condition == "degraded"
    assert said in " ".join(status.problems)
    assert status_exit_code([status]) == 8


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, ""),
        ({"bundle": None, "deployments": (), "cluster": in_cluster(12)}, ""),
        ({"drain": DrainState(by="ops@x", since="2026-11-29T11:00:00Z")}, "sbctl host resume gpu-a"),
        ({"lease": LeaseState(owner="ci@runner", purpose="apply serial 3")}, "ci@runner is changing it"),
        ({"certificate": CertificateState(not_after="2026-12-05T00:00:00Z")}, "ends 2026-12-05: sbctl apply renews it"),
        (
            {"certificate": CertificateState(not_after="2026-12-05T00:00:00Z", attestation="manual_pki")},
            "ends 2026-12-05: have your PKI issue the next one",
        ),
        (
            {"deployments": (DeploymentState(deployment="chat", state="stopped", stopped_by="operator"),)},
            "was stopped by an operator",
        ),
    ],
)
def test_what_is_meant_to_be_so_is_healthy_and_said(given: dict[str, Any], said: str) -> None:
    status = judged(told(**given))
    assert (status.condition, status.problems) == ("healthy", ())
    assert said in " ".join(status.notes)
    assert status_exit_code([status]) == 0


def test_requests_and_memory_of_all_replicas_are_counted() -> None:
    status = judged(told())
    assert (status.running, status.waiting, status.service) == (6, 2, "in service")
    (row,) = status.deployments
    assert (row.ready, row.replicas, row.memory_bytes) == (2, ("ready", "ready"), 2 << 30)


def test_a_host_that_gives_no_answer_is_7_and_a_bare_one_is_nothing_to_worry_about() -> None:
    gone = judged(UnreachableError("ssh.timeout", "no answer in 10 s", next_step="look at it"))
    bare = judged(NodeSnapshot(bootstrapped=False), Remembered())
    degraded = judged(told(bundle=None))
    assert (gone.condition, bare.condition) == ("unreachable", "bare")
    assert status_exit_code([gone, bare, degraded]) == 7
    assert status_exit_code([bare]) == 0
    assert status_body([gone])["hosts"][0]["problems"] == ("no answer in 10 s. look at it",)


def test_80_columns_hold_it_and_foreign_text_obeys_nobody() -> None:
    certificate = CertificateState(not_after="2027-02-01T00:00:00Z")
    hostile = DeploymentState(deployment="chat", state="ready", last_error="x", replicas=(READY,))
    hosts = [
        judged(told(certificate=certificate)),
        judged(
            told(certificate=certificate, deployments=(hostile,), bundle=BundleState(revision=11, content_digest="d"))
        ),
        judged(UnreachableError("ssh.timeout", "no \x1b[31manswer " * 20)),
    ]
    out = io.StringIO()
    Console(file=out, width=80, color_system=None).print(status_text(hosts, 80))
    assert max(map(len, out.getvalue().splitlines())) <= 80
    assert "\x1b" not in out.getvalue()
    assert "3 hosts: 1 healthy, 1 degraded, 1 unreachable" in out.getvalue()

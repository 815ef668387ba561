"""An operator's action in a cluster: taken by whichever authority can, refused once, waited for, and told in words."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from sbctl.base.errors import HostError, RefusedError, SbctlError, UnreachableError
from sbctl.cli import cluster_acting, host_life
from sbctl.cli.cluster_acting import Acted, left_on
from sbctl.node.cluster_actions import ClusterAct, ClusterActed
from sbctl.node.cluster_status import ClusterStatus, StatusAction
from sbctl.views.cluster_action_views import acted_body, acted_text, action_text

EVACUATE = ClusterAct(action="evacuate", subject="w1", by="ops")
ACTED = ClusterActed(
    action="evacuate", subject="w1", changed=True, number=3, by="ops", authority="b", at_unix_ms=1_790_000_000_000
)


class Lines:
    """Answers or errors by host."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def ask(self, host: str, work: Any) -> Any:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, SbctlError):
            raise answer

        class Session:
            def call(self, method: str, params: Mapping[str, Any], **_: Any) -> Any:
                assert (str(method), params["subject"]) == ("cluster.act", "w1")
                return answer

        return work(Session())

    def close(self) -> None: ...


GONE = UnreachableError("ssh.timeout", "no answer in 10 s")
NO_STORE = UnreachableError("store.unreachable", "the store does not answer")


def test_another_authority_takes_what_the_first_cannot() -> None:
    lines = Lines(a=GONE, b=ACTED.model_dump(mode="json"), c=GONE)
    assert cluster_acting._asked(lines, ("a", "b", "c"), EVACUATE) == ("b", ACTED)
    assert lines.asked == ["a", "b"]


def test_a_refusal_is_the_answer_of_the_whole_cluster_and_silence_names_everybody() -> None:
    lines = Lines(a=RefusedError("node_is_heard", "w1 was heard 2 s ago"), b=ACTED.model_dump(mode="json"))
    with pytest.raises(RefusedError):
        cluster_acting._asked(lines, ("a", "b"), EVACUATE)
    assert lines.asked == ["a"]
    with pytest.raises(UnreachableError) as caught:
        cluster_acting._asked(Lines(a=GONE, b=NO_STORE), ("a", "b"), EVACUATE)
    assert "a: no answer in 10 s; b: the store does not answer" in caught.value.message
    with pytest.raises(UnreachableError):
        cluster_acting._asked(Lines(a={"action": "dance"}), ("a",), EVACUATE)


def _status(*, assigned: bool, draining: bool, shown: str, unplaced: int = 0) -> ClusterStatus:
    row = {"node_id": "w1", "slot": 0, "generation": 1}
    return ClusterStatus.model_validate(
        {
            "cluster_id": "c",
            "local_node_id": "a",
            "generated_at_unix_ms": 1,
            "deployments": [
                {
                    "deployment_id": "chat",
                    "generation": 1,
                    "desired_replicas": 2,
                    "unplaced_replicas": unplaced,
                    "assignments": [row] if assigned else [],
                    "draining": [row] if draining else [],
                }
            ],
            "nodes": [
                {
                    "node_id": "w1",
                    "unhealthy": False,
                    "replicas": [{"deployment": "chat", "slot": 0, "state": shown}] if shown else [],
                }
            ],
        }
    )


class Clock:
    def __init__(self) -> None:
        self.at_s = 0.0

    def monotonic_s(self) -> float:
        return self.at_s

    def sleep_s(self, seconds: float) -> None:
        self.at_s += seconds


def test_a_node_is_empty_when_nothing_is_placed_on_it_and_nothing_runs() -> None:
    looks = [
        _status(assigned=True, draining=False, shown="ready", unplaced=1),
        _status(assigned=False, draining=True, shown="draining"),
        _status(assigned=False, draining=False, shown="draining"),
        _status(assigned=False, draining=False, shown="stopped"),
    ]
    assert [left_on(one, "w1") for one in looks] == [
        ("chat replica 0 (no place for 1 replica)",),
        ("chat replica 0",),
        ("chat replica 0",),
        (),
    ]
    assert left_on(looks[0], "w2") == ()
    said: list[str] = []
    waiting = iter(looks)
    assert cluster_acting._waited(Clock(), lambda: next(waiting), "w1", 60, said.append) == ()  # type: ignore[arg-type]
    assert len(said) == 2, "what did not change is not said again"
    left = cluster_acting._waited(Clock(), lambda: looks[0], "w1", 60, said.append)  # type: ignore[arg-type]
    with pytest.raises(HostError) as caught:
        cluster_acting.evacuated("w1", left, 60)
    assert caught.value.code == "cluster.evacuation_unfinished"
    assert "sbctl cluster restore w1" in (caught.value.next_step or "")


def test_what_became_of_it_is_a_sentence_and_json() -> None:
    assert acted_text(ACTED).startswith("w1 is being evacuated: it gets nothing new")
    again = acted_text(ACTED.model_copy(update={"changed": False, "reason": "memory"}))
    assert again.startswith("w1 is being evacuated already, asked by ops at 2026-")
    assert again.endswith(": memory")
    never = ClusterActed(action="restore", subject="w1", changed=False)
    assert acted_text(never) == "w1 was not being evacuated"
    assert acted_body("b", ACTED, ("x",))["left"] == ["x"]
    assert action_text(StatusAction(action="confirm_lost", subject="w2", by="ops")).startswith(
        "w2 counts as gone for good"
    )
    assert action_text(StatusAction(action="of_tomorrow", subject="w2")).startswith("of_tomorrow w2")


def test_a_worker_is_drained_by_its_cluster_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    roles = {"w1": ("worker",), "both": ("worker", "gateway")}
    config = SimpleNamespace(hosts={name: SimpleNamespace(roles=each) for name, each in roles.items()})
    workspace: Any = SimpleNamespace(environ={})
    asked: list[tuple[str, str]] = []
    left: tuple[str, ...] = ()

    def act(_workspace: object, action: str, subject: str, **_: Any) -> Acted:
        asked.append((action, subject))
        return Acted("a", ACTED, left)

    def session(*_: object) -> Any:
        raise UnreachableError("ssh.timeout", "no answer in 10 s")

    monkeypatch.setattr(host_life, "worker_config", lambda _workspace, host: config if host in roles else None)
    monkeypatch.setattr(host_life, "act", act)
    monkeypatch.setattr(host_life, "host_session", session)
    drained = host_life.drain(workspace, "w1", deadline_s=5)
    assert (drained.evacuated, drained.finished) == (True, True)
    for host in ("both", "gw"):
        with pytest.raises(UnreachableError):
            host_life.drain(workspace, host, deadline_s=5)
    assert asked == [("evacuate", "w1"), ("evacuate", "both")]
    left = ("chat replica 0",)
    with pytest.raises(HostError):
        host_life.drain(workspace, "w1", deadline_s=5)

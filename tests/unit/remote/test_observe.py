"""Every host is in the result; what may pass is tried again, what cannot is not."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, InputError, SbctlError, UnreachableError
from sbctl.base.limits import SETTLE_DEADLINE_S, STARTING_WAIT_S
from sbctl.node.snapshot import NodeSnapshot, RuntimeState
from sbctl.remote import observe
from sbctl.remote.observe import observe_fleet


class _Clock:
    """Sleeping takes no time but is counted."""

    def __init__(self) -> None:
        self.moment_s = 0.0
        self.sleeps = 0

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.moment_s

    def sleep_s(self, seconds: float) -> None:
        self.sleeps += 1
        self.moment_s += seconds


REST = RuntimeState(running=True, healthy=True)
STATES = {
    "changing": RuntimeState(running=True, healthy=True, changing=True),
    "starting": RuntimeState(running=True),
    "down": RuntimeState(),
}


class _Session:
    """Answers its list of outcomes, one a call."""

    def __init__(self, host: str, outcomes: list[object]) -> None:
        self.host = host
        self.outcomes = list(outcomes)
        self.calls = 0
        self.closed = False

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        self.calls += 1
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return NodeSnapshot(bootstrapped=True, runtime=STATES.get(str(outcome), REST))

    def close(self) -> None:
        self.closed = True


def _unreachable(code: str) -> UnreachableError:
    return UnreachableError(code, "no", retryable=True)


@pytest.fixture
def sessions(monkeypatch: pytest.MonkeyPatch) -> dict[str, _Session]:
    known: dict[str, _Session] = {}
    monkeypatch.setattr(observe, "open_session", lambda host, _connection, **_more: known[host])
    return known


def test_a_host_that_is_slow_is_told_by_the_whole_time_that_it_had(sessions: dict[str, _Session]) -> None:
    late = UnreachableError("remote.timeout", "the host did not answer within 6 s", place="h")
    sessions["h"] = _Session("h", [late])
    told = observe_fleet({"h": Connection(kind="local")}, clock=_Clock(), deadline_s=45).unreachable["h"]
    assert (told.code, told.place) == ("remote.timeout", "h")
    assert "within 45 s" in told.message
    assert "load of the host" in str(told.next_step)


CUT = _unreachable("ssh.connection_lost")


@pytest.mark.parametrize(
    ("outcomes", "code", "calls"),
    [
        (["ok"], None, 1),
        ([CUT, "ok"], None, 2),
        ([CUT, _unreachable("ssh.name_unknown"), "ok"], None, 3),
        ([CUT, CUT, CUT, "ok"], "ssh.connection_lost", 3),
        ([_unreachable("ssh.no_answer"), "ok"], "ssh.no_answer", 1),
        ([_unreachable("ssh.host_key_changed"), "ok"], "ssh.host_key_changed", 1),
        ([_unreachable("ssh.host_key_unknown"), "ok"], "ssh.host_key_unknown", 1),
        ([_unreachable("ssh.authentication_failed"), "ok"], "ssh.authentication_failed", 1),
        ([HostError("host.marker_damaged", "damaged")], "host.marker_damaged", 1),
        ([InputError("ssh.host_key_invalid", "no pin")], "ssh.host_key_invalid", 1),
        ([RuntimeError("a fault of ours")], "host.observe_failed", 1),
    ],
)
def test_a_host_is_asked_again_only_for_what_may_pass(
    sessions: dict[str, _Session], outcomes: list[object], code: str | None, calls: int
) -> None:
    sessions["a"] = _Session("a", outcomes)
    observed = observe_fleet({"a": Connection("ssh")}, clock=_Clock())
    assert sessions["a"].calls == calls
    assert (observed.unreachable["a"].code if code else None) == code
    assert ("a" in observed.snapshots) == (code is None)
    assert sessions["a"].closed == (code is not None)


def test_no_host_is_left_out_and_order_is_that_of_the_configuration(sessions: dict[str, _Session]) -> None:
    names = [f"h{number}" for number in range(40)]
    for number, name in enumerate(names):
        sessions[name] = _Session(name, ["ok" if number % 3 else HostError("x.y", "no")])
    with observe_fleet({name: Connection("ssh") for name in names}, clock=_Clock(), max_parallel=4) as observed:
        assert list(observed.snapshots) == [name for number, name in enumerate(names) if number % 3]
        assert list(observed.unreachable) == [name for number, name in enumerate(names) if not number % 3]
        assert set(observed.sessions) == set(names)
    assert all(session.closed for session in sessions.values())


def test_nothing_is_tried_again_past_the_deadline(sessions: dict[str, _Session]) -> None:
    sessions["a"] = _Session("a", [CUT, "ok"])
    clock = _Clock()
    observed = observe_fleet({"a": Connection("ssh")}, clock=clock, deadline_s=0.1)
    assert isinstance(observed.unreachable["a"], SbctlError)
    assert clock.sleeps == 0


@pytest.mark.parametrize(
    ("outcomes", "calls"),
    [
        (["ok"], 1),
        (["down"], 1),
        (["changing", "changing", "ok"], 3),
        (["starting", "changing", "ok"], 3),
        (["starting", "down"], 2),
    ],
)
def test_a_runtime_that_is_starting_or_at_work_is_waited_for_by_who_holds_the_lock(
    sessions: dict[str, _Session], outcomes: list[object], calls: int
) -> None:
    told: list[str] = []
    for settle, expected in ((told.append, calls), (None, 1)):
        sessions["a"] = _Session("a", outcomes)
        observe_fleet({"a": Connection("ssh")}, clock=_Clock(), settle=settle)
        assert sessions["a"].calls == expected
    assert told == ["a"] * (calls > 1)


@pytest.mark.parametrize(("state", "limit_s"), [("changing", SETTLE_DEADLINE_S), ("starting", STARTING_WAIT_S)])
def test_a_runtime_that_does_not_come_to_rest_is_seen_as_it_is(
    sessions: dict[str, _Session], state: str, limit_s: float
) -> None:
    sessions["a"] = _Session("a", [state] * 2000)
    clock = _Clock()
    observed = observe_fleet({"a": Connection("ssh")}, clock=clock, settle=lambda _host: None)
    assert observed.snapshots["a"].runtime == STATES[state]
    assert clock.moment_s == limit_s

"""Whatever runs how long and ends how: never more hosts out than allowed, the canary first and alone, pauses kept, everybody settled."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sbctl.apply.rollout import Rollout, Stop, Wait
from sbctl.base.update_policy import UpdatePolicy

HOSTS = tuple(f"h{number}" for number in range(9))
POLICIES = st.builds(
    UpdatePolicy,
    max_unavailable=st.one_of(st.integers(1, 10), st.sampled_from(["1%", "25%", "50%", "100%"])),
    canary=st.one_of(st.none(), st.sampled_from(HOSTS)),
    pause_secs=st.sampled_from([0, 30]),
    max_failures=st.integers(1, 4),
)
STATUSES = st.sampled_from(["done", "done", "done", "unchanged", "failed", "partial", "leased", "stale", "unreachable"])


@given(
    policy=st.one_of(st.none(), POLICIES),
    hosts=st.lists(st.sampled_from(HOSTS), unique=True, min_size=1),
    outs=st.sets(st.sampled_from(HOSTS)),
    parallelism=st.integers(1, 9),
    data=st.data(),
)
def test_the_rules_hold_in_every_run(
    policy: UpdatePolicy | None, hosts: list[str], outs: set[str], parallelism: int, data: Any
) -> None:
    rollout = Rollout(policy, outs, fleet_size=len(HOSTS))
    waiting, running, ended = list(hosts), [], {}
    given_up: str | None = None
    now_s, batch_end_s, moves = 100.0, None, 0
    while waiting or running:
        moves += 1
        assert moves < 200, "nobody ends and nobody may start"
        decision = rollout.next(waiting, running, now_s) if waiting and len(running) < parallelism else Wait()
        if isinstance(decision, Stop):
            given_up = decision.because
            waiting.clear()
        elif isinstance(decision, str):
            _check_start(policy, decision, waiting, running, outs, ended, now_s, batch_end_s)
            rollout.started(decision)
            waiting.remove(decision)
            running.append(decision)
        elif running:
            host = data.draw(st.sampled_from(running))
            now_s += data.draw(st.sampled_from([0.0, 10.0]))
            running.remove(host)
            ended[host] = data.draw(STATUSES)
            rollout.ended(host, ended[host], now_s)
            if not any(other in outs for other in running) and (host in outs or (policy and host == policy.canary)):
                batch_end_s = now_s
        else:
            assert decision.until_s is not None, "nobody runs and nobody is waited for"
            assert decision.until_s > now_s
            now_s = decision.until_s
    failed = sum(status not in ("done", "unchanged") for status in ended.values())
    if given_up is None:
        assert set(ended) == set(hosts)
    else:
        assert policy is not None
        canary_failed = ended.get(policy.canary or "", "done") not in ("done", "unchanged")
        assert canary_failed or failed >= policy.max_failures


def _check_start(
    policy: UpdatePolicy | None,
    host: str,
    waiting: list[str],
    running: list[str],
    outs: set[str],
    ended: dict[str, str],
    now_s: float,
    batch_end_s: float | None,
) -> None:
    if policy is None:
        return
    failed = [name for name, status in ended.items() if status not in ("done", "unchanged")]
    assert len(failed) < policy.max_failures
    assert policy.canary not in failed
    if policy.canary in waiting:
        assert (host, running) == (policy.canary, [])
    assert policy.canary not in running
    if host in outs:
        assert sum(other in outs for other in running) < policy.hosts_at_once(len(HOSTS))
        if batch_end_s is not None and not any(other in outs for other in running) and host != policy.canary:
            assert now_s >= batch_end_s + policy.pause_secs

"""/v1/models: what a request under a public name would meet, whoever answers it."""

from __future__ import annotations

from typing import Any

import pytest

from sbctl.runtime.external.breakers import Breaker
from sbctl.runtime.gateway.models import Availability, Look, model_rows, together
from sbctl.runtime.routes import Caller
from sbctl.trust.bundle import ApiKeyEntry, DeploymentMember, ExternalMember, LocalStandIn, OriginMember
from tests.simulators.engine_world import facts
from tests.simulators.runtime_world import member

READY, GONE, OUTSIDE = Look("ready", ready=2, desired=2), Look("unavailable", desired=1), Look("ready")
WAITS, REFUSES = Look("cold", waits=True, desired=1), Look("cold", desired=1)


@pytest.mark.parametrize(
    ("looks", "state"),
    [
        ([READY], "ready"),
        ([WAITS], "cold"),
        ([REFUSES], "cold"),
        ([GONE], "unavailable"),
        ([GONE, READY], "ready"),
        ([REFUSES, READY], "ready"),
        ([WAITS, READY], "cold"),
        ([REFUSES, GONE, OUTSIDE], "ready"),
        ([REFUSES, GONE], "cold"),
        ([GONE, WAITS, OUTSIDE], "cold"),
        ([GONE, GONE], "unavailable"),
    ],
)
def test_the_first_that_a_request_would_stay_with_decides(looks: list[Look], state: Availability) -> None:
    assert together(looks).state == state


def test_replicas_of_all_that_may_answer_are_counted() -> None:
    seen = together([GONE, READY, OUTSIDE])
    assert (seen.ready, seen.desired) == (2, 3)


ORIGIN = OriginMember(
    models={"chat": "a", "lonely": "a", "lost": "c"},
    stand_ins=(
        LocalStandIn(name="second", deployment="b", models=("chat",)),
        ExternalMember(name="elsewhere", base_url="https://api.example/v1", models={"chat": "gpt", "lonely": "gpt"}),
    ),
)


@pytest.mark.parametrize(
    ("answers", "chat", "lonely"),
    [(True, ("ready", 0, 3), ("ready", 0, 1)), (False, ("unavailable", 0, 3), ("unavailable", 0, 1))],
)
def test_a_name_has_its_own_deployment_s_facts_and_all_its_stand_ins(
    answers: bool, chat: tuple[str, int, int], lonely: tuple[str, int, int]
) -> None:
    one = member(facts(), "/e")
    known = {"a": (one, GONE), "b": (one, Look("unavailable", desired=2))}

    def rows(caller: Caller) -> dict[str, Any]:
        def look(deployment: str) -> tuple[DeploymentMember, Look] | None:
            return known.get(deployment)

        found = model_rows(ORIGIN, caller, look, lambda _member: answers)
        return {name: tuple(row["availability"].values()) for name, row in found.items()}

    assert rows(Caller(None, None)) == {"chat": chat, "lonely": lonely}
    key = ApiKeyEntry(sha256="0" * 64, models=("lonely",))
    assert rows(Caller("app", key)) == {"lonely": lonely}


def test_a_look_at_a_provider_that_rests_takes_nobody_s_turn() -> None:
    breaker = Breaker()
    for _ in range(3):
        breaker.failed(0.0)
    assert breaker.rests(1.0)
    assert not breaker.rests(11.0)
    assert breaker.admits(11.0), "the look did not use up the one try"
    assert breaker.rests(11.0)


def test_fault_25_the_context_window_is_that_of_one_request_however_many_run() -> None:
    one = member(facts(), "/e", context_length=4096, max_concurrency=8)
    row = model_rows(OriginMember(models={"chat": "a"}), Caller(None, None), lambda _name: (one, READY), bool)["chat"]
    assert (row["context_window"], row["max_output_tokens"]) == (4096, 4096)

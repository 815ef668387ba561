"""When somebody else may answer, who that is, what they get, and how many tokens a request is charged with."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.errors import EngineError, InputError, RefusedError, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.gateway.accounting import estimated_tokens, used_tokens
from sbctl.runtime.gateway.asked import Asked, read_asked
from sbctl.runtime.gateway.events import Usage
from sbctl.runtime.gateway.fallback import disallows_training, is_our_fault, stand_ins, way_of
from sbctl.trust.bundle import ExternalMember, LocalStandIn, OriginMember


def _asked(**more: Any) -> Asked:
    body = {"messages": [{"role": "user", "content": "x" * 400}], **more}
    return read_asked(json.dumps(body).encode(), "chat")


@pytest.mark.parametrize(
    ("error", "ours"),
    [
        (AdmissionError("queue_full", "", retry_after_s=1), True),
        (AdmissionError("queue_timeout", "", retry_after_s=1), True),
        (AdmissionError("draining", "", retry_after_s=1), True),
        (EngineError("no_ready_replica", ""), True),
        (EngineError("crash_loop", ""), True),
        (EngineError("stopped", ""), True),
        (EngineError("insufficient_capacity", ""), True),
        (EngineError("upstream_failed", ""), True),
        (EngineError("engine.oom", ""), True),
        (InputError("invalid_request", ""), False),
        (InputError("context_length_exceeded", ""), False),
        (InputError("modality_mismatch", ""), False),
        (RefusedError("model_not_allowed", ""), False),
        (RefusedError("unknown_model", ""), False),
        (RefusedError("unauthorized", ""), False),
        (RefusedError("rate_limited", ""), False),
    ],
    ids=lambda value: value.code if isinstance(value, SbctlError) else None,
)
def test_only_what_is_our_fault_goes_to_somebody_else(error: SbctlError, ours: bool) -> None:
    assert is_our_fault(error) is ours


def test_who_stands_in_is_in_order_and_keeps_what_the_caller_asks_for() -> None:
    one, two, other = (
        ExternalMember(name=name, base_url="https://a.example/v1", models={model: "x"}, no_prompt_training=kept)
        for name, model, kept in (("one", "m", False), ("two", "m", True), ("other", "n", True))
    )
    origin = OriginMember(models={"m": "q", "n": "q"}, stand_ins=(one, two, other))

    def asked(name: str, *, no_training: bool = False, way: tuple[str, ...] | None = (HERE,)) -> Any:
        return SimpleNamespace(name=name, no_training=no_training, way=way)

    assert stand_ins(origin, asked("m")) == (one, two)
    assert stand_ins(origin, asked("m", no_training=True)) == (two,)
    assert stand_ins(origin, asked("unknown")) == ()
    local = LocalStandIn(name="spare", deployment="s", models=("m",))
    chained = origin.model_copy(update={"stand_ins": (one, local, two)})
    assert stand_ins(chained, asked("m", no_training=True)) == (local, two), "what stays on the host trains nobody"
    assert stand_ins(chained, asked("m", way=None)) == (local,), "what goes in a circle stays on the host"


HERE, THERE = "0" * 16, "1" * 16


@pytest.mark.parametrize(
    ("said", "way"),
    [
        (None, (HERE,)),
        ("", (HERE,)),
        (THERE, (THERE, HERE)),
        (f"{THERE}, {HERE}", None),
        (HERE, None),
        (", ".join(f"{number:016x}" for number in range(1, 8)), (*(f"{n:016x}" for n in range(1, 8)), HERE)),
        (", ".join(f"{number:016x}" for number in range(1, 9)), None),
        ("x" * 4000, (HERE,)),
        (f"{THERE},\u00e9", (HERE,)),
    ],
)
def test_a_request_that_comes_back_or_went_through_eight_gateways_is_led_to_no_other(
    said: str | None, way: tuple[str, ...] | None
) -> None:
    head = SimpleNamespace(text=lambda _name: said)
    assert way_of(cast("Any", head), HERE) == way


@pytest.mark.parametrize(
    ("said", "holds"),
    [
        (None, False),
        ("false", False),
        ("0", False),
        (" No ", False),
        ("", False),
        ("true", True),
        ("1", True),
        ("ja", True),
    ],
)
def test_a_caller_s_wish_is_read_on_its_side(said: str | None, holds: bool) -> None:
    head = cast("Any", SimpleNamespace(text=lambda _name: said))
    assert disallows_training(head) is holds


def test_a_provider_gets_what_the_caller_asked_under_its_own_name_for_the_model() -> None:
    asked = _asked(model="public", temperature=0.5, max_completion_tokens=7, stream=False)
    assert json.loads(asked.for_provider(model="big")) == {
        "model": "big",
        "messages": [{"role": "user", "content": "x" * 400}],
        "temperature": 0.5,
        "max_completion_tokens": 7,
    }
    streamed = json.loads(_asked(stream=True).for_provider(model="big"))
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("more", "tokens"), [({}, 100), ({"max_tokens": 50}, 150), ({"max_completion_tokens": 9}, 109)]
)
def test_an_estimate_is_the_prompt_and_what_the_caller_lets_come(more: dict[str, Any], tokens: int) -> None:
    assert estimated_tokens(_asked(**more)) == tokens


@pytest.mark.parametrize(
    ("relay", "left", "tokens"),
    [
        (None, True, 0),
        ({"usage": Usage(90, 5)}, False, 95),
        ({}, False, 0),
        ({}, True, 100),
        ({"first_byte_s": 1.0, "received_bytes": 2560}, True, 110),
        ({"first_byte_s": 1.0, "received_bytes": 2560}, False, 110),
    ],
    ids=["left_in_the_queue", "counted", "failed_before_a_byte", "left_while_read", "left_amid", "broke_amid"],
)
def test_what_is_charged_is_what_was_done(relay: dict[str, Any] | None, left: bool, tokens: int) -> None:
    made = relay and {"usage": None, "first_byte_s": None, "received_bytes": 0, **relay}
    blank = {"usage": None, "first_byte_s": None, "received_bytes": 0}
    seen = None if relay is None else cast("Any", SimpleNamespace(**(made or blank)))
    assert used_tokens(_asked(), seen, left=left) == tokens

from __future__ import annotations

import io
import json
from dataclasses import replace
from datetime import UTC, datetime

from rich.console import Console, RenderableType

from sbctl.base.connection import Connection, Jump
from sbctl.state.model import OpenIntent, RunInfo, RunSummary, StateView
from sbctl.views.host_views import (
    Check,
    Endpoint,
    checks_text,
    endpoints_body,
    endpoints_text,
    trial_text,
)
from sbctl.views.state_views import (
    history_body,
    history_text,
    key_list_body,
    key_list_text,
    recorded_body,
    recorded_text,
    state_list_body,
    state_list_text,
)
from tests.simulators.planners import LINEAGE, NOW, address, host_resources, recorded

RESOURCES = {one.address: recorded(one) for one in host_resources("a")}
RUNS = [
    RunSummary(40, RunInfo("apply", "ops", "3f2a91cdd"), "applied", NOW, NOW, 7, {"done": 3}),
    RunSummary(41, RunInfo("destroy", "ci"), "running", NOW),
]
INTENT = OpenIntent("k", address("engine.a/llama_cpp"), "create", "a", "engine.install", "install engine", 41, NOW)
STATE = StateView(LINEAGE, 41, "fleet", RESOURCES, {"ops": "ed25519:x"}, 1, b"secret-key" * 4, open_intents=(INTENT,))


def shown(renderable: RenderableType) -> str:
    out = io.StringIO()
    Console(file=out, width=120, color_system=None, markup=False, highlight=False).print(renderable)
    return out.getvalue()


def test_the_state_is_listed_with_what_nobody_knows() -> None:
    pending = replace(RESOURCES[address("artifact.a/m:q4")], pending_delete=True)
    state = replace(STATE, resources={**RESOURCES, pending.address: pending})
    text = shown(state_list_text(state))
    assert text.splitlines()[0] == f"fleet · serial 41 · lineage {LINEAGE}"
    assert "delete pending" in text
    assert "unknown: install engine on a (serial 41); the next plan reads the host" in text
    body = state_list_body(state)
    assert [one["address"] for one in body["resources"]][:2] == ["host.a", "runtime.a"]
    assert sum(one["pending_delete"] for one in body["resources"]) == 1
    assert body["open_intents"][0]["step"] == "k"
    json.dumps(body)


def test_the_key_of_fingerprints_is_never_shown() -> None:
    assert "secret-key" not in shown(state_list_text(STATE)) + json.dumps(state_list_body(STATE))


def test_one_resource_is_shown_with_spec_and_record() -> None:
    one = replace(
        RESOURCES[address("deployment.a/chat")],
        record={"revision": 3},
        connection=Connection("ssh", "10.0.0.1", user="ops", become="sudo", jumps=(Jump("bastion", "b"),)),
    )
    text = shown(recorded_text(one))
    for part in (
        "deployment.a/chat",
        "ssh ops@10.0.0.1:22 through bastion, root by sudo",
        "bundle.a",
        '"max_concurrency": 4',
        '"revision": 3',
    ):
        assert part in text
    body = recorded_body(one)
    assert body["member_of"] == "bundle.a"
    assert body["connection"] == {"kind": "ssh", "address": "10.0.0.1"}
    local = shown(recorded_text(RESOURCES[address("host.a")]))
    assert "this machine" in local
    assert recorded_body(RESOURCES[address("host.a")])["member_of"] is None


def test_history_has_the_newest_first() -> None:
    text = shown(history_text(RUNS)).splitlines()
    assert text[1].split()[:3] == ["41", "destroy", "running"]
    assert text[2].split()[-2:] == ["3f2a91c", "7"]
    body = history_body(RUNS)
    assert [run["serial"] for run in body["runs"]] == [41, 40]
    assert body["runs"][0]["finished_at"] is None
    assert body["runs"][1]["finished_at"] == "2026-11-28T09:12:00Z"
    assert "nothing was applied yet" in shown(history_text([]))


def test_keys_say_whose_they_are() -> None:
    signers = {"ops": "ed25519:a", "ci": "ed25519:b"}
    mine = shown(key_list_text(signers, key_epoch=2, mine="ed25519:a"))
    assert "key epoch 2 · 2 signers" in mine
    assert "this machine's" in mine
    assert "not in the set" in shown(key_list_text(signers, key_epoch=2, mine="ed25519:c"))
    assert "not in the set" not in shown(key_list_text(signers, key_epoch=2))
    assert [key["mine"] for key in key_list_body(signers, key_epoch=2, mine="ed25519:a")["signers"]] == [False, True]


def test_doctor_ends_with_a_verdict() -> None:
    good, bad = Check("python", "pass", "3.11"), Check("disk", "fail", "full", "free some", host="a")
    careful = Check("systemd", "warn", "none", "nothing survives a reboot")
    assert shown(checks_text([good])).splitlines()[-1] == "ready"
    assert shown(checks_text([good, careful])).splitlines()[-1] == "ready, 1 warning"
    text = shown(checks_text([good, bad, careful]))
    assert text.splitlines()[-1] == "not ready: 1 blocker, 1 warning"
    assert "full; free some" in text
    assert "HOST" in text


def test_endpoints_come_with_a_line_to_try() -> None:
    one = Endpoint("a", "http://127.0.0.1:8080/v1", "ai.internal", "chat", "chat", False, "curl http://…")
    text = shown(endpoints_text([one, replace(one, needs_key=True, curl="")]))
    assert str(trial_text([one])) == "\ntry: curl http://…"
    assert trial_text([]) is None
    assert "API key" in text
    assert "open" in text
    assert "nothing is served" in shown(endpoints_text([]))
    assert endpoints_body([one])["endpoints"][0]["model"] == "chat"


def test_times_are_utc() -> None:
    run = replace(RUNS[0], started_at=datetime(2026, 1, 1, tzinfo=UTC))
    assert "2026-01-01T00:00:00Z" in shown(history_text([run]))

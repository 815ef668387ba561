"""Several checkouts of one fleet, the real commands: what one operator did another one goes on with, also after a kill."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.simulators.operator_world import OperatorWorld
from tests.simulators.state_server import StateServer, serving

pytestmark = pytest.mark.integration

CANARY = "canary-e0b7-admin-password"
PHRASE = "correct horse battery staple"


@pytest.fixture
def server() -> Iterator[StateServer]:
    with serving(gitlab=False, user="ops", password="let me in") as running:
        yield running


@pytest.fixture
def shared(world: OperatorWorld, server: StateServer) -> OperatorWorld:
    """A machine whose fleet keeps its state on the server, encrypted."""
    world.env = {"STATE_PASSWORD": "let me in", "STATE_PHRASE": PHRASE, "ADMIN": CANARY, "USER": "amy"}
    world.config["fleet"] = {
        "name": "shared",
        "state": {
            "backend": "http",
            "address": server.url(),
            "username": "ops",
            "password": "env:STATE_PASSWORD",
            "encryption": {"passphrase": "env:STATE_PHRASE"},
        },
    }
    world.config["proxy"]["admin"]["password"] = "env:ADMIN"
    return world


def another_checkout(world: OperatorWorld, name: str) -> None:
    """What `git clone` would give: everything beside sb.yml but `.sbctl`."""
    target = world.root / name
    shutil.copytree(world.fleet, target, ignore=shutil.ignore_patterns(".sbctl"))
    world.fleet = target


def unlocked(world: OperatorWorld, server: StateServer) -> None:
    """Take the lock of a killed run, by the id that the refusal names."""
    holder = server.place().holder
    if holder is None:
        return
    refused = world.sbctl("apply", "--yes", expect=6)
    assert f"sbctl state unlock {holder['ID']}" in refused.text
    assert "amy@" in refused.text
    world.sbctl("state", "unlock", "not-this-one", expect=6)
    world.sbctl("state", "unlock", holder["ID"], expect=0)


def test_a_killed_run_is_gone_on_with_from_another_checkout(shared: OperatorWorld, server: StateServer) -> None:
    boundary = 3
    for number in range(40):
        killed = shared.sbctl("apply", "--yes", env={"SBCTL_TESTING": "1", "SBCTL_CRASH_AT": str(boundary)})
        if killed.code == 0:
            break
        assert killed.code == -9
        another_checkout(shared, f"checkout{number}")
        shared.sbctl("plan", expect=2)
        unlocked(shared, server)
        boundary += 14
    shared.sbctl("apply", "--yes", expect=0)
    assert number >= 2, "the kills were to hit the middle"
    another_checkout(shared, "judge")
    shared.check_settled()
    assert shared.answers()
    assert len(shared.running("main serve")) == 1
    assert len(shared.running("--model")) == 1
    history = shared.sbctl("state", "history", "--format", "json", expect=0).json()
    statuses = [run["status"] for run in history["runs"]]
    assert statuses.count("interrupted") >= 2
    assert server.place().holder is None

    # Secrets are in no document, and nothing readable is.
    for document in server.place().documents:
        for secret in (CANARY, PHRASE, "let me in", "llama-server", "runtime"):
            assert secret.encode() not in document
    for file in (shared.fleet / ".sbctl").iterdir():
        for secret in (CANARY, PHRASE, "let me in"):
            assert secret.encode() not in file.read_bytes()

    # A rollback needs only what was shared, and a destroy not even sb.yml.
    shared.deployments["chat"]["max_concurrency"] = 3
    shared.sbctl("apply", "--yes", expect=0)
    another_checkout(shared, "back")
    shared.sbctl("rollback", "--yes", expect=0)
    shared.sbctl("plan", expect=2)
    shared.file.unlink()
    shared.sbctl("destroy", "--yes", save=False, expect=0)
    assert shared.running("serve") == []
    assert not [path for path in shared.leftovers() if path.endswith((".json", ".db"))]


def test_the_state_moves_and_gets_other_keys_with_everybody_following(
    shared: OperatorWorld, server: StateServer
) -> None:
    state = shared.config["fleet"].pop("state")
    shared.sbctl("apply", "--yes", expect=0)
    shared.config["fleet"]["state"] = state
    refused = shared.sbctl("plan", expect=4)
    assert "sbctl state migrate" in refused.text
    shared.sbctl("state", "migrate", expect=0)
    shared.sbctl("plan", expect=0)
    shared.sbctl("state", "migrate", expect=3)
    first = shared.fleet
    another_checkout(shared, "bob")
    shared.sbctl("plan", expect=0)

    # Other keys
    recipient = shared.sbctl("state", "recipient", "--generate", expect=0).out.strip()
    assert shared.sbctl("state", "recipient", expect=0).out.strip() == recipient
    state["encryption"] = {"recipients": [recipient]}
    shared.sbctl("plan", expect=4)
    shared.sbctl("state", "rekey", "--old-passphrase", "env:STATE_PHRASE", expect=0)
    shared.sbctl("plan", expect=0)
    shared.env.pop("STATE_PHRASE")
    shared.fleet = first
    shared.sbctl("plan", expect=0)

    # A pulled document is sealed too, and goes back in
    pulled = shared.sbctl("state", "pull", expect=0)
    assert pulled.json()["format"] == "sbctl.sealed"
    assert json.loads(shared.sbctl("state", "pull", "--decrypt", expect=0).out)["format"] == "sbctl.state"
    (shared.fleet / "pulled.json").write_text(pulled.out)
    shared.sbctl("state", "push", "pulled.json", expect=0)
    shared.sbctl("state", "unlock", expect=0)

    # To another address, and home again
    old = dict(state)
    state["address"] = server.url("/other")
    shared.sbctl("state", "migrate", expect=0)
    shared.sbctl("plan", expect=0)
    state["address"] = old["address"]
    another_checkout(shared, "late")
    late = shared.sbctl("plan", expect=4)
    assert server.url("/other") in late.text
    shared.fleet = first
    shared.config["fleet"].pop("state")
    shared.sbctl("plan", expect=4)
    shared.config["fleet"]["state"] = {"backend": "local"}
    state["address"] = server.url("/other")
    shared.sbctl("state", "migrate", expect=0)
    shared.sbctl("plan", expect=0)
    shared.sbctl("state", "mv", "deployment.local/chat", "deployment.local/talk", expect=0)
    shared.sbctl("plan", expect=2)
    shared.sbctl("state", "mv", "deployment.local/talk", "deployment.local/chat", expect=0)
    shared.sbctl("destroy", "--yes", expect=0)


def test_a_server_that_is_away_is_said_before_anything_is_changed(shared: OperatorWorld, server: StateServer) -> None:
    server.fail(*[("*", "500")] * 20)
    refused = shared.sbctl("apply", "--yes", expect=7)
    assert "the shared state cannot be reached" in refused.text
    server.faults.clear()
    shared.env["STATE_PASSWORD"] = "wrong"
    assert "fleet.state.password" in shared.sbctl("plan", expect=4).text
    assert shared.leftovers() == []

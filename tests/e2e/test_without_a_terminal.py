"""Nothing ever waits for a terminal that is not there: what would ask ends with 4 and says so, what never asks does its work.

The commands run in a session without a terminal and with an input that stays open and silent, as CI runners leave it; then with a terminal
and `CI` set, as other runners do.
"""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

PATIENCE_S = 120
PIN = "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDMt8CKiKMCbvtCd0c"

ASKING: dict[str, tuple[tuple[str, ...], str]] = {
    "apply": (("apply",), "apply.not_confirmed"),
    "rollback": (("rollback",), "apply.not_confirmed"),
    "destroy": (("destroy",), "apply.not_confirmed"),
    "host forget": (("host", "forget", "local"), "apply.not_confirmed"),
    "host forget --lost": (("host", "forget", "local", "--lost"), "apply.not_confirmed"),
    "state rm": (("state", "rm", "origin.local/localhost"), "apply.not_confirmed"),
}
"""On a fleet that is applied, with a change in sb.yml."""

LOGGING_IN: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "a sudo password": (("plan",), {"become": {"method": "sudo", "password": "prompt"}}, "secret.no_terminal"),
    "the same, for apply --yes": (("apply", "--yes"), {"become": {"method": "sudo", "password": "prompt"}}, "secret.no_terminal"),
    "host facts": (("host", "facts", "far"), {"become": {"method": "sudo", "password": "prompt"}}, "secret.no_terminal"),
    "host exec": (("host", "exec", "far", "--", "true"), {"become": {"method": "sudo", "password": "prompt"}}, "secret.no_terminal"),
    "a passphrase": (("plan",), {"identity_file": "id", "passphrase": "prompt"}, "secret.no_terminal"),
    "host trust": (("host", "trust", "far"), {}, "pin.nobody_to_ask"),
    "host trust --yes": (("host", "trust", "far", "--yes"), {}, "pin.blind"),
    "host shell": (("host", "shell", "far"), {}, "shell.no_terminal"),
}  # fmt: skip
"""On a new fleet of one host over SSH, with these settings of `fleet.ssh`."""

NEVER_ASKING: tuple[tuple[tuple[str, ...], int], ...] = (
    (("cluster", "init"), 0),
    (("cluster", "rotate", "authority"), 0),
    (("cluster", "revoke", "authority"), 0),
    (("cluster", "rotate", "--ca"), 0),
    (("key", "rotate"), 0),
    (("key", "add", "ci", "ed25519:X2DtgUONaBvhHx4VZV91jpwRnCpeYVfKuPg2J1bR6kI="), 0),
    (("key", "remove", "ci"), 0),
    (("state", "push", "pulled.json"), 3),
    (("state", "push", "--force", "pulled.json"), 0),
    (("state", "migrate"), 3),
    (("state", "rekey"), 3),
)
"""What these change is undone by their opposites, so they have no question. 3: an older document, or nothing to do."""


def silently(world: OperatorWorld, *arguments: str) -> tuple[int, str]:
    """No terminal anywhere, and an input on which nothing ever comes."""
    world.save()
    reading, writing = os.pipe()
    try:
        done = subprocess.run(
            [SBCTL, *arguments],
            cwd=world.fleet,
            env=world.environ(CI="true"),
            stdin=reading,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            timeout=PATIENCE_S,
            check=False,
        )
    finally:
        os.close(reading)
        os.close(writing)
    return done.returncode, done.stdout.decode()


def on_a_runner_s_terminal(world: OperatorWorld, *arguments: str) -> tuple[int, str]:
    """A terminal for all three streams, nobody at it, and `CI` set."""
    world.save()
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [SBCTL, *arguments],
        cwd=world.fleet,
        env=world.environ(CI="true", TERM="dumb"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
    )
    os.close(theirs)
    seen = b""
    with contextlib.suppress(OSError):
        while part := os.read(ours, 65536):
            seen += part
    os.close(ours)
    return process.wait(PATIENCE_S), seen.decode()


WAYS = (silently, on_a_runner_s_terminal)


@pytest.mark.parametrize("command", ASKING)
@pytest.mark.parametrize("way", WAYS)
def test_what_would_ask_before_it_changes_something_ends(changing: OperatorWorld, command: str, way: Any) -> None:
    arguments, code = ASKING[command]
    if command == "rollback":
        arguments = ("rollback", str(changing.sbctl("state", "list", "--format", "json", expect=0).json()["serial"]))
        changing.deployments["chat"]["max_concurrency"] = 5
        changing.sbctl("apply", "--yes", expect=0)
    changing.deployments["chat"]["max_concurrency"] = 7
    before = changing.sbctl("state", "pull", expect=0).out
    ended, said = way(changing, *arguments)
    assert ended == 4, said
    assert f"error[{code}]" in said
    assert "there is no terminal to ask at" in " ".join(said.split())
    assert changing.sbctl("state", "pull", expect=0).out == before


@pytest.fixture
def far(world: OperatorWorld) -> OperatorWorld:
    """A host over SSH where nothing listens."""
    world.config["fleet"] = {
        "ssh": {"user": "ops", "port": 1},
        "hosts": {"far": {"address": "127.0.0.1", "host_key": PIN}},
    }
    (world.fleet / "id").write_text(
        "-----BEGIN OPENSSH PRIVATE KEY-----\nencrypted\n-----END OPENSSH PRIVATE KEY-----\n"
    )
    (world.fleet / "id").chmod(0o600)
    return world


@pytest.mark.parametrize("case", LOGGING_IN)
@pytest.mark.parametrize("way", WAYS)
def test_what_would_ask_to_log_in_ends(far: OperatorWorld, case: str, way: Any) -> None:
    arguments, settings, code = LOGGING_IN[case]
    far.config["fleet"]["ssh"] |= settings
    if code.startswith("pin."):
        far.config["fleet"]["hosts"]["far"].pop("host_key")
    ended, said = way(far, *arguments)
    assert f"error[{code}]" in said, said
    assert ended == 4
    assert far.leftovers() == []


@pytest.mark.parametrize("arguments", [("apply",), ("apply", "--yes"), ("plan", "--out", "next.plan", "--yes"), ("bundle", "export", "--out", "b.json")])  # fmt: skip
@pytest.mark.parametrize("way", WAYS)
def test_no_key_is_made_under_CI(world: OperatorWorld, arguments: tuple[str, ...], way: Any) -> None:
    ended, said = way(world, *arguments)
    assert ended == 4, said
    assert not (world.home / ".config" / "sbctl" / "keys").exists()


@pytest.fixture(scope="module")
def own() -> Iterator[OperatorWorld]:
    """A fleet that is applied, for what changes its keys."""
    with new_world() as made:
        made.sbctl("apply", "--yes", expect=0)
        (made.fleet / "pulled.json").write_text(made.sbctl("state", "pull", expect=0).out)
        made.config["fleet"] = {"identity": {"directory": "./cluster"}}
        yield made


def test_what_never_asks_does_its_work(own: OperatorWorld) -> None:
    for arguments, code in NEVER_ASKING:
        ended, said = silently(own, *arguments)
        assert ended == code, f"{arguments}: {said}"

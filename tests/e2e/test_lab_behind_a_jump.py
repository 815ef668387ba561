"""A host that only a jump reaches, with a login that becomes root by a password: applied, repaired and taken away like any other."""

from __future__ import annotations

import base64
import shlex
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.fixture import SUDO_PASSWORD, Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(600)]

SEARCH = """
import base64, glob, os
word = base64.b64decode("WORD")
places = ["/proc/[0-9]*/cmdline", "/proc/[0-9]*/environ"]
places += [f"{top}/**" for top in ("/etc/sbctl", "/var/lib/sbctl", "/home", "/root", "/tmp", "/var/tmp", "/run")]
found = []
for place in places:
    for path in glob.iglob(place, recursive=True, include_hidden=True):
        try:
            if os.path.isfile(path) and word in open(path, "rb").read():
                found.append(path)
        except OSError:
            pass
print(found)
"""

OURS = "/etc/sbctl /opt/sbctl /var/lib/sbctl /var/cache/sbctl"


@pytest.fixture(scope="module")
def hidden(lab: Lab) -> Iterator[LabHost]:
    """h3; its siblings reach it, this machine does not."""
    host = lab.hosts[2]
    lab.pristine(host)
    lab.hide(host)
    yield host
    lab.show(host)
    lab.pristine(host)


@pytest.fixture(scope="module")
def fleet(lab: Lab, hidden: LabHost) -> Iterator[OperatorWorld]:
    jump = lab.hosts[0]
    with new_world() as world:
        world.env = {"SUDO_PASSWORD": SUDO_PASSWORD}
        deployment = {"model": "smollm2-135m-instruct", "variant": "q4_1", "pull": "on_boot", "warm": True}
        world.config = {
            "fleet": {
                "name": "lab",
                "ssh": {
                    "user": "pw",
                    "identity_file": hidden.identity_file,
                    "become": {"method": "sudo", "password": "secret:sudo"},
                    "jump": "bastion",
                    "jumps": {"bastion": {"address": jump.address, "user": "ops", "host_key": jump.fingerprint}},
                },
                "defaults": {"delivery": "push"},
                "hosts": {hidden.name: {"address": hidden.address, "host_key": hidden.fingerprint}},
            },
            "secrets": {"sudo": "env:SUDO_PASSWORD"},
            "proxy": {
                "http_bind_port": 8080,
                "model_host": {"shutdown_deadline_ms": 3000, "deployments": {"chat": deployment}},
            },
            "origins": {"ai.internal": {"action": world.serving(chat=["small"])}},
        }
        world.sbctl("apply", "--yes", expect=0)
        yield world


def _look(lab: Lab, hidden: LabHost, command: str) -> str:
    """From outside, as root, while the host is hidden from everybody but its siblings."""
    lab.show(hidden)
    try:
        return hidden.ssh(command, check=False)
    finally:
        lab.hide(hidden)


def test_what_was_applied_through_the_jump_serves_and_has_nothing_to_change(
    fleet: OperatorWorld, lab: Lab, hidden: LabHost
) -> None:
    fleet.sbctl("plan", expect=0)
    fleet.sbctl("drift", expect=0)
    ask = (
        "curl -s http://127.0.0.1:8080/v1/chat/completions -H 'Host: ai.internal' -H 'content-type: application/json'"
        """ -d '{"model": "small", "max_tokens": 2, "messages": [{"role": "user", "content": "Hi"}]}'"""
    )
    assert '"choices"' in _look(lab, hidden, ask)


def test_the_password_is_nowhere_in_files_arguments_or_logs_of_either_side(
    fleet: OperatorWorld, lab: Lab, hidden: LabHost
) -> None:
    word = base64.b64encode(SUDO_PASSWORD.encode()).decode()
    program = SEARCH.replace("WORD", word)
    assert _look(lab, hidden, f"python3 -I -c {shlex.quote(program)}") == "[]\n"
    assert SUDO_PASSWORD not in _look(lab, hidden, "journalctl -b --no-pager")
    done = subprocess.run(
        ["grep", "-rl", SUDO_PASSWORD, str(fleet.root)], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout == ""


def test_without_the_password_the_plan_names_what_to_set(fleet: OperatorWorld) -> None:
    fleet.env = {}
    try:
        said = fleet.sbctl("plan", expect=7).text
    finally:
        fleet.env = {"SUDO_PASSWORD": SUDO_PASSWORD}
    assert "SUDO_PASSWORD" in said


def test_destroy_finds_the_way_by_what_was_recorded(fleet: OperatorWorld, lab: Lab, hidden: LabHost) -> None:
    (fleet.fleet / "sb.yml").rename(fleet.fleet / "elsewhere.yml")
    fleet.sbctl("destroy", "--yes", expect=0)
    assert _look(lab, hidden, f"ls -d {OURS} 2>/dev/null; true") == ""

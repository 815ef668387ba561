"""`host trust|list|facts|exec|shell` on real hosts behind a jump, with a person at a terminal where one is needed."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from sbctl.config.host_lock import read_host_lock
from tests.lab.fixture import Lab
from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

WAIT_S = 90.0


@pytest.fixture(scope="module")
def world(lab: Lab) -> Iterator[OperatorWorld]:
    """h2 and h3, which only the bastion h1 reaches; nothing is pinned yet."""
    bastion, *hidden = lab.hosts
    for host in hidden:
        lab.hide(host)
    try:
        with new_world() as running:
            running.config["fleet"] = {
                "ssh": {
                    "user": "root",
                    "identity_file": bastion.identity_file,
                    "jump": "bastion",
                    "jumps": {"bastion": {"address": bastion.address}},
                },
                "hosts": {host.name: {"address": host.address} for host in hidden},
            }
            running.save()
            yield running
    finally:
        for host in hidden:
            lab.show(host)


class Terminal:
    """A command at a terminal of its own, and a person who reads it."""

    def __init__(self, world: OperatorWorld, *arguments: str) -> None:
        self.shown = ""
        self._master, slave = pty.openpty()
        self._process = subprocess.Popen(
            [SBCTL, *arguments],
            cwd=world.fleet,
            env={**world.environ(), "TERM": "dumb", "COLUMNS": "110"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            close_fds=True,
        )
        os.close(slave)

    def until(self, text: str) -> str:
        """What was shown since the last call, up to `text`."""
        end_s = time.monotonic() + WAIT_S
        while text not in self.shown:
            assert time.monotonic() < end_s, self.shown
            if not self._read(1.0) and self._process.poll() is not None:
                raise AssertionError(f"it ended: {self.shown}")
        before, found, self.shown = self.shown.partition(text)
        return before + found

    def say(self, line: str) -> None:
        os.write(self._master, line.encode() + b"\n")

    def end(self) -> tuple[int, str]:
        """The exit code, and what was shown since."""
        end_s = time.monotonic() + WAIT_S
        while self._process.poll() is None or self._read(0.2):
            assert time.monotonic() < end_s, self.shown
            self._read(0.2)
        os.close(self._master)
        return int(self._process.returncode), self.shown

    def _read(self, seconds: float) -> bool:
        if not select.select([self._master], [], [], seconds)[0]:
            return False
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.shown += data.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(data)


def test_E1_nothing_lies_behind_a_jump_that_is_not_pinned(world: OperatorWorld) -> None:
    done = world.sbctl("host", "trust", "h2", "--yes", "--fingerprint", "SHA256:" + "a" * 43, expect=7, save=False)
    assert "sbctl host trust bastion" in done.text
    assert not (world.fleet / "sb.hosts.lock").exists()


def test_a_person_compares_fingerprints_and_pins_the_jump_first(world: OperatorWorld, lab: Lab) -> None:
    terminal = Terminal(world, "host", "trust", "--all")
    for host, name in zip(lab.hosts, ("bastion", "h2", "h3"), strict=True):
        shown = terminal.until(f"Pin this key for {name}? (y/N) ")
        assert host.fingerprint in shown
        assert host.address in shown
        terminal.say("n" if name == "h3" else "y")
    code, shown = terminal.end()
    assert code == 4, shown
    lock = read_host_lock(world.fleet / "sb.hosts.lock")
    assert lock.pins("bastion") == (lab.hosts[0].host_key,)
    assert lock.pins("h2") == (lab.hosts[1].host_key,)
    assert lock.pins("h3") == ()


def test_a_known_hosts_file_pins_the_rest(world: OperatorWorld, lab: Lab) -> None:
    file = world.root / "known_hosts"
    file.write_text(f"{lab.hosts[2].address} {lab.hosts[2].host_key}\n")
    if Path("/usr/bin/ssh-keygen").exists():
        subprocess.run(["/usr/bin/ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    world.sbctl("host", "trust", "h3", "--from", str(file), "--yes", expect=0, save=False)
    assert read_host_lock(world.fleet / "sb.hosts.lock").pins("h3") == (lab.hosts[2].host_key,)
    world.sbctl("host", "trust", "h3", "--yes", "--fingerprint", lab.hosts[2].fingerprint, expect=0, save=False)


def test_list_tells_who_answers(world: OperatorWorld) -> None:
    hosts = world.sbctl("host", "list", "--check", "--format", "json", expect=0, save=False).json()["hosts"]
    assert [(host["name"], host["pinned"], host["reachable"], host["jumps"]) for host in hosts] == [
        ("h2", True, True, ["bastion"]),
        ("h3", True, True, ["bastion"]),
    ]


def test_facts_and_commands_of_every_host(world: OperatorWorld) -> None:
    facts = world.sbctl("host", "facts", "h[2-3]", "--format", "json", expect=0, save=False).json()["hosts"]
    assert {name: each["host"]["init"] for name, each in facts.items()} == {
        "h2": "systemd_system",
        "h3": "systemd_system",
    }
    done = world.sbctl(
        "host", "exec", "h*", "--", "sh", "-c", 'test -e /etc/hostname && echo "it\'s $0"', "a b", expect=0, save=False
    )
    assert sorted(done.out.splitlines()) == ["h2 | it's a b", "h3 | it's a b"]
    done = world.sbctl("host", "exec", "h*", "--timeout", "5", "--", "sleep", "600", expect=7, save=False)
    assert "did not answer within 5 s" in done.text


def test_a_shell_by_the_systems_ssh_through_the_jump(world: OperatorWorld, lab: Lab) -> None:
    terminal = Terminal(world, "host", "shell", "h2")
    terminal.say("echo marker-$((40+2)) $SSH_CONNECTION")
    assert f"marker-42 {lab.hosts[0].address} " in terminal.until(f" {lab.hosts[1].address} 22")
    terminal.say("exit 3")
    code, _ = terminal.end()
    assert code == 0


def test_E2_a_shell_goes_to_nobody_else(world: OperatorWorld, lab: Lab) -> None:
    lock = world.fleet / "sb.hosts.lock"
    before = lock.read_text()
    (h3,) = [line for line in before.splitlines() if line.startswith("h3 ")]
    other = " ".join(["h2", *h3.split()[1:]])
    lock.write_text("\n".join(other if line.startswith("h2 ") else line for line in before.splitlines()) + "\n")
    try:
        terminal = Terminal(world, "host", "shell", "h2")
        code, shown = terminal.end()
        assert code == 7
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in shown
    finally:
        lock.write_text(before)

"""A fleet's whole life over SSH, by the real `sbctl` with the real engine: bare hosts behind a bastion that nobody manages.

h1 (root, the site's relay)  h2 (sudo)  h3 (sudo with a password)     reached through h4 only
trusted ► applied ► served ► repaired ► one given up and taken in again, with and without its weights ► one lost and come back
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from sbctl.base.digests import sha256_bytes
from sbctl.base.secret import Secret
from sbctl.trust.keys import SigningKey
from tests.lab.fixture import ROOT, SUDO_PASSWORD, Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world, until
from tests.simulators.secret_search import search_program
from tests.simulators.secret_watch import SecretWatch

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(900)]

MODEL = {"model": "smollm2-135m-instruct", "variant": "q4_1", "pull": "on_boot", "warm": True}
KEY, PASSWORD, PASSPHRASE = "canary-4p1-k3y-91c4", "canary-4dm1n-p4ssw0rd-2b7e", "canary-p4ssphr4se-c03d"
SECRETS = (KEY, PASSWORD, PASSPHRASE, SUDO_PASSWORD)
UNIT = "/etc/systemd/system/sbctl-runtime.service"
ASKED = {"model": "small", "max_tokens": 12, "temperature": 0}
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
LOOK = """# find us
import glob, os, pwd, json, subprocess
found = []
ids = IDS
for folder, folders, files in os.walk("/"):
    folders[:] = [one for one in folders if os.path.join(folder, one) not in ("/proc", "/sys", "/dev")]
    for name in (*folders, *files):
        path = os.path.join(folder, name)
        try:
            status = os.lstat(path)
        except OSError:
            continue
        if "sbctl" in name and "sbctl-lab" not in name or status.st_uid in ids or status.st_gid in ids:
            found.append(path)
for path in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        line = open(path, "rb").read()
    except OSError:
        continue
    if b"find us" not in line and (b"/opt/sbctl" in line or b"llama" in line):
        found.append(line.replace(b"\\0", b" ").decode())
found += [one.pw_name for one in pwd.getpwall() if "sbctl" in one.pw_name]
units = ["systemctl", "list-units", "--all", "--plain", "--no-legend", "sbctl*"]
found += [line for line in subprocess.run(units, capture_output=True, text=True).stdout.splitlines() if "sbctl-lab" not in line]
print(json.dumps(found))
"""
"""Everything on a host that has our name, runs from our directories, or belongs to one of the numbers our accounts had."""


@dataclass
class Site:
    """The fleet, and a way to look at its hosts from where the bastion stands."""

    world: OperatorWorld
    lab: Lab
    before: dict[str, set[str]]
    accounts: dict[str, list[int]]
    """Numbers of our users and groups on each host, once it was applied."""
    watch: SecretWatch

    @property
    def bastion(self) -> LabHost:
        return self.lab.bastion

    @property
    def entries(self) -> dict[str, Any]:
        """`fleet.hosts`."""
        found: dict[str, Any] = self.world.config["fleet"]["hosts"]
        return found

    def look(self, host: LabHost, command: str) -> str:
        return host.ssh(command, sibling=self.bastion, check=False)

    def learn_accounts(self) -> None:
        for host in self.lab.hosts:
            told = self.look(host, "for name in sbctl sbctl-engine; do id -u $name; id -g $name; done").split()
            assert len(told) == 4, told
            self.accounts[host.name] = sorted({int(number) for number in told})

    def left(self, host: LabHost) -> set[str]:
        """What an apply left there, beyond what the lab has itself."""
        return _traces(host, self.bastion, self.accounts[host.name]) - self.before[host.name]

    def answer(self, host: LabHost) -> str:
        """A completion of the real model, or what came instead."""
        body = json.dumps({**ASKED, "messages": QUESTION})
        headers = ("Host: ai.internal", "Content-Type: application/json", f"Authorization: Bearer {KEY}")
        curl = ("curl", "-sS", "-m", "120", *(part for header in headers for part in ("-H", header)), "-d", body)
        done = subprocess.run(
            [*self.bastion.network(), *curl, f"http://{host.address}:8080/v1/chat/completions"],
            capture_output=True, text=True, check=False, timeout=150,
        )  # fmt: skip
        try:
            return str(json.loads(done.stdout)["choices"][0]["message"]["content"])
        except (ValueError, KeyError):
            return f"{done.stdout}{done.stderr}"

    def processes(self, host: LabHost) -> str:
        """Runtime and engine with their numbers."""
        return self.look(host, "ps -u sbctl,sbctl-engine -o pid=,user=,comm= | sort")

    def serves(self, *hosts: LabHost) -> None:
        for host in hosts:
            said = self.answer(host)
            if "Paris" not in said:
                until(lambda host=host: "Paris" in self.answer(host), f"{host.name} answers; at first: {said}")  # type: ignore[misc]

    def settled(self) -> None:
        self.world.sbctl("plan", expect=0)
        self.world.sbctl("drift", expect=0)


def _traces(host: LabHost, bastion: LabHost, accounts: Sequence[int] = ()) -> set[str]:
    found = host.ssh(
        f"python3 -I -c {shlex.quote(LOOK.replace('IDS', str(list(accounts))))}", sibling=bastion, timeout_s=120
    )
    return set(json.loads(found))


@pytest.fixture(scope="module")
def bare(lab: Lab) -> Iterator[Lab]:
    for host in lab.hosts:
        lab.pristine(host)
        lab.hide(host)
    yield lab
    for host in lab.hosts:
        lab.show(host)
        lab.pristine(host)


@pytest.fixture(scope="module")
def site(bare: Lab) -> Iterator[Site]:
    """Trusted and given an authority; nothing is applied yet."""
    (first, second, third), bastion = bare.hosts, bare.bastion
    with new_world() as world:
        key = world.root / "operator.pem"
        key.write_bytes(SigningKey.generate().to_pem(Secret(PASSPHRASE.encode())).reveal())
        key.chmod(0o600)
        world.env = {
            "SUDO_PASSWORD": SUDO_PASSWORD,
            "ADMIN_PASSWORD": PASSWORD,
            "SBCTL_SIGNING_KEY_FILE": str(key),
            "SBCTL_SIGNING_KEY_PASSPHRASE": PASSPHRASE,
        }
        ssh = {"user": "root", "identity_file": first.identity_file, "jump": "bastion",
               "jumps": {"bastion": {"address": bastion.address, "user": "ops"}}}  # fmt: skip
        with_password = {"user": "pw", "become": {"method": "sudo", "password": "secret:sudo"}}
        world.config = {
            "fleet": {
                "name": "site",
                "identity": {"directory": "./cluster"},
                "ssh": ssh,
                "defaults": {"delivery": "push", "relay": first.name},
                "update": {"max_unavailable": 1, "canary": first.name},
                "api_keys": {"app": {"sha256": sha256_bytes(KEY.encode()), "models": ["small"]}},
                "hosts": {
                    first.name: {"address": first.address},
                    second.name: {"address": second.address, "ssh": {"user": "deploy", "become": "sudo"}},
                    third.name: {"address": third.address, "ssh": with_password, "keep": ["weights"]},
                },
            },
            "secrets": {"sudo": "env:SUDO_PASSWORD", "admin": "env:ADMIN_PASSWORD"},
            "proxy": {
                "http_bind_port": 8080,
                "bind_address": "0.0.0.0",
                "admin": {"enabled": True, "port": 9090, "password": "secret:admin"},
                "model_host": {"shutdown_deadline_ms": 3000, "deployments": {"chat": dict(MODEL)}},
            },
            "origins": {"ai.internal": {"action": world.serving(chat=["small"])}},
        }
        before = {host.name: _traces(host, bastion) for host in (*bare.hosts, bare.bastion)}
        words = [word.encode() for word in SECRETS]
        # Hosts are namespaces of this machine, so its process list has theirs.
        with SecretWatch(words, _of_the_product, every_s=0.5) as watch:
            yield Site(world, bare, before, {bastion.name: []}, watch)


def _of_the_product() -> list[psutil.Process]:
    """What this test runs and what its hosts run; the asking client has the caller's key by right."""
    found = []
    for root in (os.getpid(), *(int(path.read_text()) for path in ROOT.glob("h[0-9]*/pid"))):
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(root).children(recursive=True)
    return [process for process in found if _name(process) not in ("curl", "ip", "")]


def _name(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return process.name()
    return ""


@pytest.fixture(scope="module")
def applied(site: Site) -> Site:
    world = site.world
    refused = world.sbctl("plan", expect=3)
    assert "host trust" in refused.text, refused.text
    known = Path(ROOT / "known_hosts")
    world.sbctl("host", "trust", "--all", "--from", str(known), "--yes", expect=0)
    world.sbctl("cluster", "init", "--cluster-id", "site", expect=0)
    world.sbctl("apply", "--yes", expect=0)
    site.learn_accounts()
    return site


def test_bare_hosts_behind_a_bastion_serve_after_one_apply_and_the_second_plan_is_empty(applied: Site) -> None:
    hosts = applied.lab.hosts
    applied.serves(*hosts)
    applied.settled()
    assert applied.world.sbctl("state", "list", expect=0).out.count("certificate.") == 3
    assert applied.left(applied.bastion) == set()


def test_a_unit_edited_by_hand_is_drift_of_that_host_and_repaired_without_ending_an_engine(applied: Site) -> None:
    hosts = applied.lab.hosts
    edited, others = hosts[1], (hosts[0], hosts[2])
    before = {host.name: applied.processes(host) for host in hosts}
    engines = applied.look(edited, "pgrep -u sbctl-engine | sort")
    applied.look(edited, f"sed -i 's/^Restart=.*/Restart=no/' {UNIT}")
    drift = applied.world.sbctl("drift", expect=2)
    assert f"runtime.{edited.name}" in drift.out
    assert not any(f"runtime.{host.name}" in drift.out for host in others)
    applied.world.sbctl("apply", "--yes", expect=0)
    applied.settled()
    assert "Restart=no" not in applied.look(edited, f"cat {UNIT}")
    assert applied.look(edited, "pgrep -u sbctl-engine | sort") == engines != ""
    assert all(applied.processes(host) == before[host.name] for host in others)
    applied.serves(*hosts)


def test_a_host_that_leaves_sb_yml_is_clean_and_kept_weights_are_roots_and_used_again(applied: Site) -> None:
    world, given_up = applied.world, applied.lab.hosts[2]
    others = applied.lab.hosts[:2]
    before = {host.name: applied.processes(host) for host in others}
    entry = applied.entries.pop(given_up.name)
    assert "the weights in the cache are kept" in world.sbctl("plan", expect=2).text
    world.sbctl("apply", "--yes", expect=0)
    applied.settled()
    left = applied.left(given_up)
    assert left == {"/var/cache/sbctl"}, left
    kept = applied.look(given_up, "find /var/cache/sbctl -printf '%U:%G %m %n %i %s %P\\n' | sort -k6")
    assert {line.split()[0] for line in kept.splitlines()} == {"0:0"}
    weights = [line for line in kept.splitlines() if "models/blobs/sha256/" in line]
    assert weights
    del entry["keep"]
    applied.entries[given_up.name] = entry
    again = world.sbctl("apply", "--yes", "--format", "json", expect=0)
    sent = [event for event in again.events() if "artifact." in str(event.get("address", "")) and event.get("total")]
    assert not sent, "weights that are there are not sent"
    applied.serves(given_up)
    now = applied.look(given_up, "find /var/cache/sbctl -printf '%U:%G %m %n %i %s %P\\n'")
    assert weights[0].split()[3] in {line.split()[3] for line in now.splitlines()}, "the same file"
    del applied.entries[given_up.name]
    world.sbctl("apply", "--yes", expect=0)
    applied.settled()
    assert applied.left(given_up) == set()
    assert all(applied.processes(host) == before[host.name] for host in others)
    applied.entries[given_up.name] = entry


def test_a_host_gone_for_good_is_forgotten_and_refused_when_it_comes_back(applied: Site) -> None:
    world, lab, dead, other = applied.world, applied.lab, applied.lab.hosts[1], applied.lab.hosts[0]
    del applied.entries[lab.hosts[2].name]
    before = applied.processes(other)
    entry = applied.entries[dead.name]
    lab.kill(dead)
    try:
        assert f"sbctl host forget {dead.name} --lost" in world.sbctl("plan", expect=7).text
        world.sbctl("host", "forget", dead.name, "--lost", "--yes", expect=0)
        del applied.entries[dead.name]
        world.sbctl("apply", "--yes", expect=0)
        applied.settled()
        assert applied.processes(other) == before, "the rest is unchanged"
        applied.serves(other)
    finally:
        lab.start(dead)
        lab.hide(dead)
    applied.entries[dead.name] = entry
    assert "was given up as lost" in world.sbctl("plan", expect=4).text
    world.sbctl("host", "forget", dead.name, "--undo", expect=0)
    world.sbctl("cluster", "rotate", dead.name, expect=0)
    world.sbctl("apply", "--yes", expect=0)
    applied.settled()
    applied.serves(dead, other)


def test_H1_no_secret_is_on_any_host_or_on_the_operators_machine(applied: Site) -> None:
    program = search_program([word.encode() for word in SECRETS])
    for host in applied.lab.hosts[:2]:
        assert f"admin:{PASSWORD}" not in applied.look(host, "systemctl show sbctl-runtime sbctl-launcher")
        found = json.loads(applied.look(host, f"python3 -I -c {shlex.quote(program)}"))
        places = {"/etc/sbctl/secrets/admin_password", "/run/credentials/sbctl-runtime.service/admin_password"}
        assert set(found) <= places, found
        assert applied.look(host, "stat -c '%a %U' /etc/sbctl/secrets/admin_password").split() == ["600", "root"]
        said = applied.look(host, "journalctl -b --no-pager -o export")
        assert len(said) > 1000
        assert not [word for word in SECRETS if word in said]
    for path in applied.world.root.rglob("*"):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            assert not [word for word in SECRETS if word.encode() in data], path
    for done in applied.world.transcript:
        assert not [word for word in SECRETS if word in f"{done.argv}{done.out}{done.err}"], done.argv
    assert applied.watch.seen > 300
    assert applied.watch.found == set()


def test_the_last_word_leaves_nothing_anywhere(applied: Site) -> None:
    applied.world.sbctl("destroy", "--yes", expect=0)
    for host in (*applied.lab.hosts, applied.bastion):
        assert applied.left(host) == set(), host.name

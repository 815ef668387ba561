"""H1: secrets go through everything sbctl does, and afterwards they are in their own 0600 file and nowhere else."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from sbctl.base.secret import Secret
from sbctl.trust.keys import SigningKey
from tests.simulators.operator_world import SHARED_CACHE, OperatorWorld
from tests.simulators.secret_watch import SecretWatch

pytestmark = pytest.mark.integration

PASSWORD = "canary-4dm1n-p4ssw0rd-8d1f"
PASSPHRASE = "canary-p4ssphr4se-71ab"
API_KEY = "canary-4p1-k3y-55e0"
PROMPT = "canary-pr0mpt-09c2"
ALL = tuple(text.encode() for text in (PASSWORD, PASSPHRASE, API_KEY, PROMPT))


def _files(*roots: Path) -> Iterator[Path]:
    for root in roots:
        for path in root.rglob("*"):
            if path.is_file() and not path.is_symlink() and "site-packages" not in path.parts:
                yield path


def _found_in(paths: Iterator[Path]) -> set[str]:
    found = set()
    for path in paths:
        with contextlib.suppress(OSError):
            data = path.read_bytes()
            if any(canary in data for canary in ALL):
                found.add(str(path))
    return found


def _chat(world: OperatorWorld, key: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", world.port, timeout=60)
    body = {"model": "tiny", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 4}
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    with contextlib.closing(connection):
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status


def test_H1_a_secret_is_in_its_own_file_and_nowhere_else(installed: OperatorWorld) -> None:
    world = installed
    key = world.root / "operator.pem"
    key.write_bytes(SigningKey.generate().to_pem(Secret(PASSPHRASE.encode())).reveal())
    key.chmod(0o600)
    world.env = {
        "CANARY_PASSWORD": PASSWORD,
        "SBCTL_SIGNING_KEY_FILE": str(key),
        "SBCTL_SIGNING_KEY_PASSPHRASE": PASSPHRASE,
    }
    world.config["proxy"]["admin"]["password"] = "secret:admin"
    world.config["secrets"] = {"admin": "env:CANARY_PASSWORD"}
    world.config["fleet"] = {
        "api_keys": {"app": {"sha256": hashlib.sha256(API_KEY.encode()).hexdigest(), "models": ["tiny"]}}
    }
    with SecretWatch(ALL, lambda: psutil.Process().children(recursive=True) + world.processes()) as watch:
        world.sbctl("plan", "--explain", expect=2)
        world.sbctl("plan", "--yes", "--out", "saved", "--format", "json", expect=2)
        world.sbctl("apply", "saved", "--format", "json", expect=0)
        assert _chat(world, API_KEY) == 200
        assert _chat(world, f"{API_KEY}-wrong") == 401
        assert world.admin("GET", "/admin/model-host/status")[0] == 200
        for command in (("plan",), ("drift", "--format", "json"), ("output",), ("state", "pull"), ("doctor", "--format", "json"),
                        ("explain", "proxy.admin.password"), ("validate", "--format", "json"),
                        ("bundle", "show", str(world.paths.bundle), "--format", "json")):  # fmt: skip
            world.sbctl(*command, expect=0)
        world.behaves(exit_at_once=3)
        world.deployments["chat"]["max_concurrency"] = 3
        world.sbctl("apply", "--yes", expect=1)
        world.deployments["chat"]["max_concurency"] = 3
        world.sbctl("plan", expect=3)
        del world.deployments["chat"]["max_concurency"]
        world.sbctl("rollback", "1", "--yes", "--format", "json")
    own = world.paths.secrets / "admin_password"
    assert own.read_text() == PASSWORD
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert _found_in(_files(world.root, SHARED_CACHE / "sbctl")) == {str(own)}
    assert watch.seen > 20
    assert watch.found == set()
    world.sbctl("destroy", "--yes", expect=0)
    assert _found_in(_files(world.root)) == set()
    for done in world.transcript:
        for canary in ALL:
            assert canary.decode() not in f"{done.argv}{done.out}{done.err}"


def test_H1_another_secret_is_a_change_and_is_shown_as_nothing_but_that(installed: OperatorWorld) -> None:
    world = installed
    world.env = {"CANARY_PASSWORD": PASSWORD}
    world.config["proxy"]["admin"]["password"] = "${CANARY_PASSWORD}"
    world.sbctl("apply", "--yes", expect=0)
    world.sbctl("plan", expect=0)
    world.env = {"CANARY_PASSWORD": f"{PASSWORD}-2"}
    planned = world.sbctl("plan", expect=2)
    assert "admin_password" in planned.text or "admin.password" in planned.text
    assert PASSWORD not in planned.text
    world.sbctl("apply", "--yes", expect=0)
    assert world.admin("GET", "/admin/model-host/status")[0] == 200
    assert (world.paths.secrets / "admin_password").read_text() == f"{PASSWORD}-2"
    world.sbctl("plan", expect=0)
    assert _found_in(_files(world.root)) == {str(world.paths.secrets / "admin_password")}
    for done in world.transcript:
        assert PASSWORD not in f"{done.out}{done.err}"

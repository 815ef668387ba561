"""Identities on a real host over SSH: made, checked by OpenSSL, re-issued, the CA taken over, destroyed without a trace; and the enrollment server
there, where a machine without SSH gets one and renews it."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world
from tests.simulators.secret_search import search_program

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

IDENTITY = "/etc/sbctl/identity"
PORT = 8443
UNIT = "sbctl-enrollment.service"


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    chosen = lab.hosts[0]
    lab.pristine(chosen)
    yield chosen
    lab.pristine(chosen)


@pytest.fixture(scope="module")
def fleet(host: LabHost) -> Iterator[OperatorWorld]:
    with new_world() as world:
        world.config = {
            "fleet": {
                "name": "lab",
                "identity": {"directory": "./cluster", "enroll": {"host": host.name, "port": PORT}},
                "ssh": {"user": "root", "identity_file": host.identity_file},
                "defaults": {"delivery": "push", "labels": {"zone": "a"}},
                "hosts": {
                    host.name: {
                        "address": host.address,
                        "host_key": host.fingerprint,
                        "roles": ["gateway", "worker", "authority"],
                    }
                },
            },
            "proxy": {"http_bind_port": 8080},
        }
        refused = world.sbctl("plan", expect=3)
        assert "sbctl cluster init" in refused.text
        made = world.sbctl("cluster", "init", "--cluster-id", "lab", "--format", "json", expect=0).json()
        assert Path(made["ca_file"]).is_file()
        world.sbctl("apply", "--yes", expect=0)
        yield world


def _openssl(world: OperatorWorld, host: LabHost, *ca: str) -> str:
    """`openssl verify` of the host's certificate against CAs of this machine."""
    directory = world.fleet / "check"
    directory.mkdir(exist_ok=True)
    (directory / "node.pem").write_text(host.ssh("cat", f"{IDENTITY}/node.pem"))
    (directory / "ca.pem").write_text("".join((world.fleet / "cluster" / name).read_text() for name in ca))
    done = subprocess.run(
        ["openssl", "verify", "-x509_strict", "-purpose", "sslserver", "-verify_hostname", "sbproxy-mesh",
         "-CAfile", str(directory / "ca.pem"), str(directory / "node.pem")],
        capture_output=True, text=True, check=False, timeout=30,
    )  # fmt: skip
    return done.stdout + done.stderr


def _row(world: OperatorWorld, host: LabHost) -> dict[str, object]:
    nodes = world.sbctl("cluster", "status", "--format", "json", expect=0).json()["nodes"]
    return next(row for row in nodes if row["node_id"] == host.name)


def test_a_host_is_issued_an_identity_that_openssl_believes(fleet: OperatorWorld, host: LabHost) -> None:
    fleet.sbctl("plan", expect=0)
    assert ": OK" in _openssl(fleet, host, "ca.pem")
    key = host.ssh("cat", f"{IDENTITY}/node-key.pem")
    owner = host.ssh("stat", "-Lc", "%a", f"{IDENTITY}/node-key.pem").strip()
    assert owner in ("600", "640"), "only root and the runtime"
    middle = key.splitlines()[1]
    found = subprocess.run(["grep", "-rlF", middle, str(fleet.fleet)], capture_output=True, text=True, check=False)
    assert found.stdout == "", "the private key is nowhere on the operator's machine"
    assert _row(fleet, host)["state"] == "valid"


def _enrolled(fleet: OperatorWorld, host: LabHost, name: str, node: Path) -> tuple[dict[str, Any], str]:
    """What `cluster enroll` made for a machine that nobody logs in to, taken into use below a prefix; and the token that it took."""
    token = fleet.sbctl("cluster", "token", "create", "--label", "site=far", expect=0).out.strip()
    out = node / "enrolled"
    words = ("--url", f"https://{host.address}:{PORT}", "--node-id", name, "--label", "site=far", "--out", str(out))
    done = fleet.sbctl("cluster", "enroll", *words, "--format", "json", env={"SBCTL_CLUSTER_TOKEN": token}, expect=0)
    assert token not in done.text
    _runtime(node, "identity", str(out))
    return done.json(), token


def _runtime(node: Path, *arguments: str, expect: int = 0) -> str:
    environ = {**os.environ, "SBCTL_NODE_PREFIX": str(node / "prefix")}
    command = [sys.executable, "-m", "sbctl.runtime.main", *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == expect, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_enrollment_server_is_a_unit_with_an_account_and_keys_of_its_own(
    fleet: OperatorWorld, host: LabHost
) -> None:
    shown = host.ssh(f"systemd-analyze security --no-pager {UNIT} | tail -2")
    score = re.search(r"exposure level for sbctl-enrollment.service: ([0-9.]+)", shown)
    assert score is not None
    assert float(score[1]) <= 2.0
    assert host.ssh("stat", "-c", "%a:%U", "/etc/sbctl/enrollment").strip() == "700:root"
    program = search_program(
        [
            (fleet.fleet / "cluster" / name).read_bytes().splitlines()[1]
            for name in ("ca-key.pem", "authority-signing.key")
        ]
    )
    assert json.loads(host.ssh(f"python3 -I -c {shlex.quote(program)}")) == []
    server = fleet.sbctl("cluster", "status", "--format", "json", expect=0).json()["enrollment_server"]
    assert (server["listen"], server["enrolled"]) == (f"0.0.0.0:{PORT}", 0)


def test_D6_D16_a_machine_without_ssh_enrolls_renews_and_is_shut_out_and_its_token_is_nowhere(
    fleet: OperatorWorld, host: LabHost, tmp_path: Path
) -> None:
    made, token = _enrolled(fleet, host, "edge-1", tmp_path)
    assert (made["node_id"], made["identity_epoch"]) == ("edge-1", 1)
    assert "not due" in _runtime(tmp_path, "renew")
    assert "renewed: edge-1" in _runtime(tmp_path, "renew", "--now")
    fleet.sbctl("plan", expect=0)
    secret = token.rpartition(".")[2]
    found = json.loads(host.ssh(f"python3 -I -c {shlex.quote(search_program([secret.encode()]))}"))
    assert found == []
    assert secret not in host.ssh("journalctl", "-b", "--no-pager", "-o", "export", "-u", UNIT)
    for path in (*fleet.root.rglob("*"), *tmp_path.rglob("*")):
        if path.is_file() and not path.is_symlink() and not path.name.startswith("out."):
            assert secret.encode() not in path.read_bytes(), path
    fleet.sbctl("cluster", "revoke", "edge-1", "--reason", "stolen", expect=0)
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("plan", expect=0)
    assert "enroll.renewal_refused" in _runtime(tmp_path, "renew", "--now", expect=4)


def test_the_enrollment_server_stopped_by_hand_is_drift(fleet: OperatorWorld, host: LabHost) -> None:
    host.ssh("systemctl", "stop", UNIT)
    assert f"enrollment.{host.name}" in fleet.sbctl("drift", expect=2).out
    fleet.sbctl("apply", "--yes", expect=0)
    assert host.ssh("systemctl", "is-active", UNIT).strip() == "active"


def test_another_label_is_another_certificate_of_the_next_epoch(fleet: OperatorWorld, host: LabHost) -> None:
    epoch = int(str(_row(fleet, host)["identity_epoch"]))
    fleet.config["fleet"]["defaults"]["labels"] = {"zone": "b"}
    planned = fleet.sbctl("plan", expect=2)
    assert "labels.zone" in planned.out
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("plan", expect=0)
    assert _row(fleet, host)["identity_epoch"] == epoch + 1
    assert ": OK" in _openssl(fleet, host, "ca.pem")


def test_the_CA_is_taken_over_with_overlap(fleet: OperatorWorld, host: LabHost) -> None:
    before = (fleet.fleet / "cluster" / "ca.pem").read_text()
    fleet.sbctl("cluster", "rotate", "--ca", expect=0)
    fleet.sbctl("apply", "--yes", expect=0)
    assert host.ssh("grep", "-c", "BEGIN", f"{IDENTITY}/ca.pem").strip() == "2"
    assert ": OK" in _openssl(fleet, host, "ca.pem")
    fleet.sbctl("apply", "--yes", expect=0)
    assert ": OK" in _openssl(fleet, host, "ca-next.pem")
    assert ": OK" not in _openssl(fleet, host, "ca.pem")
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("plan", expect=0)
    assert host.ssh("grep", "-c", "BEGIN", f"{IDENTITY}/ca.pem").strip() == "1"
    assert (fleet.fleet / "cluster" / "ca.pem").read_text() != before
    assert not (fleet.fleet / "cluster" / "ca-next-key.pem").exists()
    assert ": OK" in _openssl(fleet, host, "ca.pem")


def test_a_certificate_changed_behind_our_back_is_drift(fleet: OperatorWorld, host: LabHost) -> None:
    host.ssh("rm", f"{IDENTITY}/revocations.json")
    drift = fleet.sbctl("drift", expect=2)
    assert f"certificate.{host.name}" in drift.out
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("drift", expect=0)


def test_destroy_leaves_no_key_behind(fleet: OperatorWorld, host: LabHost) -> None:
    fleet.sbctl("destroy", "--yes", expect=0)
    assert host.ssh("ls", "-d", "/etc/sbctl", "/var/lib/sbctl*", "/opt/sbctl", check=False) == ""
    assert host.ssh("systemctl list-unit-files --no-legend 'sbctl-e*'", check=False).strip() == ""

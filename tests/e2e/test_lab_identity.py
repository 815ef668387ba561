"""Identities on a real host over SSH: made, checked by OpenSSL, re-issued, the CA taken over, destroyed without a trace."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

IDENTITY = "/etc/sbctl/identity"


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
                "identity": {"directory": "./cluster"},
                "ssh": {"user": "root", "identity_file": host.identity_file},
                "defaults": {"delivery": "push", "labels": {"zone": "a"}},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint}},
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
    assert host.ssh("ls", "-d", "/etc/sbctl", "/var/lib/sbctl", "/opt/sbctl", check=False) == ""

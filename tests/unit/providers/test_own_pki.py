"""`certificate.H` by a PKI of the user's own: files are judged before a plan, installed and replaced as changes, and fenced by epoch."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import ConfigError, SbctlError
from sbctl.plan.model import Change
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.trust.certificate_making import KeyPair, create_ca, create_request, generate_private_key, issue_leaf
from sbctl.trust.identity import IdentityClaims
from tests.simulators.provider_world import ProviderWorld

pytestmark = pytest.mark.flow

HOSTS = ("gpu-a", "gpu-b")
PIN = "SHA256:" + "A" * 43
IDENTITY = '{mode: manual, ca_file: pki/ca.pem, cert_file: "pki/{host}.pem", key_file: "file:pki/{host}.key"}'


def text(identity: str = IDENTITY, zone: str = "a") -> str:
    hosts = ", ".join(f'{name}: {{address: 10.0.0.{at}, host_key: "{PIN}"}}' for at, name in enumerate(HOSTS, 1))
    return (
        f"fleet: {{identity: {identity}, ssh: {{identity_file: /k}}, defaults: {{labels: {{zone: {zone}}}}},"
        f" hosts: {{{hosts}}}}}\nproxy: {{http_bind_port: 8080}}\n"
    )


class Pki:
    """What a user's own PKI does, by our own parts."""

    def __init__(self, world: ProviderWorld) -> None:
        self.world = world
        self.directory = world.directory / "pki"
        self.directory.mkdir()
        self.ca = self.new_ca()

    def new_ca(self) -> KeyPair:
        ca = create_ca("theirs", now=self.world.fleet.clock.now())
        (self.directory / "ca.pem").write_text(ca.certificate)
        return ca

    def give(self, host: str, epoch: int = 1, *, days: float = 60, **claims: Any) -> None:
        said = {"cluster_id": "theirs", "node_id": host, "roles": ("gateway", "worker"), "labels": {"zone": "a"}}
        key = generate_private_key()
        leaf = issue_leaf(
            self.ca,
            create_request(key, host),
            IdentityClaims(server_name="mesh", identity_epoch=epoch, **{**said, **claims}),  # type: ignore[arg-type]
            now=self.world.fleet.clock.now(),
            validity=timedelta(days=days),
        )
        (self.directory / f"{host}.pem").write_text(leaf)
        (self.directory / f"{host}.key").write_bytes(key.reveal())


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    return ProviderWorld(tmp_path, *HOSTS)


@pytest.fixture
def pki(world: ProviderWorld) -> Pki:
    made = Pki(world)
    for host in HOSTS:
        made.give(host)
    world.configure(text())
    return made


def shown(world: ProviderWorld, host: str = "gpu-a") -> Any:
    return IdentityFiles(world.host(host).identity_paths).verified(world.fleet.clock.now())


def change_of(world: ProviderWorld, host: str = "gpu-a") -> Change:
    return next(one for one in world.plan().changes if str(one.address) == f"certificate.{host}")


def test_what_the_pki_issued_is_installed_and_replaced_as_planned_changes(world: ProviderWorld, pki: Pki) -> None:
    assert world.apply().status == "applied"
    assert world.settled()
    assert (shown(world).attestation, shown(world).claims.node_id) == ("manual_pki", "gpu-a")
    assert world.host("gpu-a").config is not None
    pki.give("gpu-a", 2)
    assert set(world.rows()) == {"certificate.gpu-a"}
    change = change_of(world)
    assert change.reason == "your PKI issued another certificate"
    assert "your PKI renews it" in change.notes[0]
    assert world.apply().status == "applied"
    assert shown(world).claims.identity_epoch == 2
    assert world.settled()


def test_no_key_is_in_plan_or_state(world: ProviderWorld, pki: Pki) -> None:
    world.apply()
    secret = (pki.directory / "gpu-a.key").read_text().splitlines()[1]
    assert secret not in repr(world.plan()) + repr([one.record for one in world.state.resources.values()])
    assert secret not in repr([one.spec for one in world.state.resources.values()])


def test_another_CA_and_damage_are_seen_and_repaired(world: ProviderWorld, pki: Pki) -> None:
    world.apply()
    (pki.directory / "ca.pem").write_text(
        pki.ca.certificate + create_ca("next", now=world.fleet.clock.now()).certificate
    )
    assert change_of(world).reason == "another CA is trusted"
    assert world.apply().status == "applied"
    files = IdentityFiles(world.host("gpu-a").identity_paths)
    (files.link / "node-key.pem").chmod(0o644)
    assert change_of(world).drifted
    assert world.apply().status == "applied"
    assert world.settled()


@pytest.mark.parametrize("epoch", [1, 2])
def test_D11_D12_a_certificate_at_or_below_the_epoch_that_was_seen_blocks_the_plan(
    world: ProviderWorld, pki: Pki, epoch: int
) -> None:
    pki.give("gpu-a", 2)
    world.apply()
    pki.give("gpu-a", epoch)
    change = change_of(world)
    assert change.blocked is not None
    assert (change.blocked_code, "identity_epoch 3" in change.blocked) == ("identity.epoch_behind", True)


def _swap(pki: Pki) -> None:
    for kind in ("pem", "key"):
        (pki.directory / f"gpu-a.{kind}").write_bytes((pki.directory / f"gpu-b.{kind}").read_bytes())


def _shared_key(pki: Pki) -> None:
    key = generate_private_key()
    for host in HOSTS:
        claims = IdentityClaims(
            cluster_id="theirs", node_id=host, roles=("gateway", "worker"), labels={"zone": "a"}, server_name="mesh",
            identity_epoch=1,
        )  # fmt: skip
        leaf = issue_leaf(pki.ca, create_request(key, host), claims, now=pki.world.fleet.clock.now())
        (pki.directory / f"{host}.pem").write_text(leaf)
        (pki.directory / f"{host}.key").write_bytes(key.reveal())


@pytest.mark.parametrize(
    ("spoil", "code", "said"),
    [
        (lambda pki: (pki.directory / "gpu-a.pem").unlink(), "file.missing", "gpu-a.pem"),
        (lambda pki: (pki.directory / "ca.pem").write_text("nonsense"), "certificate.invalid", ""),
        (lambda pki: pki.new_ca(), "certificate.untrusted", "gpu-a.pem"),
        (_swap, "identity.own_mismatch", "node_id gpu-b"),
        (lambda pki: pki.give("gpu-a", roles=("worker",)), "identity.own_mismatch", "roles worker"),
        (lambda pki: pki.give("gpu-a", labels={"zone": "b"}), "identity.own_mismatch", "labels zone=b"),
        (lambda pki: pki.give("gpu-a", cluster_id="other"), "identity.own_mismatch", "differ in cluster_id"),
        (lambda pki: (pki.directory / "gpu-a.key").unlink(), "secret.unreadable", "gpu-a.key"),
        (lambda pki: (pki.directory / "gpu-a.key").write_text("x"), "certificate.key_invalid", ""),
        (
            lambda pki: (pki.directory / "gpu-a.key").write_bytes((pki.directory / "gpu-b.key").read_bytes()),
            "certificate.key_mismatch",
            "gpu-a",
        ),
        (_shared_key, "identity.own_mismatch", "one and the same key"),
        (lambda pki: pki.world.fleet.clock.advance(61 * 86400.0), "certificate.expired", "gpu-a"),
    ],
    ids=["missing", "no CA", "another CA", "another host", "roles", "labels", "cluster", "no key", "bad key",
         "another key", "shared key", "expired"],
)  # fmt: skip
def test_D21_files_that_are_not_exactly_right_stop_the_plan_and_say_why(
    world: ProviderWorld, pki: Pki, spoil: Callable[[Pki], object], code: str, said: str
) -> None:
    spoil(pki)
    with pytest.raises(SbctlError) as caught:
        world.plan()
    assert caught.value.code == code
    assert said in f"{caught.value.message} {caught.value.place}"


def test_files_that_changed_since_the_plan_are_not_installed(world: ProviderWorld, pki: Pki) -> None:
    plan = world.plan()
    pki.give("gpu-a", 2)
    result = world.execute(plan)
    failed = {str(one.address): one.cause.code for one in result.changes if one.cause is not None}  # type: ignore[attr-defined]
    assert failed["certificate.gpu-a"] == "identity.files_changed"
    assert world.apply().status == "applied"


@pytest.mark.parametrize(
    ("mode", "code"), [(0o600, None), (0o644, "certificate.key_file"), (None, "certificate.key_file")]
)
def test_a_key_that_is_on_the_host_already_is_read_there_and_only_when_nobody_else_can(
    world: ProviderWorld, pki: Pki, tmp_path: Path, mode: int | None, code: str | None
) -> None:
    there = tmp_path / "on-host"
    there.mkdir()
    for host in HOSTS:
        if mode is not None:
            (there / f"{host}.key").write_bytes((pki.directory / f"{host}.key").read_bytes())
            (there / f"{host}.key").chmod(mode)
        (pki.directory / f"{host}.key").unlink()
    world.configure(text(IDENTITY.replace("file:pki/", f"node-file:{there}/")))
    result = world.apply()
    failed = {
        one.cause.code for one in result.changes if one.cause is not None and str(one.address) == "certificate.gpu-a"
    }  # type: ignore[attr-defined]
    assert failed == ({code} if code is not None else set())
    if code is None:
        assert shown(world).attestation == "manual_pki"


@pytest.mark.parametrize(
    ("identity", "said"),
    [
        ("{mode: manual}", "needs ca_file"),
        (IDENTITY.replace("{host}.pem", "node.pem"), "the same file for 2 hosts"),
        (IDENTITY.replace("pki/{host}.pem", "node-file:/etc/pki/node.pem"), "cert_file is read on this machine"),
        (IDENTITY.replace("mode: manual", "mode: manual, validity_days: 3"), "for mode: authority"),
        ("{ca_file: pki/ca.pem}", "for mode: manual"),
        ("{enroll: {host: gone}}", "which is no host"),
        ("{enroll: {host: gpu-a}}", "has not the role authority"),
    ],
)
def test_fields_of_the_other_mode_or_missing_ones_are_named(world: ProviderWorld, identity: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        world.configure(text(identity))
    assert said in str([one.message for one in caught.value.diagnostics])

"""`certificate.H` over a life: issued, renewed, re-issued, revoked, its CA taken over, removed. Hosts keep real files and run the node's code."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import HostError, SbctlError
from sbctl.plan.model import BlastRadius, Change
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.trust.authority import Authority
from sbctl.trust.certificates import certificate_facts, verify_leaf
from sbctl.trust.identity import Grant
from tests.simulators.provider_world import ProviderWorld
from tests.simulators.sim_host import SimHost

pytestmark = pytest.mark.flow

HOSTS = ("gpu-a", "gpu-b", "gpu-c")
KEY = "SHA256:" + "A" * 43


def text(zone: str = "a", hosts: tuple[str, ...] = HOSTS, identity: str = "{directory: ./cluster}") -> str:
    listed = ", ".join(
        f'{name}: {{address: 10.0.0.{number}, host_key: "{KEY}"}}' for number, name in enumerate(hosts, start=1)
    )
    return (
        f"fleet: {{identity: {identity}, ssh: {{identity_file: /k}}, defaults: {{labels: {{zone: {zone}}}}},"
        f" hosts: {{{listed}}}}}\nproxy: {{http_bind_port: 8080}}\n"
    )


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    world = ProviderWorld(tmp_path, *HOSTS)
    grant = Grant(node_id="authority", roles=("authority",))
    now = world.fleet.clock.now()
    world.authority = Authority.create(
        tmp_path / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=now
    )
    world.configure(text())
    return world


def files(host: SimHost) -> IdentityFiles:
    return IdentityFiles(host.identity_paths)


def epochs(world: ProviderWorld) -> list[int]:
    return [host.snapshot().certificate.identity_epoch for host in world.fleet.hosts.values()]  # type: ignore[union-attr]


def change_of(world: ProviderWorld, host: str = "gpu-a", **more: Any) -> Change:
    return next(one for one in world.plan(**more).changes if str(one.address) == f"certificate.{host}")


def pass_days(world: ProviderWorld, days: float) -> None:
    world.fleet.clock.advance(timedelta(days=days).total_seconds())  # type: ignore[attr-defined]


def test_a_fleet_gets_identities_that_an_independent_verifier_believes(world: ProviderWorld) -> None:
    assert world.apply().status == "applied"
    assert world.settled()
    assert world.authority is not None
    for name, host in world.fleet.hosts.items():
        identity = files(host).verified(world.fleet.clock.now())
        assert identity.claims.node_id == name
        assert identity.claims.labels == {"zone": "a"}
        assert identity.claims.roles == ("gateway", "worker")
        assert host.config is not None
        assert host.config.identity
        leaf = (files(host).link / "node.pem").read_text()
        verify_leaf(
            leaf, world.authority.bundle(world.authority.facts().ca), server_name="mesh", now=world.fleet.clock.now()
        )
    keys = {files(host).key().reveal() for host in world.fleet.hosts.values()}
    assert len(keys) == len(HOSTS)


def test_no_private_key_leaves_its_host(world: ProviderWorld) -> None:
    world.apply()
    kept = repr([one.record for one in world.state.resources.values()]) + repr(world.plan())
    operator = b"".join(path.read_bytes() for path in world.directory.rglob("*") if path.is_file())
    for host in world.fleet.hosts.values():
        secret = files(host).key().reveal().decode().splitlines()[1]
        assert secret not in kept
        assert secret.encode() not in operator
        assert (files(host).link / "node-key.pem").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (lambda world: world.configure(text(zone="b")), "labels.zone"),
        (lambda world: world.authority.rotate(HOSTS), "rotation"),
        (lambda world: pass_days(world, 46), "not_after"),
        (lambda world: pass_days(world, 400), "usable"),
        (lambda world: [(files(host).link / "ca.pem").write_text("") for host in world.fleet.hosts.values()], "usable"),
        (
            lambda world: [(files(host).link / "revocations.json").unlink() for host in world.fleet.hosts.values()],
            "usable",
        ),
        (
            lambda world: [(files(host).link / "node-key.pem").chmod(0o644) for host in world.fleet.hosts.values()],
            "usable",
        ),
    ],
    ids=["label", "rotate", "half-life", "expired", "damaged", "no revocations", "open key"],
)
def test_another_certificate_is_the_next_epoch(world: ProviderWorld, edit: Callable[[Any], object], path: str) -> None:
    world.apply()
    edit(world)
    change = change_of(world)
    assert change.action == "update"
    assert path in [leaf.path for leaf in change.leaves]
    assert change.blast_radius is BlastRadius.RELOAD
    assert change.reason
    assert world.apply().status == "applied"
    assert epochs(world) == [2, 2, 2]
    assert world.settled()


def test_a_certificate_before_its_half_is_left_alone_and_time_is_no_drift(world: ProviderWorld) -> None:
    world.apply()
    pass_days(world, 44)
    assert world.settled()
    pass_days(world, 2)
    assert not world.settled()
    assert change_of(world, mode="drift", desired=()).action == "no-op"


def test_how_long_it_is_good_and_when_it_is_renewed_are_the_users_choice(world: ProviderWorld) -> None:
    world.configure(text(identity="{directory: ./cluster, validity_days: 30, renew_before_days: 3}"))
    world.apply()
    pass_days(world, 26)
    assert world.settled()
    pass_days(world, 1.5)
    assert change_of(world).action == "update"
    world.configure(text(identity="{directory: ./cluster, validity_days: 10, renew_before_days: 1}"))
    assert world.settled(), "another validity matters when the next one is issued"


def test_a_revoked_host_loses_its_identity_and_every_other_learns_of_it(world: ProviderWorld) -> None:
    world.apply()
    assert world.authority is not None
    world.authority.revoke("gpu-b", reason="stolen", now=world.fleet.clock.now())
    rows = world.rows()
    assert rows["certificate.gpu-b"] == "delete"
    assert rows["runtime.gpu-b"] == "update"
    assert rows["certificate.gpu-a"] == "update"
    assert change_of(world).blast_radius is BlastRadius.RELOAD
    assert world.apply().status == "applied"
    assert world.settled()
    assert not files(world.host("gpu-b")).exists()
    assert files(world.host("gpu-a")).verified(world.fleet.clock.now()).revocations == 1
    assert files(world.host("gpu-a")).verified(world.fleet.clock.now()).claims.identity_epoch == 1
    world.authority.rotate(["gpu-b"])
    assert world.apply().status == "applied"
    assert epochs(world) == [1, 2, 1]
    assert world.settled()


def test_CA_and_signing_key_are_taken_over_in_three_applies_without_a_gap(world: ProviderWorld) -> None:
    world.apply()
    assert world.authority is not None
    first, signer = world.authority.facts().issuer, world.authority.verifying_key
    stolen = (world.authority.directory / "authority-signing.key").read_bytes()
    following = world.authority.begin_rollover(now=world.fleet.clock.now())
    seen: list[tuple[BlastRadius, list[int]]] = []
    for _ in range(3):
        plan = world.plan()
        assert set(world.rows(plan)) == {f"certificate.{host}" for host in HOSTS}
        for applied in world.fleet.hosts:
            assert world.apply(targets=(f"certificate.{applied}",)).status == "applied"
            trust = [files(host).verified(world.fleet.clock.now()) for host in world.fleet.hosts.values()]
            assert all(one.issuer in other.ca for one in trust for other in trust), "a host that another does not trust"
        seen.append((plan.blast_radius, epochs(world)))
    assert seen == [
        (BlastRadius.HITLESS, [1, 1, 1]),
        (BlastRadius.RELOAD, [2, 2, 2]),
        (BlastRadius.RELOAD, [2, 2, 2]),
    ]
    held = [one.record for address, one in world.state.resources.items() if address.kind == "certificate"]
    assert world.authority.finish_rollover(held, now=world.fleet.clock.now())
    assert world.settled()
    assert {tuple(one["ca"]) for one in held} == {(following,)}
    assert first not in str(held)
    assert world.authority.verifying_key != signer
    for host in world.fleet.hosts.values():
        assert (files(host).link / "authority-verifying.key").read_text() == f"{world.authority.verifying_key}\n"
    left = [path for path in world.authority.directory.rglob("*") if path.is_file()]
    assert not [path.name for path in left if "next" in path.name or path.read_bytes() == stolen]
    world.authority.revoke("gpu-c", reason="", now=world.fleet.clock.now())
    assert world.apply().status == "applied"


def test_a_rollback_brings_back_roles_and_labels_and_no_old_trust(world: ProviderWorld) -> None:
    world.apply()
    before = world.last_desired
    assert world.authority is not None
    world.authority.rotate(["gpu-a"])
    world.authority.revoke("gpu-c", reason="", now=world.fleet.clock.now())
    world.authority.rotate(["gpu-c"])
    world.configure(text(zone="b"))
    world.apply()
    assert epochs(world) == [2, 2, 2]
    world.apply(mode="rollback", desired=before)
    shown = files(world.host("gpu-a")).verified(world.fleet.clock.now())
    assert shown.claims.labels == {"zone": "a"}
    assert shown.revocations == 1
    assert shown.claims.identity_epoch == 3


def test_half_a_request_is_found_and_used_again(world: ProviderWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.simulators.provider_world import SimServices

    def lost(*_: Any, **__: Any) -> Any:
        raise HostError("authority.away", "the operator's machine went away before it signed")

    with monkeypatch.context() as patch:
        patch.setattr(SimServices, "issue_identity", lost)
        assert world.apply().status != "applied"
    pending = files(world.host("gpu-a")).pending()
    assert pending is not None
    assert world.apply().status == "applied"
    assert files(world.host("gpu-a")).key() == pending.key
    assert files(world.host("gpu-a")).pending() is None
    assert epochs(world) == [1, 1, 1]


def test_an_answer_that_was_lost_costs_no_epoch_at_the_authority(
    world: ProviderWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.simulators.provider_world import SimServices

    real = SimServices.issue_identity

    def signed_and_lost(self: SimServices, *arguments: Any, **asked: Any) -> Any:
        real(self, *arguments, **asked)
        raise HostError("authority.away", "the answer was lost")

    with monkeypatch.context() as patch:
        patch.setattr(SimServices, "issue_identity", signed_and_lost)
        assert world.apply().status != "applied"
    assert world.apply().status == "applied"
    assert epochs(world) == [1, 1, 1]
    assert world.settled()


def test_what_goes_leaves_nothing(world: ProviderWorld) -> None:
    world.apply()
    world.configure(text(hosts=("gpu-a", "gpu-b")))
    assert world.rows()["certificate.gpu-c"] == "delete"
    assert world.apply().status == "applied"
    assert world.settled()
    world.configure(text().replace("identity: {directory: ./cluster}, ", ""))
    world.authority = None
    assert world.rows()["certificate.gpu-a"] == "delete"
    assert world.apply().status == "applied"
    assert world.settled()
    for host in world.fleet.hosts.values():
        assert not files(host).exists()
        assert not files(host).store.exists()


def test_destroy_takes_keys_along_with_the_runtime(world: ProviderWorld) -> None:
    world.apply()
    change = change_of(world, mode="destroy", desired=())
    assert (change.action, change.steps) == ("delete", ())
    assert world.apply(mode="destroy", desired=()).status == "applied"
    assert not world.state.resources
    for host in world.fleet.hosts.values():
        assert not files(host).store.exists()


def test_a_host_whose_clock_is_far_off_installs_nothing(world: ProviderWorld) -> None:
    from tests.simulators.fleet import ManualClock

    world.host("gpu-b").clock = ManualClock(world.fleet.clock.now() + timedelta(hours=1))
    result = world.apply()
    assert result.status != "applied"
    failed = {str(one.address): one.cause.code for one in result.changes if one.cause is not None}  # type: ignore[attr-defined]
    assert failed["certificate.gpu-b"] == "identity.clock_skew"
    assert not files(world.host("gpu-b")).exists()
    assert files(world.host("gpu-a")).exists()


def test_the_certificate_of_a_stranger_in_our_place_is_replaced(world: ProviderWorld) -> None:
    world.apply()
    one, other = world.host("gpu-a"), world.host("gpu-b")
    for name in ("node.pem", "node-key.pem", "identity.json"):
        (files(one).link / name).write_bytes((files(other).link / name).read_bytes())
    change = change_of(world)
    assert change.drifted
    assert "not the one that was installed" in change.reason
    assert world.apply().status == "applied"
    assert certificate_facts((files(one).link / "node.pem").read_text()).subject == "gpu-a"
    assert world.settled()


def test_a_name_that_no_certificate_can_hold_is_told(world: ProviderWorld) -> None:
    assert world.authority is not None
    from sbctl.trust.certificate_making import create_request, generate_private_key

    with pytest.raises(SbctlError) as caught:
        world.authority.issue(
            create_request(generate_private_key(), "x"),
            Grant(node_id="n" * 65, roles=("worker",)),
            now=world.fleet.clock.now(),
        )
    assert caught.value.code == "certificate.name_too_long"

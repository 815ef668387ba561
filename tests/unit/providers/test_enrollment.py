"""`enrollment.H` over a life: delegated, run with other settings, renewed, taken over, revoked, removed; and what it gives is believed."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.plan.model import Change
from sbctl.trust.authority import Authority
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.delegated_files import DelegatedAuthority, DelegatedFiles
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_messages import EnrollmentAnswer
from sbctl.trust.identity import Grant
from sbctl.trust.node_identity import NodeIdentity, NodeIdentityFiles, verify_node_identity
from tests.simulators.enrollment_world import ask, token_of
from tests.simulators.provider_world import ProviderWorld

pytestmark = pytest.mark.flow

PIN = "SHA256:" + "A" * 43


def text(enroll: str = "enroll: {host: gw-a}", hosts: tuple[str, ...] = ("gpu-a",)) -> str:
    workers = "".join(f', {name}: {{address: 10.0.0.{at}, host_key: "{PIN}"}}' for at, name in enumerate(hosts, 2))
    return (
        f"fleet: {{identity: {{directory: ./cluster, {enroll}}}, ssh: {{identity_file: /k}},"
        f' hosts: {{gw-a: {{address: 10.0.0.1, host_key: "{PIN}", roles: [gateway, authority]}}{workers}}}}}\n'
        "proxy: {http_bind_port: 8080}\n"
    )


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    world = ProviderWorld(tmp_path, "gw-a", "gpu-a", "gpu-b")
    grant = Grant(node_id="authority", roles=("authority",))
    now = world.fleet.clock.now()
    world.authority = Authority.create(
        tmp_path / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=now
    )
    world.configure(text())
    result = world.apply()
    assert [str(one.cause) for one in result.changes if getattr(one, "cause", None) is not None] == []
    return world


class Server:
    """The enrollment server of gw-a, by the files that its unit would get."""

    def __init__(self, world: ProviderWorld, state: str = "server-state") -> None:
        self.world = world
        etc = world.host("gw-a").identity_paths.etc
        state_directory = world.directory / state
        state_directory.mkdir(mode=0o700, exist_ok=True)
        self.files = DelegatedFiles(state_directory, etc / "enrollment")
        self.enrollment = Enrollment(DelegatedAuthority(self.files), self.files)

    def enroll(self, node_id: str = "edge-1", **more: str) -> tuple[EnrollmentAnswer, Secret]:
        now, key = self.world.fleet.clock.now(), generate_private_key()
        token = token_of(self.enrollment, at=now, node_id=more.get("token_for"))
        asked = ask(token, node_id=node_id, request=create_request(key, node_id))
        return self.enrollment.enroll(asked, source="198.51.100.7", now=now), key

    def verified(self, answer: EnrollmentAnswer, key: Secret, *, revocations: str | None = None) -> NodeIdentity:
        files = NodeIdentityFiles(
            answer.certificate,
            answer.ca,
            answer.identity,
            answer.authority_key,
            revocations or answer.revocations,
            answer.delegation,
        )
        return verify_node_identity(files, key=key, now=self.world.fleet.clock.now())


def change_of(world: ProviderWorld) -> Change:
    return next(one for one in world.plan().changes if one.address.kind == "enrollment")


def test_a_server_is_delegated_keys_of_its_own_and_the_second_plan_is_empty(world: ProviderWorld) -> None:
    assert world.settled()
    assert world.authority is not None
    directory = world.host("gw-a").identity_paths.etc / "enrollment"
    assert directory.stat().st_mode & 0o777 == 0o700
    held = b"".join(path.read_bytes() for path in directory.iterdir())
    for name in ("ca-key.pem", "authority-signing.key"):
        assert (world.authority.directory / name).read_bytes() not in held
    operator = b"".join(path.read_bytes() for path in world.directory.rglob("*") if path.is_file())
    kept = repr([(one.record, one.spec) for one in world.state.resources.values()]) + repr(world.plan())
    for name in ("ca-key.pem", "authority-signing.key"):
        middle = (directory / name).read_text().splitlines()[1]
        assert middle.encode() not in operator
        assert middle not in kept


def test_what_it_gives_is_believed_by_who_trusts_the_cluster_and_is_no_authority(world: ProviderWorld) -> None:
    server = Server(world)
    answer, key = server.enroll()
    identity = server.verified(answer, key)
    assert (identity.claims.node_id, identity.claims.identity_epoch, identity.attestation) == ("edge-1", 1, "enrolled")
    assert world.authority is not None
    assert identity.issuer == world.authority.facts().issuer
    request = create_request(generate_private_key(), "edge-1")
    renewed = server.enrollment.renew(answer.certificate, request, source="", now=world.fleet.clock.now())
    assert renewed.certificate != answer.certificate


def test_D10_no_token_gives_the_name_of_a_host_that_is_in_sb_yml(world: ProviderWorld) -> None:
    with pytest.raises(RefusedError) as caught:
        Server(world).enroll("gpu-a", token_for="gpu-a")
    assert caught.value.detail["reason"] == "name_reserved"


def test_D9_a_server_that_was_taken_over_makes_nobody_an_authority(world: ProviderWorld) -> None:
    server, key = Server(world), generate_private_key()
    issued = server.enrollment.authority.issue(
        create_request(key, "x"), Grant(node_id="evil", roles=("authority",)), now=world.fleet.clock.now()
    )
    answer = EnrollmentAnswer(
        certificate=issued.certificate,
        identity=issued.identity,
        ca=server.files.trusted_ca(),
        authority_key=server.files.trusted_keys().text(),
        revocations=server.files.text("revocations.json"),
        delegation=server.files.delegation(),
    )
    with pytest.raises(RefusedError) as caught:
        server.verified(answer, key)
    assert (caught.value.code, caught.value.detail["alarm"]) == ("identity.beyond_delegation", True)
    answer.delegation = None
    with pytest.raises(SbctlError) as caught_too:
        server.verified(answer, key)
    assert caught_too.value.code == "envelope.bad_signature"


def test_revoking_its_host_takes_away_all_that_it_gave(world: ProviderWorld) -> None:
    server = Server(world)
    answer, key = server.enroll()
    assert world.authority is not None
    now = world.fleet.clock.now()
    world.authority.revoke("gw-a", reason="stolen", now=now)
    with pytest.raises(RefusedError) as caught:
        server.verified(answer, key, revocations=world.authority.revocations()[0])
    assert caught.value.code == "delegation.revoked"
    assert world.rows()["enrollment.gw-a"] == "delete"
    assert world.apply().status == "applied"
    assert not (world.host("gw-a").identity_paths.etc / "enrollment").exists()
    world.authority.rotate(["gw-a"])
    assert world.apply().status == "applied"
    assert world.settled()
    again, key = Server(world, "second").enroll()
    Server(world, "second").verified(again, key)


def test_a_host_that_enrolled_is_revoked_by_the_operator_and_the_server_hears_of_it(world: ProviderWorld) -> None:
    server = Server(world)
    answer, _ = server.enroll()
    assert world.authority is not None
    world.authority.adopt(server.enrollment.enrolled()["edge-1"])
    world.authority.revoke("edge-1", reason="stolen", now=world.fleet.clock.now())
    assert world.rows()["enrollment.gw-a"] == "update"
    assert change_of(world).reason == "what it hands on or refuses changed"
    assert world.apply().status == "applied"
    server = Server(world)
    request = create_request(generate_private_key(), "edge-1")
    with pytest.raises(RefusedError) as caught:
        server.enrollment.renew(answer.certificate, request, source="", now=world.fleet.clock.now())
    assert caught.value.detail["reason"] == "node_revoked"
    with pytest.raises(RefusedError) as caught:
        server.enroll("edge-1")
    assert caught.value.detail["reason"] == "node_revoked"
    back, key = server.enroll("edge-1", token_for="edge-1")
    assert server.verified(back, key).claims.identity_epoch == 2


def test_settings_are_changes_and_damage_is_drift(world: ProviderWorld) -> None:
    world.configure(text("enroll: {host: gw-a, port: 9443, validity_hours: 12}"))
    change = change_of(world)
    assert (change.action, change.reason) == ("update", "the server runs with other settings")
    assert world.apply().status == "applied"
    assert world.settled()
    world.configure(text("enroll: {host: gw-a, port: 9443, validity_hours: 12}", hosts=("gpu-a", "gpu-b")))
    assert change_of(world).action == "update", "one more name is reserved"
    assert world.apply().status == "applied"
    (world.host("gw-a").identity_paths.etc / "enrollment" / "roots.pem").write_text("edited")
    assert change_of(world).drifted
    assert world.apply().status == "applied"
    assert world.settled()
    world.configure(text("", hosts=("gpu-a", "gpu-b")))
    assert world.rows() == {"enrollment.gw-a": "delete"}
    assert world.apply().status == "applied"
    assert world.settled()


def test_its_right_to_issue_is_renewed_at_half_of_its_life_with_the_same_keys(world: ProviderWorld) -> None:
    directory = world.host("gw-a").identity_paths.etc / "enrollment"
    key, certificate = (directory / "ca-key.pem").read_bytes(), (directory / "ca.pem").read_text()
    world.fleet.clock.advance(timedelta(days=46).total_seconds())  # type: ignore[attr-defined]
    assert change_of(world).reason == "half of the life of what it may do is over"
    assert world.apply().status == "applied"
    assert world.settled()
    assert (directory / "ca-key.pem").read_bytes() == key
    assert (directory / "ca.pem").read_text() != certificate


def test_a_new_CA_signs_for_it_in_the_second_step_and_hosts_that_enrolled_renew_across(world: ProviderWorld) -> None:
    server = Server(world)
    answer, key = server.enroll()
    assert world.authority is not None
    world.authority.begin_rollover(now=world.fleet.clock.now())
    for _ in range(2):
        assert world.apply().status == "applied"
        request = create_request(key := generate_private_key(), "edge-1")
        answer = Server(world).enrollment.renew(answer.certificate, request, source="", now=world.fleet.clock.now())
        Server(world).verified(answer, key)
    following = world.authority.facts().ca
    assert world.apply().status == "applied"
    assert Server(world).verified(answer, key).issuer in following
    held = [one.record for address, one in world.state.resources.items() if address.kind == "certificate"]
    assert world.authority.finish_rollover(held, now=world.fleet.clock.now())
    assert world.settled()


def test_a_host_without_systemd_is_told_before_anything_changes(tmp_path: Path) -> None:
    from tests.simulators.sim_host import DEFAULT_FACTS

    world = ProviderWorld(tmp_path, "gw-a", "gpu-a", facts=DEFAULT_FACTS.model_copy(update={"init": "none"}))
    grant = Grant(node_id="authority", roles=("authority",))
    world.authority = Authority.create(
        tmp_path / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=world.fleet.clock.now()
    )
    world.configure(text())
    assert change_of(world).blocked_code == "enrollment.no_systemd"

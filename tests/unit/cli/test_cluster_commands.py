"""`sbctl cluster …` on a directory, and what plans say of identities beside their changes."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.cli.app import app
from sbctl.cli.authority import identity_notes, new_grant, revoke_newest
from sbctl.cli.enrollment_server import FleetServer
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.trust.authority import Authority
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.identity import Grant

pytestmark = pytest.mark.flow

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
FILE = "fleet: {name: prod, identity: {directory: ./cluster}}\nproxy: {http_bind_port: 8080}\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path


def sbctl(*words: str) -> int:
    return int(app(args=list(words), prog_name="sbctl", standalone_mode=False))


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert sbctl(*words, "--format", "json") == 0
    return json.loads(capsys.readouterr().out)


def refused(*words: str) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        sbctl(*words)
    return caught.value


def test_init_makes_an_authority_and_prints_the_lines_for_sb_yml(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "sb.yml").write_text("fleet: {name: prod}\nproxy: {http_bind_port: 8080}\n")
    assert sbctl("cluster", "init") == 0
    shown = capsys.readouterr().out
    assert "Add to sb.yml" in shown
    assert "directory: ./cluster" in shown
    assert "prod" in shown
    assert refused("cluster", "init").code == "authority.exists"
    body = told(
        capsys, "cluster", "init", "--dir", "other", "--node-id", "gw-a", "--role", "gateway", "--label", "zone=a"
    )
    assert (body["command"], body["cluster_id"], body["node_id"]) == ("cluster.init", "prod", "gw-a")
    assert Path(body["node_key_file"]).stat().st_mode & 0o777 == 0o600
    assert Path(body["directory"]).stat().st_mode & 0o777 == 0o700
    assert "*-key.pem" in (Path(body["directory"]) / ".gitignore").read_text()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("cluster", "init"), "usage"),
        (("cluster", "init", "--cluster-id", "a/b"), "usage"),
        (("cluster", "init", "--cluster-id", "c", "--server-name", "a_b"), "usage"),
        (("cluster", "init", "--cluster-id", "c", "--node-id", ".."), "usage"),
        (("cluster", "init", "--cluster-id", "c", "--role", "root"), "usage"),
        (("cluster", "init", "--cluster-id", "c", "--label", "zone"), "usage"),
        (("cluster", "init", "--cluster-id", "c", "--label", "z=a", "--label", "z=b"), "usage"),
        (("cluster", "rotate"), "usage"),
        (("cluster", "rotate", "a", "--ca"), "usage"),
        (("cluster", "status"), "authority.missing"),
        (("cluster", "revoke", "a"), "authority.missing"),
    ],
)
def test_wrong_words_make_nothing(here: Path, words: tuple[str, ...], code: str) -> None:
    assert refused(*words).code == code
    assert not (here / "cluster").exists()


def issued(directory: Path, *nodes: str, now: datetime = NOW) -> Authority:
    authority = Authority.open(directory)
    for node in nodes:
        grant = Grant(node_id=node, roles=("worker",))
        authority.issue(create_request(generate_private_key(), node), grant, now=now)
    return authority


def test_status_rotate_and_revoke_tell_what_the_next_apply_does(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "sb.yml").write_text("fleet: {name: prod}\nproxy: {http_bind_port: 8080}\n")
    sbctl("cluster", "init")
    (here / "sb.yml").write_text(FILE)
    issued(here / "cluster", "local", now=Workspace(here / "sb.yml").clock.now())

    def state() -> str:
        rows = told(capsys, "cluster", "status")["nodes"]
        return str(next(row["state"] for row in rows if row["node_id"] == "local"))

    assert state() == "valid"
    assert told(capsys, "cluster", "rotate", "local")["nodes"] == ["local"]
    assert state() == "rotation asked"
    assert told(capsys, "cluster", "revoke", "local", "--reason", "stolen")["revision"] == 1
    assert state() == "revoked"
    assert sbctl("cluster", "rotate", "local") == 0
    assert "opens a cluster's store again" in " ".join(capsys.readouterr().err.split())
    assert told(capsys, "cluster", "revoke", "local", "--reason", "stolen")["revision"] == 1
    following = told(capsys, "cluster", "rotate", "--ca")["ca"]
    assert told(capsys, "cluster", "status")["rollover"] == "remove", "no host holds an identity by the state"
    assert following in told(capsys, "cluster", "status")["ca"]
    assert sbctl("cluster", "rotate", "--ca") == 0
    assert "is under way already, and goes on: 3 of 3" in " ".join(capsys.readouterr().err.split())
    assert sbctl("cluster", "status") == 0
    assert "revoked" in capsys.readouterr().out


def configured(here: Path, now: datetime) -> CompiledConfig:
    (here / "sb.yml").write_text(FILE)
    grant = new_grant("prod", "mesh", "authority", ["authority"], [])
    if not (here / "cluster").exists():
        Authority.create(here / "cluster", cluster_id="prod", grant=grant, server_name="mesh", now=NOW)
        issued(here / "cluster", "local")
    config = load(here / "sb.yml", environ={}, keyed=None)
    held = [{"ca": [Authority.open(here / "cluster").facts().issuer], "issuer": "x"}] if now else []
    return replace(config, authority=Authority.open(here / "cluster").facts(held))


@pytest.mark.parametrize(
    ("days", "words"),
    [(0, None), (37, None), (39, "renews the identity of local"), (3500, "CA expires on 2036")],
)
def test_a_plan_says_what_is_due_soon(here: Path, days: int, words: str | None) -> None:
    notes = identity_notes(configured(here, NOW), NOW + timedelta(days=days))
    assert any(words in note for note in notes) if words else notes == ()


def test_a_plan_says_who_is_shut_out_and_how_far_a_rollover_is(here: Path) -> None:
    configured(here, NOW)
    authority = Authority.open(here / "cluster")
    authority.revoke("local", reason="", now=NOW)
    first = authority.facts().issuer
    authority.begin_rollover(now=NOW)
    facts = authority.facts([{"ca": [first], "issuer": first}])
    notes = identity_notes(replace(configured(here, NOW), authority=facts), NOW)
    assert notes[0].startswith("CA rollover, step 1 of 3")
    assert "sbctl cluster rotate local" in notes[1]


def test_a_server_name_that_is_not_the_authority_s_is_refused(here: Path) -> None:
    configured(here, NOW)
    (here / "sb.yml").write_text(FILE.replace("./cluster", "./cluster, server_name: elsewhere"))
    with pytest.raises(SbctlError) as caught:
        _ = Workspace(here / "sb.yml").config
    assert caught.value.code == "identity.server_name"


CLUSTER = """
fleet:
  name: shop
  identity: {directory: ./cluster}
  hosts: {a: {address: 10.0.0.1, host_key: "SHA256:uNiVztksCsDhcc0u9e8BgrJXVGDMt8CKiKMCbvtCd0c", roles: [authority, gateway, worker]}}
proxy: {http_bind_port: 8080, cluster: {cluster_id: prod}, model_host: {deployments: {}}}
"""


def test_an_authority_is_made_for_the_cluster_and_one_of_another_is_refused_before_a_host_is_asked(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "sb.yml").write_text(CLUSTER)
    assert sbctl("cluster", "init") == 0
    assert "sb.yml names it already" in capsys.readouterr().out
    loaded = Workspace(here / "sb.yml").config
    assert loaded.authority is not None
    assert loaded.authority.cluster_id == "prod"
    (here / "sb.yml").write_text(CLUSTER.replace("cluster_id: prod", "cluster_id: other"))
    with pytest.raises(SbctlError) as caught:
        _ = Workspace(here / "sb.yml").config
    assert (caught.value.code, caught.value.exit_code) == ("identity.cluster_id", 3)


def test_two_files_are_compared_without_the_authority(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "base.yml").write_text(FILE)
    (here / "sb.yml").write_text(FILE.replace("name: prod", "name: prod, defaults: {labels: {zone: b}}"))
    assert not (here / "cluster").exists()
    assert sbctl("plan", "--against", "base.yml") == 2
    shown = capsys.readouterr().out
    assert "certificate.local" in shown
    assert "labels.zone" in shown
    (here / "base.yml").write_text((here / "sb.yml").read_text())
    assert sbctl("plan", "--against", "base.yml") == 0


@pytest.mark.parametrize(
    ("recorded", "refuses"), [({}, False), ({"identity_epoch": 1}, False), ({"identity_epoch": 2}, True)]
)
def test_a_copy_of_the_authority_that_is_older_than_an_identity_does_not_pretend_to_revoke_it(
    here: Path, recorded: dict[str, int], refuses: bool
) -> None:
    (here / "sb.yml").write_text("fleet: {name: prod}\nproxy: {http_bind_port: 8080}\n")
    sbctl("cluster", "init")
    now = Workspace(here / "sb.yml").clock.now()
    authority = issued(here / "cluster", "gpu-a", now=now)
    if not refuses:
        assert revoke_newest(authority, "gpu-a", recorded, reason="lost", now=now).revision == 1
        return
    with pytest.raises(SbctlError) as caught:
        revoke_newest(authority, "gpu-a", recorded, reason="lost", now=now)
    assert caught.value.code == "authority.outdated"
    assert not authority.revocations()[1].entries


@pytest.mark.parametrize(
    "words",
    [("rotate", "gw-a"), ("rotate", "--ca"), ("revoke", "gw-a"), ("token", "create"), ("status",), ("init",)],
    ids=" ".join,
)
def test_with_a_PKI_of_ones_own_there_is_no_authority_to_ask(here: Path, words: tuple[str, ...]) -> None:
    own = "{mode: manual, ca_file: ca.pem, cert_file: n.pem, key_file: 'file:n.key'}"
    (here / "sb.yml").write_text(f"fleet: {{name: prod, identity: {own}}}\nproxy: {{http_bind_port: 8080}}\n")
    assert refused("cluster", *words).code == "identity.own_pki"


@pytest.fixture
def with_server(here: Path) -> Path:
    """sb.yml names an enrollment server that no apply has set up."""
    pin = "SHA256:" + "A" * 43
    (here / "sb.yml").write_text(
        "fleet: {name: prod, identity: {enroll: {host: gw-a}}, ssh: {identity_file: /k},"
        f' hosts: {{gw-a: {{address: 10.0.0.1, host_key: "{pin}", roles: [gateway, authority]}}}}}}\n'
        "proxy: {http_bind_port: 8080}\n"
    )
    assert sbctl("cluster", "init") == 0
    return here


@pytest.mark.parametrize("words", [("create",), ("list",), ("revoke", "0011223344556677")], ids=" ".join)
def test_tokens_of_a_server_that_no_apply_set_up_are_refused_with_the_way_there(
    with_server: Path, words: tuple[str, ...]
) -> None:
    error = refused("cluster", "token", *words)
    assert (error.code, error.next_step) == ("enrollment.not_applied", "sbctl apply")


@pytest.mark.parametrize("node", ["gw-a", "gpu-that-left"])
def test_an_identity_is_revoked_though_the_enrollment_server_is_not_set_up(with_server: Path, node: str) -> None:
    authority = issued(with_server / "cluster", node, now=Workspace(with_server / "sb.yml").clock.now())
    assert sbctl("cluster", "revoke", node) == 0
    assert [entry.node_id for entry in authority.revocations()[1].entries] == [node]


def test_while_the_enrollment_server_is_away_a_revocation_says_what_is_left(
    with_server: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_server: FleetServer, *_asked: object) -> NoReturn:
        raise UnreachableError("ssh.no_answer", "no answer")

    monkeypatch.setattr("sbctl.cli.enrollment_server.fleet_server", lambda one: FleetServer(one, "gw-a", 8443, "l"))
    monkeypatch.setattr(FleetServer, "ask", away)
    error = refused("cluster", "revoke", "edge-1")
    assert error.code == "ssh.no_answer"
    assert "sbctl cluster revoke gw-a takes away all that it gave" in str(error.next_step)

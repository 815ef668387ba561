"""The API's public certificate over a life of `runtime.H`: sent, renewed without a restart, repaired, taken away."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbctl.plan.model import BlastRadius, Change
from tests.simulators.provider_world import QUICKSTART, ProviderWorld
from tests.simulators.public_ca import Issued, issue

TLS = "https_bind_port: 8443\n  tls_cert_file: ./chain.pem\n  tls_key_file: ./key.pem\n  "
SECURED = QUICKSTART.replace("http_bind_port: 8080\n  ", "http_bind_port: 8080\n  " + TLS)


def renew(directory: Path) -> Issued:
    made = issue("localhost")
    (directory / "chain.pem").write_bytes(made.chain)
    (directory / "key.pem").write_bytes(made.key)
    return made


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    renew(tmp_path)
    world = ProviderWorld(tmp_path)
    world.configure(SECURED)
    return world


def change_of(world: ProviderWorld, **more: Any) -> Change:
    return next(one for one in world.plan(**more).changes if str(one.address) == "runtime.local")


def methods(change: Change) -> list[str]:
    return [step.method for step in change.steps]


def test_the_plan_shows_the_certificate_and_it_is_there_before_the_runtime_starts(world: ProviderWorld) -> None:
    change = change_of(world)
    shown = {leaf.path: leaf.after for leaf in change.leaves if leaf.path.startswith("certificate.")}
    assert shown["certificate.subject"] == "localhost"
    assert shown["certificate.issuer"] == "Test Intermediate"
    assert {"certificate.not_after", "certificate.fingerprint", "certificate.key"} <= set(shown)
    assert any(note.startswith("certificate: for localhost, by Test Intermediate, until 2") for note in change.notes)
    assert methods(change)[-2:] == ["runtime.certificate", "runtime.activate"]
    assert world.apply().status == "applied"
    assert world.settled()
    assert world.host().public_certificate == world.record_of("runtime.local")["certificate"]


def test_another_certificate_is_a_reload_of_one_call_and_no_restart(world: ProviderWorld, tmp_path: Path) -> None:
    world.apply()
    boots = world.host().boots
    renew(tmp_path)
    world.configure(SECURED)
    change = change_of(world)
    assert (change.action, change.blast_radius, change.downtime) == ("update", BlastRadius.RELOAD, "none")
    assert methods(change) == ["runtime.certificate"]
    assert world.apply().status == "applied"
    assert world.settled()
    assert world.host().boots == boots


def test_a_certificate_that_somebody_replaced_or_removed_is_drift_and_repaired(world: ProviderWorld) -> None:
    world.apply()
    for found in ("0" * 64, None):
        world.host().public_certificate = found
        change = change_of(world, mode="drift")
        assert change.drifted
        assert [leaf.path for leaf in change.leaves] == ["certificate.installed"]
        assert world.apply().status == "applied"
        assert world.settled()


def test_files_that_changed_since_the_plan_make_it_stale(world: ProviderWorld, tmp_path: Path) -> None:
    plan = world.plan()
    renew(tmp_path)
    result = world.execute(plan)
    assert result.status != "applied"
    assert "tls.changed" in {one.cause.code for one in result.changes if one.cause is not None}


def test_neither_plan_nor_state_holds_anything_of_the_key(world: ProviderWorld, tmp_path: Path) -> None:
    canary = renew(tmp_path).key.decode().splitlines()[1]
    world.configure(SECURED)
    plan = world.plan()
    world.execute(plan)
    steps = [dict(step.params) for change in plan.changes for step in change.steps]
    assert canary not in json.dumps(steps, default=str)
    assert canary not in repr(plan)
    assert canary not in json.dumps(world.record_of("runtime.local"), default=str)
    assert "tls_key" in world.host().secret_names


def test_without_tls_again_nothing_is_sent_and_the_port_goes(world: ProviderWorld) -> None:
    world.apply()
    world.configure(QUICKSTART)
    change = change_of(world)
    assert methods(change) == ["runtime.activate"]
    assert change.blast_radius is BlastRadius.RESTART
    assert world.apply().status == "applied"
    assert world.settled()


def test_files_on_the_host_are_not_sent_and_their_renewal_is_no_change(world: ProviderWorld) -> None:
    on_node = SECURED.replace("./chain.pem", "node-file:/etc/l/fullchain.pem").replace(
        "./key.pem", "node-file:/etc/l/privkey.pem"
    )
    world.configure(on_node)
    assert "runtime.certificate" not in methods(change_of(world))
    world.apply()
    world.host().public_certificate = "1" * 64
    assert world.settled()


def test_an_admin_api_gets_tls_by_a_breaking_restart_and_says_nothing_of_it_before(world: ProviderWorld) -> None:
    plain = QUICKSTART.replace("  model_host:\n", "  admin: {enabled: true}\n  model_host:\n")
    world.configure(plain)
    assert not any(leaf.path.startswith(("admin_tls", "admin_allow_ips")) for leaf in change_of(world).leaves)
    world.apply()
    world.configure(plain.replace("{enabled: true}", "{enabled: true, tls: {cert: ./chain.pem, key: ./key.pem}}"))
    change = change_of(world)
    assert change.blast_radius is BlastRadius.BREAKING
    assert methods(change) == ["runtime.certificate", "runtime.activate"]
    world.apply()
    assert world.settled()
    renew(world.directory)
    world.configure(plain.replace("{enabled: true}", "{enabled: true, tls: {cert: ./chain.pem, key: ./key.pem}}"))
    change = change_of(world)
    assert (change.blast_radius, methods(change)) == (BlastRadius.RELOAD, ["runtime.certificate"])

"""Files that sb.yml includes, and pins of host keys, are part of what a plan was made from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.errors import StalePlanError
from sbctl.config.compiled import CompiledConfig
from sbctl.config.host_lock import HostLock, LockedKey, write_host_lock
from sbctl.config.load import load
from sbctl.plan.build import build_plan
from sbctl.plan.saved_plan import check_saved, read_saved, saved_payload
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs
from tests.simulators.ssh_keys import ed25519_key

SB = """\
include: [hosts/*.yml]
proxy: {model_host: {deployments: {chat: {model: smollm2-135m-instruct, variant: q4_1}}}}
origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}
"""
HOST = "fleet: {hosts: {a: {address: 10.0.0.1, labels: {zone: x}}}}\n"


def pin(directory: Path, seed: str) -> None:
    key = LockedKey("a", "10.0.0.1", 22, ed25519_key(seed))
    write_host_lock(HostLock(directory / "sb.hosts.lock").pinned("a", [key]))


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    (tmp_path / "hosts").mkdir()
    (tmp_path / "hosts" / "a.yml").write_text(HOST)
    (tmp_path / "sb.yml").write_text(SB)
    pin(tmp_path, "one")
    return tmp_path


def compiled(directory: Path) -> CompiledConfig:
    return load(directory / "sb.yml", environ={})


def test_a_saved_plan_is_stale_once_an_included_file_or_a_pin_changed(fleet: Path) -> None:
    before = compiled(fleet)
    given = inputs(host_resources("a"))
    given = replace(given, config_digest=before.digest)
    plan = build_plan(given, FAKE_PLANNERS)
    saved = read_saved(saved_payload(plan))

    def check() -> None:
        digest = compiled(fleet).digest
        fresh = build_plan(replace(given, config_digest=digest), FAKE_PLANNERS)
        check_saved(
            saved, lineage=plan.lineage, serial=plan.serial, config_digest=digest, catalog_digest=plan.catalog_digest, fresh_plan=fresh
        )  # fmt: skip

    check()
    (fleet / "hosts" / "a.yml").write_text("# only a comment\n" + HOST)
    check()
    (fleet / "hosts" / "a.yml").write_text(HOST.replace("zone: x", "zone: y"))
    with pytest.raises(StalePlanError, match="the configuration changed"):
        check()
    (fleet / "hosts" / "a.yml").write_text(HOST)
    pin(fleet, "two")
    with pytest.raises(StalePlanError, match="the configuration changed"):
        check()


def test_another_pin_is_a_change_of_the_connection_and_replaces_nothing(fleet: Path) -> None:
    before = compiled(fleet).hosts["a"].connection
    pin(fleet, "two")
    after = compiled(fleet).hosts["a"].connection
    assert before != after
    known = [replace(one, connection=before) for one in host_resources("a")]
    wanted = [replace(one, connection=after) for one in host_resources("a")]
    plan = build_plan(inputs(wanted, known), FAKE_PLANNERS)
    assert plan.actionable == ()
    assert any("are reached" in note for note in plan.notes)

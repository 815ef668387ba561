"""A host whose admin API owns the deployments: sb.yml seeds them once, then plans show them as unmanaged; routes and keys stay sb.yml's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.catalog.loader import builtin_catalog
from sbctl.plan.model import UNMANAGED
from tests.simulators.provider_world import QUICKSTART, ProviderWorld

OWNED = QUICKSTART.replace("  model_host:\n", "  admin: {enabled: true}\n  model_host:\n    authority: admin_managed\n")
EMPTY = """\
proxy:
  http_bind_port: 8080
  admin: {enabled: true}
  model_host: {authority: admin_managed}
"""


@pytest.fixture
def world(tmp_path: Path) -> ProviderWorld:
    return ProviderWorld(tmp_path)


def test_deployments_seed_an_empty_store_and_are_unmanaged_then(world: ProviderWorld) -> None:
    world.configure(OWNED)
    assert world.rows()["deployment.local/chat"] == "create"
    world.apply()
    assert world.settled()
    world.configure(OWNED.replace("max_concurrency: 2", "max_concurrency: 8").replace("chat", "other"))
    plan = world.plan()
    rows = world.rows(plan)
    assert "deployment.local/other" not in rows
    assert rows["deployment.local/chat"] == "forget"
    assert rows["bundle.local"] == "update"
    assert any("unmanaged on local: deployments (chat, other)" in note for note in plan.notes)
    world.apply()
    assert list(world.host().deployments) == ["chat"]
    assert world.settled()
    assert {change.reason for change in world.plan().changes if change.address.kind == "deployment"} == {UNMANAGED}


def test_weights_and_engines_that_the_api_may_need_are_kept_until_it_owns_nothing(world: ProviderWorld) -> None:
    world.configure(OWNED)
    world.apply()
    held = set(world.host().artifacts)
    world.configure(EMPTY)
    assert set(world.rows()) <= {"bundle.local", "deployment.local/chat", "origin.local/localhost"}
    world.apply()
    assert world.settled()
    assert set(world.host().artifacts) == held
    world.configure(EMPTY.replace("admin_managed", "file_managed"))
    assert {"engine.local/llama_cpp", "artifact.local/smollm2-135m-instruct:q4_1"} <= set(world.rows())
    world.apply()
    world.apply()
    assert world.settled()
    assert not world.host().artifacts


def test_what_the_api_changed_is_no_drift(world: ProviderWorld) -> None:
    world.configure(OWNED)
    world.apply()
    node = world.host()
    node.deployments_revision = 7
    chat = node.deployments.pop("chat")
    assert world.settled()
    node.deployments = {"chat": chat.model_copy(update={"stopped_by": "operator", "content_digest": "0" * 64})}
    assert world.settled()


def test_an_owner_that_has_nothing_yet_keeps_its_routes_and_destroy_takes_all(world: ProviderWorld) -> None:
    world.configure(EMPTY)
    world.apply()
    assert world.host().bundle is not None
    assert world.settled()
    world.configure(OWNED)
    world.apply()
    assert world.settled()
    world.execute(world.plan(mode="destroy", desired=()))
    assert world.state.resources == {}


def test_each_owner_hands_over_in_one_apply(world: ProviderWorld) -> None:
    world.configure(QUICKSTART)
    world.apply()
    for text, revision in ((OWNED, 1), (QUICKSTART, None)):
        world.configure(text)
        assert world.rows()["runtime.local"] == "update"
        world.apply()
        assert world.host().deployments_revision == revision
        assert list(world.host().deployments) == ["chat"]
        assert world.settled()


def test_a_route_may_come_before_its_deployment(world: ProviderWorld) -> None:
    config = world.configure(EMPTY + QUICKSTART[QUICKSTART.index("origins:") :])
    (origin,) = config.hosts["local"].origins.values()
    assert [route.deployment for route in origin.routes] == ["chat"]
    world.apply()
    assert world.settled()


def test_the_operators_catalog_travels_where_the_api_may_choose_from_it(world: ProviderWorld) -> None:
    entry = builtin_catalog().entries["smollm2-135m-instruct"].model.model_dump(mode="json", exclude_defaults=True)

    def write(**models: object) -> None:
        document = {"schema_version": 2, "catalog_revision": "ours-1", "models": models}
        (world.directory / "models.yaml").write_text(json.dumps(document))

    with_catalog = OWNED.replace("    authority:", "    catalog_file: models.yaml\n    authority:")
    write(ours=entry)
    world.configure(with_catalog)
    world.apply()
    assert world.settled()
    write(ours=entry, more={**entry, "family": "another"})
    world.configure(with_catalog)
    plan = world.plan()
    (change,) = plan.actionable
    assert (str(change.address), change.blast_radius.name) == ("bundle.local", "HITLESS")
    assert [leaf.path for leaf in change.leaves] == ["catalog.more", "revision"]
    world.apply()
    assert world.settled()
    world.configure(with_catalog.replace("admin_managed", "file_managed"))
    world.apply()
    write(ours=entry, third=entry)
    world.configure(with_catalog.replace("admin_managed", "file_managed"))
    assert world.settled(), "where sb.yml owns the deployments an entry that none uses changes nothing"

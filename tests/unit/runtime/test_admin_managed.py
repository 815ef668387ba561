"""Deployments that the admin API owns: what a body may ask for, compare and set, seeds, restarts, and what a refusal reads like."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import ArtifactError, EngineError, InputError, RefusedError, SbctlError
from sbctl.catalog.loader import builtin_catalog
from sbctl.runtime.admin_catalog import KnownCatalog
from sbctl.runtime.admin_deployments import asked_deployments, shown_deployment
from sbctl.runtime.admin_desired import AdminDesired, refusal
from sbctl.runtime.assigned import assigned_artifacts
from sbctl.runtime.provision import quiet
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import DeploymentMember
from tests.simulators.engine_world import EngineWorld, in_virtual_time
from tests.simulators.runtime_world import SCOPE, Operator, content

MakeMember = Callable[..., DeploymentMember]
MODEL = "qwen2.5-0.5b-instruct"


class _Node:
    def __init__(self, folder: Path, world: EngineWorld, operator: Operator, authority: str = "admin_managed") -> None:
        self.world, self.operator = world, operator
        self.store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
        self.reconciler = Reconciler(
            scope=SCOPE,
            trust=operator.trust,
            store=self.store,
            ports=world.ports(),
            clock=SYSTEM_CLOCK,
            drain_s=5,
            parallel_prepares=2,
            admin_managed=authority == "admin_managed",
        )
        self.admin = AdminDesired(self.reconciler, authority=authority)

    async def apply(self, revision: int, deployments: dict[str, DeploymentMember]) -> None:
        envelope = self.operator.bundle(content(deployments), revision)
        await self.reconciler.apply_bundle(envelope, revision - 1 or None, quiet)

    async def put(self, expected: int | None, **deployments: Any) -> dict[str, Any]:
        """The answer's body, with its status beside it."""
        try:
            self.admin.refuse_foreign()
            asked = self.admin.asked({"expected_revision": expected, "deployments": deployments})
            answer = await self.admin.replace(asked)
        except SbctlError as error:
            status, body = refusal(error)
            return {"status": status, **body}
        return {"status": 200, **answer}

    def states(self) -> dict[str, str]:
        return {row.deployment: row.state for row in self.reconciler.deployments()}

    async def end(self) -> None:
        await self.reconciler.shutdown(drain_s=1.0)
        self.store.close()


def _run(folder: Path, scenario: Callable[[Callable[..., _Node]], Coroutine[Any, Any, None]]) -> None:
    world, operator, open_ones = EngineWorld(), Operator(), []

    def node(authority: str = "admin_managed") -> _Node:
        open_ones.append(_Node(folder, world, operator, authority))
        return open_ones[-1]

    async def work() -> None:
        try:
            await scenario(node)
        finally:
            await open_ones[-1].end()

    in_virtual_time(work)


def test_the_first_bundle_seeds_the_store_and_later_ones_leave_it(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        assert node.admin.shown()["revision"] is None
        await node.apply(1, {"q": make_member()})
        shown = node.admin.shown()
        assert (shown["revision"], shown["read_only"], list(shown["deployments"])) == (1, False, ["q"])
        await node.apply(2, {"other": make_member("other")})
        assert node.states() == {"q": "ready"}
        bundle = node.reconciler.bundle()
        assert bundle is not None
        assert (bundle.revision, bundle.deployments_revision) == (2, 1)
        # What the later bundle brought can be asked for by name.
        answer = await node.put(1, q={"model": "tiny", "warm": True}, o={"model": "other", "warm": True})
        assert (answer["status"], answer["revision"], answer["plan"]["added"]) == (200, 2, ["o"])
        assert node.states() == {"o": "ready", "q": "ready"}

    _run(tmp_path, scenario)


def test_weights_that_the_api_needs_are_assigned_also_while_no_runtime_answers(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        await node.apply(1, {"q": make_member(), "p": make_member("other")})
        await node.apply(2, {"q": make_member()})
        assert sorted((assigned_artifacts(tmp_path / "bundle.json") or {}).values()) == [("p",), ("q",)]
        shown = node.admin.shown()["deployments"]
        await node.put(1, p=shown["p"], again=shown["p"])
        assert sorted((assigned_artifacts(tmp_path / "bundle.json") or {}).values()) == [("again", "p"), ("q",)]
        (tmp_path / "deployments.json").write_text("[")
        assert assigned_artifacts(tmp_path / "bundle.json") is None

    _run(tmp_path, scenario)


def test_engine_builds_are_those_of_the_file(tmp_path: Path, make_member: MakeMember) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        await node.apply(1, {"q": make_member()})
        await node.put(1, r={"model": "tiny", "warm": True})
        await node.apply(2, {"q": make_member(program="/newer")})
        assert node.reconciler.generations["r"].member.engine.path == "/newer"
        assert node.states() == {"r": "ready"}
        assert (await node.put(2, **node.admin.shown()["deployments"]))["plan"]["preserved"] == ["r"]

    _run(tmp_path, scenario)


def test_what_a_read_showed_can_be_sent_back_and_changes_nothing(tmp_path: Path, make_member: MakeMember) -> None:
    """Also what a body has no field for, such as a smaller context."""

    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        await node.apply(1, {"q": make_member(context_length=256, kv_quant="int8")})
        shown = node.admin.shown()
        answer = await node.put(1, **shown["deployments"])
        assert answer["plan"] == {"added": [], "changed": [], "removed": [], "preserved": ["q"]}
        assert answer["content_digest"] == shown["content_digest"]

    _run(tmp_path, scenario)


def test_what_the_api_wrote_is_served_by_the_next_process_and_a_stop_stays(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        await node.apply(1, {"q": make_member(), "p": make_member("other")})
        await node.reconciler.act("p", "stop")
        await node.put(
            1, q={"model": "tiny", "warm": True, "max_queue_depth": 7}, p=node.admin.shown()["deployments"]["p"]
        )
        await node.apply(2, {"q": make_member()})
        assert node.states() == {"p": "stopped", "q": "ready"}
        await node.end()
        node = start()
        await node.reconciler.restore()
        assert {row.deployment: row.stopped_by for row in node.reconciler.deployments()} == {"p": "operator", "q": None}
        assert node.reconciler.generations["q"].member.max_queue_depth == 7
        assert node.admin.shown()["revision"] == 2

    _run(tmp_path, scenario)


def test_a_bundle_for_a_file_managed_runtime_takes_the_deployments_back(
    tmp_path: Path, make_member: MakeMember
) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        await node.apply(1, {"q": make_member()})
        await node.put(1)
        assert node.states() == {}
        await node.end()
        node = start("file_managed")
        await node.reconciler.restore()
        assert list(node.states()) == ["q"]
        assert (await node.put(2))["code"] == "authority_read_only"
        await node.apply(2, {"q": make_member()})
        assert node.store.admin_deployments() is None

    _run(tmp_path, scenario)


def test_every_refusal_has_its_status_and_leaves_the_store_as_it_was(tmp_path: Path, make_member: MakeMember) -> None:
    tiny = {"model": "tiny", "warm": True}

    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        early = await node.put(None, q={"model": MODEL})
        assert (early["status"], early["code"]) == (422, "prepare_failed")
        await node.apply(1, {"q": make_member()})
        conflict = await node.put(None, q=tiny)
        assert (conflict["status"], conflict["code"]) == (409, "revision_conflict")
        assert (conflict["expected_revision"], conflict["actual_revision"]) == (None, 1)
        for fault, status, code, reason in (
            (EngineError("engine_early_exit", "it ended"), 502, "engine_early_exit", None),
            (EngineError("insufficient_capacity", "no room"), 422, "insufficient_capacity", None),
        ):
            node.world.faults[:] = [fault]
            refused = await node.put(1, q={**tiny, "max_concurrency": 3})
            assert (refused["status"], refused["code"], refused.get("reason_code")) == (status, code, reason)
            assert refused["deployment"] == "q"
        assert node.admin.shown()["revision"] == 1
        assert node.states() == {"q": "ready"}

    _run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (ArtifactError("artifact.corrupt", "wrong digest", detail={"stage": "prepare"}), 422, "prepare_failed"),
        (
            ArtifactError("artifact.unreachable", "no answer", retryable=True, detail={"stage": "prepare"}),
            502,
            "prepare_infrastructure_failed",
        ),
        (SbctlError("store_failed", "no room on the disk"), 502, "store_failed"),
        (
            SbctlError("runtime_commit_failed", "x", detail={"durable_state_advanced": True}),
            502,
            "runtime_commit_failed",
        ),
        (RefusedError("authority_read_only", "x"), 403, "authority_read_only"),
    ],
)
def test_the_table_of_refusals(error: SbctlError, status: int, code: str) -> None:
    found, body = refusal(error)
    assert (found, body["code"]) == (status, code)
    assert body.get("reason_code", code) in (code, error.code)
    assert body.get("durable_state_advanced", True)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"deployments": {}}, "invalid_body"),
        ({"expected_revision": 1.5, "deployments": {}}, "invalid_body"),
        ({"expected_revision": None, "deployments": {}, "more": 1}, "invalid_body"),
        ({"expected_revision": None, "deployments": {"a/b": {"model": MODEL}}}, "invalid_body"),
        ({"expected_revision": None, "deployments": {f"d{n}": {} for n in range(1025)}}, "invalid_body"),
        ({"expected_revision": None, "deployments": {"q": "tiny"}}, "invalid_desired"),
        ({"expected_revision": None, "deployments": {"q": {"model": " "}}}, "invalid_desired"),
        ({"expected_revision": None, "deployments": {"q": {"model": MODEL, "replica": 1}}}, "invalid_desired"),
        ({"expected_revision": None, "deployments": {"q": {"model": MODEL, "replicas": 0}}}, "invalid_desired"),
        ({"expected_revision": None, "deployments": {"q": {"model": MODEL, "spread_by": ["zone"]}}}, "invalid_desired"),
        (
            {"expected_revision": None, "deployments": {"q": {"model": MODEL, "heterogeneous_variants": True}}},
            "invalid_desired",
        ),
        ({"expected_revision": None, "deployments": {"q": {"model": MODEL, "extra_args": []}}}, "invalid_desired"),
        ({"expected_revision": None, "deployments": {"q": {"model": "nobody/knows"}}}, "unknown_catalog_model"),
        (
            {"expected_revision": None, "deployments": {"q": {"model": MODEL, "variant": "x"}}},
            "unknown_catalog_variant",
        ),
        ({"expected_revision": None, "deployments": {"q": {"model": MODEL, "engine": "vllm"}}}, "engine_incompatible"),
    ],
)
def test_a_body_that_cannot_be_carried_out_is_refused_by_name(document: dict[str, Any], code: str) -> None:
    with pytest.raises((InputError, RefusedError)) as caught:
        asked_deployments(document, stored={}, offered={}, catalog=builtin_catalog())
    assert caught.value.code == code
    if code != "invalid_body":
        assert caught.value.detail["deployment"] == "q"


def test_a_field_that_nobody_knows_is_named_with_the_one_that_was_meant() -> None:
    document = {"expected_revision": None, "deployments": {"q": {"model": MODEL, "max_concurency": 3}}}
    with pytest.raises(InputError, match='max_concurency is not a field, did you mean "max_concurrency"'):
        asked_deployments(document, stored={}, offered={}, catalog=builtin_catalog())


def test_defaults_are_those_of_the_file(make_member: MakeMember) -> None:
    document = {"expected_revision": None, "deployments": {"q": {"model": MODEL}, "t": {"model": "tiny"}}}
    asked = asked_deployments(document, stored={}, offered={"x": make_member()}, catalog=builtin_catalog())
    shown = shown_deployment(asked.deployments["q"])
    wanted = {"cold_start": "wait", "pull": "on_demand", "warm": False, "max_concurrency": 1, "max_queue_depth": 128}
    assert {name: shown[name] for name in wanted} == wanted
    # Another id than the bundle's: its weights and engine, not its tuning.
    assert asked.deployments["t"].context_length == make_member().artifact.context_length
    assert asked.deployments["t"].engine == asked.deployments["q"].engine == make_member().engine


def test_started_by_hand_the_file_rules(tmp_path: Path) -> None:
    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        admin = AdminDesired(node.reconciler, authority="admin_managed", started_by_hand=True)
        assert admin.shown()["read_only"] is True
        with pytest.raises(RefusedError, match="started by hand"):
            admin.refuse_foreign()

    _run(tmp_path, scenario)


def test_a_model_of_the_operators_catalog_can_be_named(tmp_path: Path, make_member: MakeMember) -> None:
    own = {**builtin_catalog().entries[MODEL].model.model_dump(mode="json"), "family": "ours"}
    catalog = {"schema_version": 2, "catalog_revision": "ours-1", "models": {"our-model": own}}

    async def scenario(start: Callable[..., _Node]) -> None:
        node = start()
        with_it = content({}).model_copy(update={"catalog": catalog})
        await node.reconciler.apply_bundle(node.operator.bundle(with_it, 1), None, quiet)
        answer = await node.put(None, q={"model": "our-model"})
        assert (answer["status"], answer["plan"]["added"]) == (200, ["q"])
        told = node.admin.catalog()
        assert (told["catalog_revision"], told["models"]["our-model"]["builtin"]) == ("ours-1", False)
        assert told["models"][MODEL]["builtin"] is True
        await node.reconciler.apply_bundle(node.operator.bundle(content({}), 2), 1, quiet)
        assert (await node.put(1, q={"model": "our-model"}))["status"] == 200, "what is stored is known by its weights"
        assert (await node.put(2, p={"model": "another"}))["code"] == "unknown_catalog_model"

    _run(tmp_path, scenario)


def test_a_catalog_that_cannot_be_read_leaves_the_built_in_one() -> None:
    broken = content({}).model_copy(update={"catalog": {"schema_version": 9, "models": {}}})
    assert KnownCatalog().of(broken) is builtin_catalog()
    assert "catalog" not in content({}).model_dump(mode="json"), "what is not there changes no digest"

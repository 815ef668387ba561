"""The node interface's calls on the model cache, as the runtime's configuration and bundle bind them."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.answers import CacheListing, Pruned, Pulled, Verified
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.digests import canonical_json
from sbctl.base.errors import ArtifactError, RefusedError
from sbctl.node.artifact_messages import ArtifactList, ArtifactPrune, ArtifactPull, ArtifactRemove, ArtifactVerify
from sbctl.node.messages import RuntimeConfig
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import EventLog, read_events
from sbctl.runtime.nodeops import artifact_ops
from sbctl.runtime.nodeops.context import NodeContext
from tests.simulators.artifact_samples import write_sources
from tests.simulators.runtime_world import Operator, content, member


def configured(context: NodeContext, **fields: Any) -> None:
    config = RuntimeConfig(lineage="L", host="h", **fields)
    context.paths.runtime_config.write_bytes(canonical_json(config.model_dump(mode="json")))


def pulled(context: NodeContext, facts: ArtifactFacts, **fields: Any) -> Pulled:
    return Pulled.model_validate(artifact_ops.pull_artifact(context, ArtifactPull(artifact=facts, **fields)))


def listing(context: NodeContext, *wanted: ArtifactFacts) -> CacheListing:
    return CacheListing.model_validate(artifact_ops.list_artifacts(context, ArtifactList(wanted=wanted)))


def sample(tmp_path: Path, letter: str) -> ArtifactFacts:
    return write_sources(tmp_path / letter, {"w.dat": letter.encode() * 5000})


def test_a_pull_makes_room_within_the_hosts_budget_and_never_takes_what_is_pinned(
    context: NodeContext, tmp_path: Path
) -> None:
    configured(context, cache_budget_bytes=13_000)
    first, second, third = (sample(tmp_path, letter) for letter in "abc")
    assert pulled(context, first, pinned=True).collected is not None
    pulled(context, second)
    told = pulled(context, third)
    assert told.collected is not None
    assert told.collected.deleted == (second.artifact,)
    assert told.collected.skipped == {first.artifact: "pinned"}
    assert told.collected.unsatisfied_bytes == 0
    found = {one.artifact: one for one in listing(context).artifacts}
    assert set(found) == {first.artifact, third.artifact}
    assert found[first.artifact].pinned
    assert (found[third.artifact].model, found[third.artifact].state) == ("tiny", "ready")
    assert listing(context).budget_bytes == 13_000


def test_an_offline_host_fetches_nothing_whoever_asks(context: NodeContext, tmp_path: Path) -> None:
    configured(context, offline=True)
    facts = sample(tmp_path, "a").model_copy(update={"source": "https://weights.example/w.dat"})
    with pytest.raises(ArtifactError) as caught:
        pulled(context, facts)
    assert caught.value.code == "artifact.offline_missing"
    theirs = Path(context.environ["HOME"]) / ".ollama/models/blobs" / f"sha256-{facts.files[0].sha256}"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(b"a" * 5000)
    assert listing(context, facts).importable == {facts.artifact: "ollama"}
    assert pulled(context, facts).imported_from == ("ollama",)
    assert listing(context, facts).offline


def accept(context: NodeContext, facts: ArtifactFacts) -> None:
    """A bundle whose deployment `chat` serves these weights."""
    desired = content({"chat": member(facts, "/opt/llama-server")})
    context.paths.bundle.write_text(Operator().bundle(desired, 1))


def test_F11_a_changed_blob_is_set_aside_and_its_deployment_is_told(context: NodeContext, tmp_path: Path) -> None:
    facts = sample(tmp_path, "a")
    snapshot = Path(pulled(context, facts).snapshot_path)
    accept(context, facts)
    sqlite3.connect(context.paths.database).close()
    events = EventLog(context.paths.database, context.clock)
    events.tell(EventKind.RUNTIME_STARTED, "version 0")
    events.close()
    assert listing(context).artifacts[0].configured
    weights = snapshot / "w.dat"
    weights.chmod(0o600)
    weights.write_bytes(b"b" * 5000)
    asked = ArtifactVerify(artifact=facts.artifact)
    told = Verified.model_validate(artifact_ops.verify_artifact(context, asked))
    assert not told.is_good
    assert told.deployments == ("chat",)
    assert [Path(path).parent.name for path in told.quarantined] == ["quarantine"]
    (event,) = read_events(context.paths.database, after=None, limit=10, deployment="chat").events
    assert event.kind == "weights.quarantined"
    assert "w.dat" in event.message
    with pytest.raises(ArtifactError):
        artifact_ops.verify_artifact(context, asked)
    pulled(context, facts)
    assert Verified.model_validate(artifact_ops.verify_artifact(context, asked)).is_good


def test_what_a_deployment_is_configured_with_is_not_collected(context: NodeContext, tmp_path: Path) -> None:
    configured(context, cache_budget_bytes=1)
    first, second = sample(tmp_path, "a"), sample(tmp_path, "b")
    accept(context, first)
    pulled(context, first)
    told = pulled(context, second)
    assert told.collected is not None
    assert told.collected.skipped == {first.artifact: "configured", second.artifact: "fresh"}
    done = Pruned.model_validate(artifact_ops.prune_artifacts(context, ArtifactPrune()))
    assert done.collected is not None
    assert done.collected.deleted == (second.artifact,)


@pytest.mark.parametrize("damage", ["unreadable bundle", "started by hand"])
def test_nothing_is_collected_where_needs_cannot_be_told(
    context: NodeContext, tmp_path: Path, runtime: Any, damage: str
) -> None:
    configured(context, cache_budget_bytes=1)
    if damage == "unreadable bundle":
        context.paths.bundle.write_text("{")
    else:
        runtime.answers["GET", "/control/v1/status"] = (200, [{"started_by_hand": True}])
    facts = sample(tmp_path, "a")
    assert pulled(context, facts).collected is None
    assert Pruned.model_validate(artifact_ops.prune_artifacts(context, ArtifactPrune())).collected is None
    assert len(listing(context).artifacts) == 1


def test_a_leased_artifact_is_not_removed(context: NodeContext, tmp_path: Path) -> None:
    facts = sample(tmp_path, "a")
    pulled(context, facts)
    lease = ArtifactCache(context.paths.models).lease(facts.artifact)
    assert listing(context).artifacts[0].leased
    with pytest.raises(RefusedError):
        artifact_ops.remove_artifact(context, ArtifactRemove(artifact=facts.artifact))
    lease.release()
    assert artifact_ops.remove_artifact(context, ArtifactRemove(artifact=facts.artifact))["reclaimed_bytes"] == 5000

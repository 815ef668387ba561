"""Four small kinds over the simulated fleet and a planner of thirty lines: enough to exercise the executor without depending on the
real providers.

Specs: artifact {"facts": …}, engine {"version": …}, bundle {"deployments": {name: member}}, deployment {"member": …}.
An engine's update is two steps (install the new, remove the old); everything else has one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.clock import Clock, rfc3339
from sbctl.base.connection import Connection
from sbctl.base.digests import canonical_json, fingerprint, sha256_bytes
from sbctl.base.ids import Address
from sbctl.base.secret import Secret
from sbctl.base.truths import Desired, Recorded
from sbctl.node.messages import Method, RuntimeConfig
from sbctl.node.snapshot import HostMarker, NodeSnapshot
from sbctl.plan.model import Action, Change, DiffContext, Leaf, Observed, Plan, PlanMode, Step
from sbctl.plan.order import execution_graph, run_order
from sbctl.provider import PerformContext, Progress, SignedOnce
from sbctl.trust.bundle import (
    BUNDLE_PAYLOAD_TYPE,
    TRUST_PAYLOAD_TYPE,
    BundleContent,
    BundlePayload,
    DeploymentMember,
    EnginePolicy,
    TrustSet,
    content_digest,
    member_digest,
)
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.fleet import FleetSimulator
from tests.simulators.memory_state import MemoryState

__all__ = [
    "LINEAGE",
    "PROVIDERS",
    "SmallServices",
    "Wanted",
    "facts_of",
    "member_of",
    "prepare_host",
    "small_plan",
    "wanted",
]

LINEAGE = "11111111-2222-4333-8444-555555555555"
_KEY = SigningKey.generate()
_TRUST = TrustSet(lineage=LINEAGE, key_epoch=1, signers={"ops": _KEY.public_text})


def facts_of(name: str, size_bytes: int = 4096) -> ArtifactFacts:
    """An artifact that is a function of its name."""
    files = (ArtifactFile(path=f"{name}.gguf", sha256=sha256_bytes(name.encode()), size_bytes=size_bytes),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source=f"https://weights.example/{name}.gguf",
        model=name,
        variant="q4",
        context_length=4096,
    )


def member_of(model: str, **changes: Any) -> DeploymentMember:
    fields: dict[str, Any] = {
        "model": model,
        "variant": "q4",
        "artifact": facts_of(model),
        "engine": EnginePolicy(engine="llama_cpp", launch="wheel", version="1.0"),
        "replicas": 1,
        "pull": "on_boot",
        "warm": True,
        "cold_start": "wait",
        "keep_alive_secs": None,
        "max_concurrency": 4,
        "max_queue_depth": 16,
        "queue_timeout_ms": 30_000,
        "rollout": "rolling",
        "context_length": 2048,
    }
    return DeploymentMember(**(fields | changes))


def prepare_host(fleet: FleetSimulator, name: str) -> None:
    """A host that is marked and runs a runtime already, so that artifacts, engines and bundles can be applied."""
    host = fleet.add(name, bootstrapped=True)
    host.marker = HostMarker(lineage=LINEAGE, host=name)
    envelope = sign_envelope(TRUST_PAYLOAD_TYPE, canonical_json(_TRUST.model_dump(mode="json")), _KEY, "ops")
    config = RuntimeConfig(lineage=LINEAGE, host=name)
    params = {"version": "0.0.1", "config": config.model_dump(mode="json"), "trust_envelope": envelope}
    host.call(Method.RUNTIME_ACTIVATE, params, {}, lambda done, total: None)


class SmallServices:
    """Signs with one key, counts revisions; everything else is not asked by the small kinds."""

    def __init__(self, clock: Clock, next_revision: Callable[[str], int]) -> None:
        self.clock = clock
        self._next_revision = next_revision

    def sign(self, payload_type: str, payload: bytes) -> str:
        return sign_envelope(payload_type, payload, _KEY, "ops")

    def next_revision(self, scope: str) -> int:
        return self._next_revision(scope)

    def signed_once(self, key: str, *, above: int, sign: Callable[[], SignedOnce]) -> SignedOnce:
        raise NotImplementedError

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        raise NotImplementedError

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        raise NotImplementedError

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        raise NotImplementedError

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, Path]:
        raise NotImplementedError

    def secret(self, reference: str) -> Secret:
        raise NotImplementedError


# Kinds


def _change(
    action: Action,
    desired: Desired | None,
    recorded: Recorded | None,
    observed: Observed,
    calls: Iterable[tuple[Method, Mapping[str, Any]]] = (),
    leaves: tuple[Leaf, ...] = (),
) -> Change:
    subject = desired or recorded
    assert subject is not None
    steps = tuple(
        Step(f"{subject.address}#{number}:{method}", str(method), params, f"{method} {subject.address}")
        for number, (method, params) in enumerate(calls, start=1)
    )
    return Change(
        address=subject.address,
        action=action,
        reason="asked for",
        host=subject.host,
        connection=subject.connection,
        leaves=leaves,
        steps=steps,
        after=subject.after,
        member_of=subject.member_of,
        desired=desired,
        recorded=recorded,
        decisive=observed.decisive,
    )


class _Kind:
    kind: ClassVar[str]
    record_version: ClassVar[int] = 1

    def desired(self, config: object) -> Iterable[Desired]:
        return ()

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        return record

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        return {"answers": sorted(results)}

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        return context.node.call(
            step.method, step.params, secrets={}, deadline_s=step.deadline_s, progress=context.progress
        )


class ArtifactKind(_Kind):
    kind = "artifact"

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        if snapshot is None:
            return Observed("unreachable")
        wanted_id = facts_of(address.name or "").artifact
        found = next((state.state for state in snapshot.artifacts if state.artifact == wanted_id), None)
        return Observed("absent" if found is None else "present", decisive={"state": found})

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        state = observed.decisive["state"]
        if desired is None:
            assert recorded is not None
            if state is None:
                return _change("forget", None, recorded, observed)
            artifact = recorded.spec["facts"]["artifact"]
            return _change("delete", None, recorded, observed, [(Method.ARTIFACT_REMOVE, {"artifact": artifact})])
        if state == "ready" and recorded is not None:
            return _change("no-op", desired, recorded, observed)
        pull = [(Method.ARTIFACT_PULL, {"artifact": desired.spec["facts"]})]
        return _change(
            "create" if recorded is None else "update",
            desired,
            recorded,
            observed,
            pull,
            (Leaf("state", state, "ready"),),
        )


class EngineKind(_Kind):
    kind = "engine"

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        if snapshot is None:
            return Observed("unreachable")
        versions = sorted(state.version for state in snapshot.engines)
        return Observed("present" if versions else "absent", decisive={"versions": versions})

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        versions: list[str] = list(observed.decisive["versions"])
        wanted_version = None if desired is None else desired.spec["version"]
        surplus = [_remove_call(version) for version in versions if version != wanted_version]
        if desired is None:
            return _change("delete" if surplus else "forget", None, recorded, observed, surplus)
        if versions == [wanted_version] and recorded is not None:
            return _change("no-op", desired, recorded, observed)
        install = (
            [] if wanted_version in versions and recorded is not None else [_install_call(desired.spec["version"])]
        )
        action: Action = "create" if recorded is None else "update"
        return _change(
            action, desired, recorded, observed, [*install, *surplus], (Leaf("versions", versions, [wanted_version]),)
        )


def _install_call(version: str) -> tuple[Method, Mapping[str, Any]]:
    wheel = {"filename": f"engine-{version}-py3-none-any.whl", "sha256": sha256_bytes(version.encode())}
    return Method.ENGINE_INSTALL, {
        "engine": "llama_cpp",
        "launch": "wheel",
        "project": "engine",
        "version": version,
        "wheel": wheel,
        "python": "/usr/bin/python3.11",
        "delivery": "pull",
    }


def _remove_call(version: str) -> tuple[Method, Mapping[str, Any]]:
    return Method.ENGINE_REMOVE, {"engine": "llama_cpp", "version": version}


class BundleKind(_Kind):
    kind = "bundle"

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        if snapshot is None:
            return Observed("unreachable")
        found = snapshot.bundle
        if found is None:
            return Observed("absent", decisive={"digest": None, "revision": None})
        return Observed("present", decisive={"digest": found.content_digest, "revision": found.revision})

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        digest = observed.decisive["digest"]
        if desired is None:
            clear = [(Method.BUNDLE_CLEAR, dict[str, Any]())]
            return _change("delete" if digest else "forget", None, recorded, observed, clear if digest else ())
        drifted = any(change.action not in ("no-op", "unreachable") for change in context.member_changes)
        if digest == content_digest(_content(desired.spec)) and recorded is not None and not drifted:
            return _change("no-op", desired, recorded, observed)
        apply = [(Method.BUNDLE_APPLY, {"expected_revision": observed.decisive["revision"]})]
        return _change("create" if recorded is None else "update", desired, recorded, observed, apply)

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        if step.method != Method.BUNDLE_APPLY:
            return super().perform(step, context)
        assert context.change.desired is not None
        content = _content(context.change.desired.spec)
        services, host = context.services, context.change.host
        payload = BundlePayload(
            lineage=LINEAGE,
            scope=host,
            key_epoch=1,
            revision=services.next_revision(host),
            issued_at=rfc3339(services.clock.now()),
            content=content,
            content_digest=content_digest(content),
        )
        envelope = services.sign(BUNDLE_PAYLOAD_TYPE, canonical_json(payload.model_dump(mode="json")))
        params = {"envelope": envelope, **step.params}
        return context.node.call(step.method, params, secrets={}, deadline_s=step.deadline_s, progress=context.progress)


def _content(spec: Mapping[str, Any]) -> BundleContent:
    deployments = {
        name: DeploymentMember.model_validate(member, strict=False) for name, member in spec["deployments"].items()
    }
    return BundleContent(deployments=deployments, origins={}, api_keys={}, public=False)


class DeploymentKind(_Kind):
    kind = "deployment"

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        if snapshot is None:
            return Observed("unreachable")
        found = next((state for state in snapshot.deployments if state.deployment == address.name), None)
        if found is None:
            return Observed("absent", decisive={"digest": None, "stopped_by": None})
        return Observed("present", decisive={"digest": found.content_digest, "stopped_by": found.stopped_by})

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        if desired is None:
            return _change("delete", None, recorded, observed)
        member = DeploymentMember.model_validate(desired.spec["member"], strict=False)
        digest = member_digest(member)
        same = observed.decisive == {"digest": digest, "stopped_by": None}
        if same and recorded is not None:
            return _change("no-op", desired, recorded, observed)
        leaf = Leaf("digest", observed.decisive["digest"], digest)
        return _change("create" if recorded is None else "update", desired, recorded, observed, (), (leaf,))


PROVIDERS: dict[str, Any] = {kind.kind: kind() for kind in (ArtifactKind, EngineKind, BundleKind, DeploymentKind)}


# Desired state


@dataclass(frozen=True)
class Wanted:
    """What one host should have."""

    engine: str | None = None
    artifacts: tuple[str, ...] = ()
    deployments: Mapping[str, DeploymentMember] = field(default_factory=dict)


def wanted(hosts: Mapping[str, Wanted], connections: Mapping[str, Connection]) -> dict[Address, Desired]:
    found: dict[Address, Desired] = {}

    def add(host: str, kind: str, name: str | None, spec: Mapping[str, Any], **more: Any) -> Address:
        address = Address(kind, host, name)
        found[address] = Desired(address, spec, fingerprint(spec), host, connections[host], **more)
        return address

    for host, want in hosts.items():
        floor: set[Address] = set()
        if want.engine is not None:
            floor.add(add(host, "engine", "llama_cpp", {"version": want.engine}))
        for name in want.artifacts:
            floor.add(add(host, "artifact", name, {"facts": facts_of(name).model_dump(mode="json")}))
        if want.deployments:
            members = {name: member.model_dump(mode="json") for name, member in want.deployments.items()}
            bundle = add(host, "bundle", None, {"deployments": members}, after=frozenset(floor))
            for name, member in members.items():
                add(host, "deployment", name, {"member": member}, member_of=bundle)
    return found


def small_plan(
    fleet: FleetSimulator,
    desired: Mapping[Address, Desired],
    state: MemoryState,
    *,
    mode: PlanMode = "apply",
    providers: Mapping[str, Any] = PROVIDERS,
) -> Plan:
    """Compare desired, recorded and what the simulated hosts show now."""
    snapshots = fleet.snapshots()
    changes: dict[Address, Change] = {}
    addresses = sorted(desired.keys() | state.resources.keys(), key=lambda address: (address.kind == "bundle", address))
    for address in addresses:
        want, recorded = desired.get(address), state.resources.get(address)
        if want is not None and recorded is not None and recorded.attempted:
            recorded = None
        subject = want or recorded
        assert subject is not None
        snapshot = snapshots.get(subject.host)
        provider = providers[address.kind]
        observed = provider.interpret(snapshot, address, recorded)
        if snapshot is None:
            changes[address] = replace(_change("unreachable", want, recorded, observed), steps=())
            continue
        members = tuple(change for change in changes.values() if change.member_of == address)
        context = DiffContext(fleet.clock.now(), mode, snapshot, members)
        changes[address] = provider.diff(want, recorded, observed, context)
    return Plan(
        mode=mode,
        lineage=LINEAGE,
        serial=state.serial,
        config_digest="c",
        catalog_digest="c",
        changes=run_order(changes, execution_graph(changes)),
        created_at=fleet.clock.now(),
        hosts=fleet.connections(),
        unreachable={host: f"{host} gave no answer" for host, snapshot in snapshots.items() if snapshot is None},
    )

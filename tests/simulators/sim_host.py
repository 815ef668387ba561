"""One simulated host: what the node interface does there, without processes, files or network.

It keeps the rules of `sbctl.node.messages`: only what the bootstrap does is answered before programs are installed, files must have been
put before they are used, bundles are verified and fenced by the real verifier, every mutating call is idempotent.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel, ValidationError

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.clock import Clock
from sbctl.base.digests import canonical_json, fingerprint, sha256_bytes
from sbctl.base.errors import ArtifactError, EngineError, HostError, RefusedError
from sbctl.base.secret import Secret
from sbctl.node import artifact_messages, messages
from sbctl.node.messages import PARAMS, Method, RuntimeConfig, WheelFile
from sbctl.node.paths import PREFIX_VARIABLE, NodePaths, node_paths
from sbctl.node.snapshot import (
    ArtifactState,
    BundleState,
    CertificateState,
    DeploymentState,
    EngineState,
    EnrollmentState,
    HostFacts,
    HostMarker,
    NodePathsState,
    NodeSnapshot,
    PublicTlsState,
    PythonFact,
    ReplicaState,
    RuntimeState,
    StoreProgramFact,
)
from sbctl.provider import Progress
from sbctl.runtime.identity_files import IdentityFiles, installed_state
from sbctl.runtime.nodeops import certificate_ops, enrollment_ops
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.trust.bundle import BundlePayload, DeploymentMember, TrustSet, member_digest
from sbctl.trust.public_certificate import check_pair
from sbctl.trust.verifier import Fence, trust_digest, verify_bundle, verify_trust
from tests.simulators.sim_cluster import SimCluster
from tests.simulators.sim_store import SimStore

__all__ = ["DEFAULT_FACTS", "SimHost"]

DEFAULT_FACTS = HostFacts(
    hostname="sim",
    machine_id="5f" * 16,
    boot_id="b0" * 16,
    os_id="debian",
    os_version="12",
    kernel="6.1.0",
    arch="x86_64",
    libc="glibc-2.36",
    cpu_count=8,
    memory_total_bytes=32 * 1024**3,
    memory_available_bytes=24 * 1024**3,
    init="systemd_system",
    pythons=(PythonFact(path="/usr/bin/python3.11", version="3.11.2"),),
)


_BY_BOOTSTRAP = frozenset({Method.HOST_MARK, Method.HOST_UNMARK, Method.RUNTIME_INSTALL})


class SimHost:
    """The truth of one host. Attributes are public: a test edits them to make drift."""

    def __init__(self, name: str, clock: Clock, facts: HostFacts = DEFAULT_FACTS) -> None:
        self.name = name
        self.clock = clock
        self.facts = facts.model_copy(update={"hostname": name})
        self.marker: HostMarker | None = None
        self.blobs: dict[str, int] = {}
        self.versions: list[str] = []
        self.pythons: dict[str, str] = {}
        self.current: str | None = None
        self.config: RuntimeConfig | None = None
        self.trust: TrustSet | None = None
        self.unit_sha256: str | None = None
        self.secret_names: set[str] = set()
        self._sent: dict[str, Secret] = {}
        self.running = False
        self.healthy = False
        self.started_by_hand = False
        self.engines: dict[tuple[str, str], EngineState] = {}
        self.path_engines: tuple[EngineState, ...] = ()
        """Programs found on PATH."""
        self.artifacts: dict[str, ArtifactState] = {}
        self.bundle: BundlePayload | None = None
        self.deployments_revision: int | None = None
        """Of the admin API's store, where that owns the deployments."""
        self.signer = ""
        self.fence: Fence | None = None
        self.deployments: dict[str, DeploymentState] = {}
        self.refused_deployments: set[str] = set()
        """Ids that fail while a bundle is prepared: the bundle is refused whole."""
        self.failing_deployments: set[str] = set()
        """Ids whose replica fails after the bundle was committed: the node is degraded."""
        self.boots = 4000
        self.public_certificate: str | None = None
        self.drained_by: set[str] = set()
        self.store = SimStore()
        self.cluster = SimCluster()
        """Hosts of one fleet share one."""
        self.store_program: StoreProgramFact | None = None

    @property
    def bootstrapped(self) -> bool:
        return bool(self.versions)

    def bootstrap(self, version: str = "0.0.1") -> None:
        """As if the programs had been installed earlier."""
        self.versions.append(version)

    def snapshot(self) -> NodeSnapshot:
        known = NodeSnapshot(
            bootstrapped=self.bootstrapped,
            host=self.facts,
            marker=self.marker,
            paths=NodePathsState(
                etc="/etc/sbctl",
                state="/var/lib/sbctl",
                cache="/var/cache/sbctl",
                opt="/opt/sbctl",
                staging="/var/lib/sbctl/staging",
            ),
        )
        if not self.bootstrapped:
            return known
        return known.model_copy(
            update={
                "runtime": self._runtime_state(),
                "engines": (*self.engines.values(), *self.path_engines),
                "artifacts": tuple(self.artifacts.values()),
                "bundle": self._bundle_state(),
                "certificate": self._certificate_state(),
                "enrollment": self._enrollment_state(),
                "cluster": self.cluster.state_of(self),
                "store": self.store.state,
                "store_program": self.store_program,
                "deployments": tuple(self.deployments.values()) if self.running else (),
            }
        )

    def _runtime_state(self) -> RuntimeState:
        config = self.config
        up = self.running
        return RuntimeState(
            installed_versions=tuple(sorted(self.versions)),
            standalone_pythons=tuple(sorted(set(self.pythons.values()))),
            standalone_used=self.pythons,
            current_version=self.current,
            supervision=self._supervision if config is not None else "none",
            unit_path="/etc/systemd/system/sbctl-runtime.service" if self.unit_sha256 else None,
            unit_sha256=self.unit_sha256,
            config_sha256=None if config is None else _config_sha256(config),
            trust_digest=None if self.trust is None else trust_digest(self.trust),
            running=up,
            healthy=up and self.healthy,
            pid=self.boots if up else None,
            version_running=self.current if up else None,
            started_by_hand=self.started_by_hand,
            tls=self._public_tls(),
            http_url=f"http://{config.http_bind_address}:{config.http_bind_port}" if up and config else None,
            admin_url=f"http://{config.admin_bind}:{config.admin_port}"
            if up and config and config.admin_enabled
            else None,
        )

    @property
    def _supervision(self) -> Any:
        return {"systemd_system": "system", "systemd_user": "user", "none": "parent"}[self.facts.init]

    def _bundle_state(self) -> BundleState | None:
        bundle = self.bundle
        if bundle is None or not self.running:
            return None
        return BundleState(
            revision=bundle.revision,
            content_digest=bundle.content_digest,
            key_epoch=bundle.key_epoch,
            signer=self.signer,
            origins={name: member_digest(origin) for name, origin in bundle.content.origins.items()},
            deployments_revision=self.deployments_revision,
        )

    # Calls

    def put(self, sha256: str, size_bytes: int) -> None:
        self.blobs[sha256] = size_bytes

    def call(
        self, method: str, params: Mapping[str, Any], secrets: Mapping[str, Secret], progress: Progress
    ) -> Mapping[str, Any]:
        """As the node would: parameters go through JSON and the method's own model."""
        known = Method(method)
        if not self.bootstrapped and known not in _BY_BOOTSTRAP:
            raise HostError("host.not_bootstrapped", "nothing of ours answers on this host", place=self.name)
        self.secret_names |= set(secrets)
        self._sent = dict(secrets)
        request = _parsed(known, params)
        result = self._calls()[known](request, progress)
        return json.loads(json.dumps(result))  # type: ignore[no-any-return]

    def _calls(self) -> Mapping[Method, Callable[[Any, Progress], Mapping[str, Any]]]:
        return {
            Method.HOST_MARK: self._mark,
            Method.HOST_UNMARK: self._unmark,
            Method.HOST_DRAIN: self._drain,
            Method.HOST_RESUME: self._resume,
            Method.HOST_LEAVE: lambda _request, _progress: {"running": self.running, "left": self.cluster.stuck},
            Method.CERTIFICATE_REQUEST: self._certificate(certificate_ops.request_certificate),
            Method.CERTIFICATE_INSTALL: self._certificate(certificate_ops.install_certificate),
            Method.CERTIFICATE_REMOVE: self._certificate(certificate_ops.remove_certificate),
            Method.ENROLLMENT_REQUEST: self._certificate(enrollment_ops.request_delegation),
            Method.ENROLLMENT_INSTALL: self._certificate(enrollment_ops.install_enrollment),
            Method.ENROLLMENT_REMOVE: self._certificate(enrollment_ops.remove_enrollment),
            Method.STORE_INSTALL: self.store.install,
            Method.STORE_REMOVE: self.store.remove,
            Method.RUNTIME_INSTALL: self._install_runtime,
            Method.RUNTIME_ACTIVATE: self._activate,
            Method.RUNTIME_CERTIFICATE: self._take_public_certificate,
            Method.RUNTIME_KEYS: self._take_provider_keys,
            Method.RUNTIME_REMOVE: self._remove_runtime,
            Method.ENGINE_INSTALL: self._install_engine,
            Method.ENGINE_REMOVE: self._remove_engine,
            Method.ARTIFACT_PULL: self._pull,
            Method.ARTIFACT_IMPORT: self._import,
            Method.ARTIFACT_REMOVE: self._remove_artifact,
            Method.BUNDLE_APPLY: self._apply_bundle,
            Method.BUNDLE_CLEAR: self._clear_bundle,
            Method.CLUSTER_PUBLISH: lambda request, progress: self.cluster.publish(self, request, progress),
            Method.DEPLOYMENT_ACTION: self._deployment_action,
        }

    def _mark(self, request: messages.HostMark, _: Progress) -> Mapping[str, Any]:
        self._require_lineage(request.lineage)
        self.marker = HostMarker(lineage=request.lineage, host=request.host)
        return {"marker": self.marker.model_dump()}

    def _unmark(self, request: messages.HostUnmark, _: Progress) -> Mapping[str, Any]:
        self._require_lineage(request.lineage)
        if self.versions:
            raise RefusedError("host.not_empty", "a runtime is still installed on this host", place=self.name)
        self.marker = None
        self.blobs = {}
        if not request.keep_weights:
            self.artifacts = {}
        return {}

    def _certificate(self, operation: Callable[[NodeContext, Any], dict[str, Any]]) -> Callable[[Any, Progress], Any]:
        """The node's own code, on the files of this host."""

        def run(request: Any, _: Progress) -> Mapping[str, Any]:
            self._require_lineage(request.lineage)
            prefix = str(self.identity_paths.etc.parent)
            context = NodeContext(self.identity_paths, {PREFIX_VARIABLE: prefix}, os.getuid(), clock=self.clock)
            return operation(replace(context, secrets=self._sent), request)

        return run

    @cached_property
    def identity_paths(self) -> NodePaths:
        """Where keys and certificates of this host are, as real files."""
        self._directory = tempfile.TemporaryDirectory(prefix="sim-host-")
        return node_paths(os.getuid(), {PREFIX_VARIABLE: self._directory.name})

    def _enrollment_state(self) -> EnrollmentState | None:
        if "identity_paths" not in self.__dict__ or not (self.identity_paths.etc / "enrollment").is_dir():
            return None
        prefix = str(self.identity_paths.etc.parent)
        context = NodeContext(self.identity_paths, {PREFIX_VARIABLE: prefix}, os.getuid(), clock=self.clock)
        return EnrollmentState(**enrollment_ops.enrollment_state(context))

    def _certificate_state(self) -> CertificateState | None:
        if "identity_paths" not in self.__dict__ or not IdentityFiles(self.identity_paths).exists():
            return None
        return CertificateState.model_validate_json(json.dumps(installed_state(self.identity_paths, self.clock.now())))

    def _drain(self, request: messages.HostDrain, _: Progress) -> Mapping[str, Any]:
        self.drained_by.add(request.by or "apply")
        return {"running": self.running, "active_requests": 0, "finished": True}

    def _resume(self, request: messages.HostResume, _: Progress) -> Mapping[str, Any]:
        self.drained_by = {by for by in self.drained_by if (by == "apply") == request.persistent}
        return {"was_drained": bool(self.drained_by)}

    def _require_lineage(self, lineage: str) -> None:
        if self.marker is not None and self.marker.lineage != lineage:
            raise RefusedError("host.other_lineage", "another fleet holds this host", place=self.name)

    def _install_runtime(self, request: messages.RuntimeInstall, progress: Progress) -> Mapping[str, Any]:
        for number, wheel in enumerate((request.uv, *request.wheels)):
            self._require_blob(wheel)
            progress(number + 1, len(request.wheels) + 1)
        if request.version not in self.versions:
            self.versions.append(request.version)
        self.pythons.pop(request.version, None)
        if request.standalone is not None:
            if request.standalone.sha256 not in (*self.blobs, *self.pythons.values()):
                raise HostError("put.missing", "the standalone Python was not sent to this host", place=self.name)
            self.pythons[request.version] = request.standalone.sha256
        return {"path": f"/opt/sbctl/{request.version}"}

    def _require_blob(self, wheel: WheelFile) -> None:
        if wheel.sha256 not in self.blobs:
            raise HostError("blob.missing", f"{wheel.filename} was not put on this host", place=self.name)

    def _activate(self, request: messages.RuntimeActivate, _: Progress) -> Mapping[str, Any]:
        if request.version not in self.versions:
            raise HostError("runtime.not_installed", f"version {request.version} is not installed", place=self.name)
        trust = verify_trust(request.trust_envelope, current=self.trust, lineage=request.config.lineage)
        unit = fingerprint({"version": request.version, "supervision": self._supervision})
        same = (self.current, self.config, self.unit_sha256) == (request.version, request.config, unit)
        self.current, self.config, self.trust, self.unit_sha256 = request.version, request.config, trust, unit
        if not (same and self.running and self.healthy):
            self.boots += 1
        self.running = self.healthy = True
        self._hand_over()
        return {
            "pid": self.boots,
            "unit_sha256": unit,
            "config_sha256": _config_sha256(request.config),
            "trust_digest": trust_digest(trust),
            "supervision": self._supervision,
        }

    def _take_public_certificate(self, request: messages.RuntimeCertificate, _: Progress) -> Mapping[str, Any]:
        self._require_lineage(request.lineage)
        found = check_pair(request.chain.encode(), self._sent["tls_key"])
        self.public_certificate = found.fingerprint
        return {"fingerprint": found.fingerprint, "used": self.running}

    def _take_provider_keys(self, request: messages.RuntimeKeys, _: Progress) -> Mapping[str, Any]:
        self._require_lineage(request.lineage)
        assert self.config is not None
        assert set(request.names) <= set(self._sent).intersection(self.config.provider_keys)
        return {"used": self.running}

    def _public_tls(self) -> PublicTlsState | None:
        if self.config is None or not self.config.has_tls:
            return None
        used = self.public_certificate if self.running else None
        followed = self.config.tls_cert_file is not None
        return PublicTlsState(installed=self.public_certificate, used=used, followed=followed)

    def _remove_runtime(self, request: messages.RuntimeRemove, _: Progress) -> Mapping[str, Any]:
        self._require_lineage(request.lineage)
        if "identity_paths" in self.__dict__:
            IdentityFiles(self.identity_paths).remove()
        self.current = self.config = self.trust = self.unit_sha256 = self.bundle = self.fence = None
        self.versions = []
        self.store.state = None
        self.running = self.healthy = False
        self.secret_names, self.deployments = set(), {}
        return {}

    def _install_engine(self, request: messages.EngineInstall, progress: Progress) -> Mapping[str, Any]:
        if request.delivery == "push":
            self._require_blob(request.wheel)
        progress(1, 1)
        state = EngineState(
            engine=request.engine,
            launch=request.launch,
            version=request.version,
            digest=request.wheel.sha256,
            path=f"/opt/sbctl/engines/{request.engine}/{request.version}",
        )
        self.engines[request.engine, request.version] = state
        return {"path": state.path, "version": state.version, "digest": state.digest}

    def _remove_engine(self, request: messages.EngineRemove, _: Progress) -> Mapping[str, Any]:
        return {"removed": self.engines.pop((request.engine, request.version), None) is not None}

    def _pull(self, request: artifact_messages.ArtifactPull, progress: Progress) -> Mapping[str, Any]:
        return {"artifact": request.artifact.artifact, "downloaded_bytes": self._publish(request.artifact, progress)}

    def _import(self, request: artifact_messages.ArtifactImport, progress: Progress) -> Mapping[str, Any]:
        for file in request.artifact.files:
            if file.sha256 not in self.blobs:
                raise ArtifactError("blob.missing", f"{file.path} was not put on this host", place=self.name)
        return {"artifact": request.artifact.artifact, "imported_bytes": self._publish(request.artifact, progress)}

    def _publish(self, facts: ArtifactFacts, progress: Progress) -> int:
        found = self.artifacts.get(facts.artifact)
        if found is not None and found.state == "ready":
            return 0
        for quarter in range(1, 5):
            progress(facts.total_bytes * quarter // 4, facts.total_bytes)
        self.artifacts[facts.artifact] = ArtifactState(
            artifact=facts.artifact, state="ready", size_bytes=facts.total_bytes
        )
        return facts.total_bytes

    def _remove_artifact(self, request: artifact_messages.ArtifactRemove, _: Progress) -> Mapping[str, Any]:
        content = None if self.bundle is None else self.bundle.content
        if content is not None and any(
            member.artifact.artifact == request.artifact for member in content.deployments.values()
        ):
            raise RefusedError("artifact.in_use", "a deployment uses this artifact", place=self.name)
        removed = self.artifacts.pop(request.artifact, None)
        return {"removed": removed is not None, "reclaimed_bytes": removed.size_bytes if removed else 0}

    def _apply_bundle(self, request: messages.BundleApply, progress: Progress) -> Mapping[str, Any]:
        if not self.running or self.trust is None or self.config is None:
            raise HostError("runtime.not_running", "no runtime answers on this host", place=self.name)
        verified = verify_bundle(
            request.envelope, trust=self.trust, scope=self.config.host, fence=self.fence, now=self.clock.now()
        )
        payload = verified.payload
        accepted = None if self.bundle is None else self.bundle.revision
        if not verified.repeat and accepted != request.expected_revision:
            raise RefusedError(
                "bundle.revision_conflict",
                f"this runtime has revision {accepted}, the plan was made at {request.expected_revision}",
                place=self.name,
            )
        if not verified.repeat or self.bundle is None:
            self._prepare(payload, progress)
            self.bundle, self.fence, self.signer = payload, verified.fence, verified.signer
            if self.deployments_revision is None:
                self._commit(payload)
            self._hand_over()
        report = {
            "deployments": {name: {"state": state.state} for name, state in sorted(self.deployments.items())},
            "degraded": sorted(self.failing_deployments & self.deployments.keys()),
        }
        return {"revision": payload.revision, "content_digest": payload.content_digest, "report": report}

    def _hand_over(self) -> None:
        """What the admin API owns begins as what the bundle says; a bundle's owner takes all back."""
        owns = self.config is not None and self.config.authority == "admin_managed"
        if owns and self.deployments and self.deployments_revision is None:
            self.deployments_revision = 1
        elif not owns and self.deployments_revision is not None and self.bundle is not None:
            self.deployments_revision = None
            self._commit(self.bundle)

    def _prepare(self, payload: BundlePayload, progress: Progress) -> None:
        """Everything that can be refused is refused before anything changes."""
        members = payload.content.deployments
        for number, (name, member) in enumerate(sorted(members.items()), start=1):
            artifact = self.artifacts.get(member.artifact.artifact)
            if member.pull == "on_boot" and (artifact is None or artifact.state != "ready"):
                raise ArtifactError("prepare_failed", f"the weights of {name} are not on this host", place=self.name)
            if member.warm and not self._has_engine(member):
                raise EngineError("prepare_failed", f"the engine of {name} is not on this host", place=self.name)
            if name in self.refused_deployments:
                raise EngineError("prepare_failed", f"{name} produced no token", place=self.name)
            progress(number, len(members))

    def _has_engine(self, member: DeploymentMember) -> bool:
        policy = member.engine
        if policy.launch == "binary":
            return policy.path is not None or any(found.launch == "binary" for found in self.path_engines)
        return any(engine == policy.engine and policy.version in (None, version) for engine, version in self.engines)

    def _commit(self, payload: BundlePayload) -> None:
        before, self.deployments = self.deployments, {}
        for name, member in payload.content.deployments.items():
            digest = member_digest(member)
            old = before.get(name)
            if old is not None and old.content_digest == digest and old.stopped_by is None:
                self.deployments[name] = old
                continue
            state = "failed" if name in self.failing_deployments else "ready" if member.warm else "cached"
            replicas = tuple(
                ReplicaState(replica=number, state=state, last_error="exit status 1" if state == "failed" else None)
                for number in range(member.replicas)
            )
            self.deployments[name] = DeploymentState(
                deployment=name,
                generation=(old.generation if old else 0) + 1,
                state=state,
                content_digest=digest,
                replicas=replicas,
            )

    def _clear_bundle(self, _request: object, _: Progress) -> Mapping[str, Any]:
        self.bundle = None
        self.deployments = {}
        return {}

    def _deployment_action(self, request: messages.DeploymentAction, _: Progress) -> Mapping[str, Any]:
        state = self.deployments.get(request.deployment)
        if state is None:
            raise RefusedError("unknown_deployment", f"{request.deployment} is not deployed here", place=self.name)
        stopped = request.action in ("stop", "drain")
        change = {"state": "stopped" if stopped else "ready", "stopped_by": "operator" if stopped else None}
        self.deployments[request.deployment] = state.model_copy(update=change)
        return self.deployments[request.deployment].model_dump(mode="json")


def _config_sha256(config: RuntimeConfig) -> str:
    return sha256_bytes(canonical_json(config.model_dump(mode="json")))


def _parsed(method: Method, params: Mapping[str, Any]) -> BaseModel | None:
    model = PARAMS.get(method)
    if model is None:
        return None
    try:
        return model.model_validate_json(json.dumps(params))
    except ValidationError as error:
        raise RefusedError("host.invalid_params", f"{method}: {error.error_count()} invalid parameters") from error

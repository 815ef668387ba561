"""sb.yml to simulated hosts and back, with the real configuration, providers, plan and executor.

world = ProviderWorld(tmp_path)                  # one fresh host, "local"
world.configure(QUICKSTART)
world.apply()
world.plan().actionable                          # () when it converged
world.host().artifacts.clear()                   # behind our back
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from providers.registry import PROVIDERS
from sbctl.apply.cancellation import Cancellation
from sbctl.apply.executor import execute
from sbctl.apply.outcome import ApplyOptions, ApplyResult
from sbctl.base.clock import Clock
from sbctl.base.ids import Address
from sbctl.base.secret import Secret, keyed_fingerprint
from sbctl.base.truths import Desired
from sbctl.cli.own_pki import own_files, with_own_identities
from sbctl.cli.services import Signatures
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load
from sbctl.config.secrets import SecretResolver
from sbctl.plan.build import PlanInputs, build_plan
from sbctl.plan.model import Plan
from sbctl.plan.selection import effective_desired
from sbctl.provider import Progress, SignedOnce
from sbctl.trust.authority import Authority
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.identity import Grant
from sbctl.trust.keys import SigningKey
from tests.simulators.fleet import FleetSimulator, SimSession
from tests.simulators.memory_state import MemoryState
from tests.simulators.sim_host import DEFAULT_FACTS, SimHost
from tests.simulators.small_world import Recorder

__all__ = ["LINEAGE", "QUICKSTART", "ProviderWorld", "SimServices"]

LINEAGE = "5d1f6c0e-0000-4000-8000-000000000001"

QUICKSTART = """\
proxy:
  http_bind_port: 8080
  model_host:
    engines:
      llama_cpp: {launch: wheel}
    deployments:
      chat: {model: smollm2-135m-instruct, variant: q4_1, pull: on_boot, warm: true, max_concurrency: 2}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}
"""


class SimServices:
    """The operator's machine without network: wheels and weights are small files of the right digest, as far as anybody looks."""

    def __init__(
        self, directory: Path, clock: Clock, key: SigningKey, allocate: Callable[[str], int], signer: str = "ops"
    ) -> None:
        self.clock = clock
        self.secrets: dict[str, str] = {}
        self.authority: Authority | None = None
        self.config: CompiledConfig | None = None
        self._directory = directory
        self._key = key
        self._allocate = allocate
        self._signer = signer
        self._signatures = Signatures()

    def _file(self, name: str) -> Path:
        path = self._directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
        return path

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        names = ("uv-0.13.0-py3-none-linux.whl", "sbctl_fleet-0.1.0-py3-none-any.whl")
        progress(2, 2)
        return {name: self._file(name) for name in names}

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        return self._file(filename)

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        return self._file(filename)

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, Path]:
        return {file["sha256"]: self._file(file["path"]) for file in facts["files"]}

    def python_archive(self, path: str, sha256: str) -> Path:
        return self._file(Path(path).name)

    def sign(self, payload_type: str, payload: bytes) -> str:
        return sign_envelope(payload_type, payload, self._key, self._signer)

    def next_revision(self, scope: str) -> int:
        return self._allocate(scope)

    def signed_once(self, key: str, *, above: int, sign: Callable[[], SignedOnce]) -> SignedOnce:
        return self._signatures.once(key, above, sign)

    def secret(self, reference: str) -> Secret:
        if self.config is not None and reference.startswith("file:"):
            return SecretResolver(self.config, {}).resolve(reference)
        return Secret(self.secrets[reference].encode())

    def issue_identity(
        self, request: str, grant: Mapping[str, Any], *, validity_days: int, **asked: Any
    ) -> Mapping[str, str]:
        assert self.authority is not None
        granted = Grant.model_validate_json(json.dumps(dict(grant)))
        validity = timedelta(days=validity_days)
        issued = self.authority.issue(request, granted, now=self.clock.now(), validity=validity, **asked)
        return {"certificate": issued.certificate, "identity": issued.identity}

    def delegate_enrollment(self, request: str, verifying_key: str, **asked: Any) -> Mapping[str, str]:
        assert self.authority is not None
        given = self.authority.delegate(request, verifying_key, now=self.clock.now(), **asked)
        return {"certificate": given.certificate, "delegation": given.delegation}

    def own_identity(self, host: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
        assert self.config is not None
        assert self.config.identity is not None
        assert self.config.identity.own is not None
        return own_files(self.config.identity.own, host, spec)

    def identity_trust(self, ca: Sequence[str]) -> Mapping[str, str]:
        assert self.authority is not None
        return {
            "ca": self.authority.bundle(ca),
            "authority_key": self.authority.keys(ca).text(),
            "revocations": self.authority.revocations()[0],
        }


class _TrustingSession(SimSession):
    """Pinned wheels and weights have digests that no small file has: what is put counts as what was asked for."""

    def put(self, sha256: str, source: Path, *, deadline_s: float, progress: Progress) -> None:
        size = source.stat().st_size
        self._fleet.hosts[self.host].put(sha256, size)
        progress(size, size)


class ProviderWorld:
    """`configure` reads a file, `plan` compares, `apply` carries out; `fleet`, `state` and `host()` are there to be tampered with."""

    def __init__(self, directory: Path, *hosts: str, facts: Any = DEFAULT_FACTS) -> None:
        self.directory = directory
        self.fleet = FleetSimulator()
        for host in hosts or ("local",):
            self.fleet.add(host, facts=facts)
        self.state = MemoryState()
        self.key = SigningKey.generate()
        self.signers = {"ops": self.key.public_text}
        self.key_epoch = 0
        self.lineage = LINEAGE
        self.environ: dict[str, str] = {}
        self.config: CompiledConfig | None = None
        self.authority: Authority | None = None
        """What `fleet.identity` of the file names; looked at anew whenever it is planned."""
        self.events = Recorder()

    def host(self, name: str = "local") -> SimHost:
        return self.fleet.hosts[name]

    def configure(self, text: str) -> CompiledConfig:
        path = self.directory / "sb.yml"
        path.write_text(text)

        def keyed(value: bytes) -> str:
            return keyed_fingerprint(b"k" * 32, Secret(value))

        loaded = load(path, environ=self.environ, keyed=keyed)
        self.config = replace(loaded, lineage=self.lineage, signers=self.signers, key_epoch=self.key_epoch)
        return self.config

    def desired(self) -> tuple[Desired, ...]:
        assert self.config is not None
        if self.config.identity is not None and self.config.identity.own is not None:
            self.config = with_own_identities(
                self.config,
                self.config.identity.own,
                resolve=SecretResolver(self.config, self.environ).resolve,
                now=self.fleet.clock.now(),
                offline=False,
            )
        elif self.config.identity is not None and self.authority is not None:
            held = [one.record for address, one in self.state.resources.items() if address.kind == "certificate"]
            self.config = replace(self.config, authority=self.authority.facts(record for record in held if record))
        return tuple(one for provider in PROVIDERS.values() for one in provider.desired(self.config))

    def inputs(self, **more: Any) -> PlanInputs:
        config = self.config
        assert config is not None
        hosts = {host.name: host.connection for host in config.hosts.values()}
        snapshots = self.fleet.snapshots()
        given = {
            "mode": "apply",
            "desired": self.desired(),
            "recorded": self.state.resources,
            "snapshots": {name: snapshots[name] for name in snapshots},
            "hosts": {**{one.host: one.connection for one in self.state.resources.values()}, **hosts},
            "lineage": self.lineage,
            "serial": self.state.serial,
            "config_digest": config.digest,
            "catalog_digest": config.catalog_digest,
            "now": self.fleet.clock.now(),
            "prevent_destroy": config.prevent_destroy,
        }
        return PlanInputs(**{**given, **more})

    def plan(self, **more: Any) -> Plan:
        return build_plan(self.inputs(**more), PROVIDERS)

    def apply(self, **more: Any) -> ApplyResult:
        """Plan and carry out. The desired state of the run is kept as `last_desired`, for a rollback."""
        inputs = self.inputs(**more)
        self.last_desired = tuple(effective_desired(inputs, PROVIDERS).desired.values())
        return self.execute(build_plan(inputs, PROVIDERS))

    def execute(self, plan: Plan, **options: Any) -> ApplyResult:
        run = self.state.begin_run()
        self.events = Recorder()
        self.services = SimServices(self.directory / "operator", self.fleet.clock, self.key, run.allocate_revision)
        self.services.authority = self.authority
        self.services.config = self.config
        self.services.secrets = {f"env:{name}": value for name, value in self.environ.items()}
        return execute(
            plan,
            sessions=lambda host: _TrustingSession(host, self.fleet),
            run=run,
            providers=PROVIDERS,
            services=self.services,
            options=replace(ApplyOptions(), **options),
            sink=self.events,
            cancel=Cancellation(),
        )

    def settled(self) -> bool:
        """Nothing to change."""
        return not self.plan().actionable

    def rows(self, plan: Plan | None = None) -> dict[str, str]:
        """Address → action of everything that would change."""
        return {str(change.address): change.action for change in (plan or self.plan()).actionable}

    def record_of(self, address: str) -> Mapping[str, Any]:
        return self.state.resources[Address.parse(address)].record

    def claim(self, lineage: str, name: str, host: str = "local") -> None:
        """Another fleet, or another name, holds the host."""
        from sbctl.node.snapshot import HostMarker

        self.host(host).marker = HostMarker(lineage=lineage, host=name)

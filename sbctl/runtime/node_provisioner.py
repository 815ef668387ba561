"""What replicas need, from this node: weights out of the cache, programs out of <opt>/engines or from where the policy says."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

import psutil
from prometheus_client import CollectorRegistry

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls, collected
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.display import format_bytes, plural
from sbctl.base.errors import ArtifactError, EngineError, SbctlError
from sbctl.base.flock import FileLock
from sbctl.engines.detect import find_llama_server
from sbctl.engines.driver import EngineDriver, EngineSite, EngineWish
from sbctl.engines.llama_cpp import LlamaCpp, weight_file
from sbctl.engines.machine import this_machine
from sbctl.engines.model import Adapter, EngineAddress, EngineBuild, LaunchRequest, LaunchSpec
from sbctl.node.paths import NodePaths
from sbctl.node.records import EventKind
from sbctl.runtime.assigned import assigned_artifacts
from sbctl.runtime.event_log import NO_EVENTS, EventSink
from sbctl.runtime.listener_proof import free_loopback_port
from sbctl.runtime.log import get_log
from sbctl.runtime.observed_memory import observed_memory
from sbctl.runtime.provision import Prepared, Progress
from sbctl.runtime.pull_process import Puller
from sbctl.runtime.replica_room import room_of
from sbctl.runtime.room import Room
from sbctl.runtime.weight_metrics import WeightMetrics
from sbctl.runtime.weight_watch import weights_of
from sbctl.trust.bundle import DeploymentMember, EnginePolicy

__all__ = ["NodeProvisioner"]

_DRIVERS: Final[Mapping[str, EngineDriver]] = {driver.engine: driver for driver in (LlamaCpp(),)}


class NodeProvisioner:
    """One a daemon. Weights that a replica was given are leased until `keep_only`, so that nobody removes them under an engine."""

    def __init__(
        self,
        paths: NodePaths,
        cache_directory: Path,
        new_socket: Callable[[], Path],
        puller: Puller,
        *,
        budget_bytes: int | None = None,
        offline: bool = False,
        by_hand: bool = False,
        events: EventSink = NO_EVENTS,
        metrics: WeightMetrics | None = None,
        devices: Mapping[str, int] | None = None,
        are_withheld: bool = False,
        safety_margin: float = 0.0,
        most_bytes: int | None = None,
    ) -> None:
        """`devices`: bytes of each that engines may take, by its id. `are_withheld`: the host has some, and engines get none of them."""
        self._paths = paths
        self._cache = ArtifactCache(cache_directory)
        self._budget_bytes = budget_bytes
        self._offline = offline
        self._by_hand = by_hand
        self._events = events
        self._puller = puller
        self._metrics = metrics if metrics is not None else WeightMetrics(CollectorRegistry())
        self._devices = dict(devices or {})
        self._are_withheld = are_withheld
        self._safety_margin = safety_margin
        self._most_bytes = most_bytes
        self._used: frozenset[str] | None = None
        """As `keep_only` said last."""
        self._new_socket = new_socket
        self._builds: dict[tuple[EnginePolicy, tuple[str, int, int, int]], EngineBuild] = {}
        self._log = get_log("engines")
        self._leases: dict[str, FileLock] = {}

    async def check_engine(self, member: DeploymentMember) -> EngineBuild:
        return await asyncio.to_thread(self._find, member.engine)

    def driver(self, engine: str) -> EngineDriver:
        return _DRIVERS[engine]

    def _find(self, policy: EnginePolicy) -> EngineBuild:
        """A program of the user's is asked for its flags again only when its file changed."""
        seen = None
        if policy.launch == "binary":
            program = Path(policy.path) if policy.path else find_llama_server(os.environ.get("PATH", ""))
            seen = None if program is None else _file_identity(program)
            if seen is not None and (policy, seen) in self._builds:
                return self._builds[policy, seen]
        wish = EngineWish(policy.launch, policy.version, policy.path, policy.acceleration)
        found = self.driver(policy.engine).detect(wish, self._site())
        if found.build is None:
            remedy = found.remedy or None
            if self._by_hand and found.state == "acquirable":
                remedy = "put llama-server on PATH or name its path (launch: binary): a runtime that was started by hand installs no engine"
            raise EngineError("engine_missing", found.reason, next_step=remedy)
        for note in found.build.notes:
            self._log.warning("engine not as tried", note=note)
        if seen is not None:
            self._builds[policy, seen] = found.build
        return found.build

    def _site(self) -> EngineSite:
        return EngineSite(self._paths.engines, os.environ.get("PATH", ""), this_machine())

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        build = await self.check_engine(member)
        weights = await self._weights(member, member.artifact, progress)
        adapters = [
            Adapter(await self._weights(member, adapter.artifact, progress), adapter.scale)
            for adapter in member.adapters
        ]
        return Prepared(weights, build, tuple(adapters))

    async def _weights(self, member: DeploymentMember, facts: ArtifactFacts, progress: Progress) -> Path:
        entry = await asyncio.to_thread(self._cache.entry, facts.artifact)
        if entry is None or entry.state != "ready":
            if member.pull == "manual":
                missing = ArtifactError(
                    "artifact_not_ready",
                    f"{facts.model}:{facts.variant} is not in this host's cache, and the deployment says pull: manual",
                    next_step="pull it, or set pull to on_boot or on_demand",
                )
                self._metrics.failed(missing)
                raise missing
            self._refuse_hopeless(member, facts)
            await self._fetch(facts, progress)
        if facts.artifact not in self._leases:
            self._leases[facts.artifact] = self._cache.lease(facts.artifact)
        try:
            snapshot = await asyncio.to_thread(self._cache.require, facts.artifact)
        except SbctlError as error:
            self._metrics.failed(error)
            raise
        return snapshot / weight_file(facts)

    async def _fetch(self, facts: ArtifactFacts, progress: Progress) -> None:
        """Raises SbctlError where the weights are not there afterwards: an apply may have brought them while no source answered."""
        began_s = asyncio.get_running_loop().time()
        try:
            downloaded_bytes = await self._pull(facts, progress)
        except SbctlError as error:
            self._metrics.pull_failed(error)
            entry = await asyncio.to_thread(self._cache.entry, facts.artifact)
            if entry is None or entry.state != "ready":
                raise
            return
        self._metrics.pulled(downloaded_bytes, asyncio.get_running_loop().time() - began_s)
        await asyncio.to_thread(self._make_room, facts)

    def _refuse_hopeless(self, member: DeploymentMember, facts: ArtifactFacts) -> None:
        """Weights that no engine here could hold are not fetched. What the deployment says of its memory is believed."""
        least_bytes = member.memory_bytes or sum(file.size_bytes for file in facts.files)
        if self._most_bytes is not None and least_bytes > self._most_bytes:
            raise EngineError(
                "insufficient_capacity",
                f"{facts.model}:{facts.variant} needs {format_bytes(least_bytes)} at least, and models may take "
                f"{format_bytes(self._most_bytes)} here: nothing was fetched",
                next_step="choose a smaller variant or model, or a larger host",
                retryable=True,
            )

    async def _pull(self, facts: ArtifactFacts, progress: Progress) -> int:
        """How many bytes came over the network."""
        name = f"{facts.model}:{facts.variant}"
        result = await self._puller(
            facts,
            progress=lambda done, total: progress(done, total, name),
            note=lambda sentence: self._log.warning("a source was left", model=name, note=sentence),
        )
        if result.quarantined:
            files = ", ".join(map(str, result.quarantined))
            said = (
                f"weights of {name} changed after they were published; they were set aside and fetched again: {files}"
            )
            self._events.tell(EventKind.WEIGHTS_QUARANTINED, said)
        return result.downloaded_bytes

    def _make_room(self, fetched: ArtifactFacts) -> None:
        """Within the cache's budget, never at the cost of what a deployment is configured with."""
        found = collected(self._cache, self._budget_bytes, self._configured(), fresh=fetched.artifact)
        if found is None:
            return
        if found.deleted:
            said = f"{format_bytes(found.reclaimed_bytes)} of weights that nothing uses made room for {fetched.model}:{fetched.variant}"
            self._events.tell(EventKind.WEIGHTS_COLLECTED, said)
        if found.unsatisfied_bytes or found.problem:
            over = found.problem or f"{format_bytes(found.unsatisfied_bytes)} more than that are in use"
            get_log("weights").warning("the cache stays above its budget", budget_bytes=self._budget_bytes, reason=over)

    def cache_calls(self) -> CacheCalls:
        """The cache as this host is configured now. Reads a file."""
        return CacheCalls(
            self._cache,
            os.environ,
            configured=self._configured(),
            budget_bytes=self._budget_bytes,
            offline=self._offline,
        )

    def _configured(self) -> frozenset[str] | None:
        """None while it cannot be told."""
        if self._by_hand:
            return self._used
        assigned = assigned_artifacts(self._paths.bundle)
        return None if assigned is None else frozenset(assigned) | (self._used or frozenset())

    def weights_now(self, member: DeploymentMember) -> frozenset[tuple[int, int]] | None:
        """As `weight_watch.weights_of`. Reads names and seals."""
        return weights_of(self._cache, member.artifacts)

    def keep_only(self, artifacts: frozenset[str]) -> None:
        self._used = artifacts
        for artifact in set(self._leases) - artifacts:
            self._leases.pop(artifact).release()

    async def room(self, member: DeploymentMember, prepared: Prepared) -> Room:
        return await asyncio.to_thread(self._room, member, prepared.build.version)

    def _room(self, member: DeploymentMember, version: str) -> Room:
        self._refuse_without_devices(member)
        entry = self._cache.entry(member.artifact.artifact)
        return room_of(
            member,
            version,
            shape=None if entry is None else entry.shape,
            observed=observed_memory(self._paths.state),
            devices=self._devices,
            safety_margin=self._safety_margin,
            machine_bytes=psutil.virtual_memory().total,
        )

    def _refuse_without_devices(self, member: DeploymentMember) -> None:
        """An engine that is made for devices, and gets none or too few: it would compute on the processor, or on those of others."""
        if not member.engine.computes_on_devices:
            return
        wanted = member.tensor_parallel or 1
        alike = max(Counter(self._devices.values()).values(), default=0)
        if (self._are_withheld and not self._devices) or (wanted > 1 and alike < wanted):
            raise EngineError(
                "engine.no_device",
                f"{member.model}:{member.variant} lies on {plural(wanted, 'device')}, and engines get {alike} of one size on this host",
                next_step="look at what sbctl doctor says of its devices, and at excluded_devices and tensor_parallel in sb.yml",
            )

    def launch(self, member: DeploymentMember, prepared: Prepared, *, deployment: str, room: Room) -> LaunchSpec:
        request = LaunchRequest(
            weights=prepared.weights,
            address=self._address(prepared.build),
            alias=deployment,
            context_length=member.context_length,
            slots=member.max_concurrency,
            physical_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
            environ=os.environ,
            threads=member.threads,
            extra_args=member.extra_args,
            mode=member.mode,
            kv_quant=member.kv_quant,
            adapters=prepared.adapters,
            devices=room.device_ids,
        )
        spec = self.driver(member.engine.engine).launch(prepared.build, request)
        return replace(spec, memory_max_bytes=room.ceiling_bytes)

    def _address(self, build: EngineBuild) -> EngineAddress:
        """A UNIX socket where the engine host wants it for builds that can, a loopback port for the rest."""
        if build.has_unix_sockets:
            return EngineAddress(unix_path=self._new_socket())
        return EngineAddress(port=free_loopback_port())


def _file_identity(path: Path) -> tuple[str, int, int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return str(path), status.st_ino, status.st_mtime_ns, status.st_size

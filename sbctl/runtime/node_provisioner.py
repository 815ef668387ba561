"""What replicas need, from this node: weights out of the cache, programs out of <opt>/engines or from where the policy says."""

from __future__ import annotations

import asyncio
import os
import secrets
from pathlib import Path
from typing import Final

import psutil

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.pull import pull
from sbctl.base.errors import ArtifactError, EngineError
from sbctl.engines.llama_cpp import launch_spec, weight_file
from sbctl.engines.model import EngineAddress, EngineBuild, LaunchSpec
from sbctl.node.paths import NodePaths
from sbctl.runtime.listener_proof import free_loopback_port
from sbctl.runtime.provision import Prepared, Progress
from sbctl.trust.bundle import DeploymentMember, EnginePolicy

__all__ = ["NodeProvisioner", "find_build"]


class NodeProvisioner:
    """One a daemon. Weights that a replica was given are leased until the daemon ends, so that nobody removes them under an engine."""

    def __init__(self, paths: NodePaths, cache_directory: Path, sockets: Path) -> None:
        self._paths = paths
        self._cache = ArtifactCache(cache_directory)
        self._sockets = sockets

    async def check_engine(self, member: DeploymentMember) -> EngineBuild:
        return await asyncio.to_thread(find_build, member.engine, self._paths.engines)

    async def prepare(self, member: DeploymentMember, progress: Progress) -> Prepared:
        build = await self.check_engine(member)
        facts = member.artifact
        entry = await asyncio.to_thread(self._cache.entry, facts.artifact)
        if entry is None or entry.state != "ready":
            if member.pull == "manual":
                raise ArtifactError(
                    "artifact_not_ready",
                    f"{facts.model}:{facts.variant} is not in this host's cache, and the deployment says pull: manual",
                    next_step="pull it, or set pull to on_boot or on_demand",
                )
            note = f"{facts.model}:{facts.variant}"
            await pull(self._cache, facts, progress=lambda done, total: progress(done, total, note))
        snapshot = await asyncio.to_thread(self._cache.require, facts.artifact)
        return Prepared(snapshot / weight_file(facts), build)

    def launch(self, member: DeploymentMember, prepared: Prepared, *, deployment: str) -> LaunchSpec:
        return launch_spec(
            prepared.build,
            model_path=prepared.weights,
            address=self._address(prepared.build),
            alias=deployment,
            context_length=member.context_length,
            slots=member.max_concurrency,
            physical_cores=psutil.cpu_count(logical=False) or os.cpu_count() or 1,
            environ=os.environ,
            threads=member.threads,
            extra_args=member.extra_args,
        )

    def _address(self, build: EngineBuild) -> EngineAddress:
        """A UNIX socket in our own directory for engines that can, a loopback port for the rest."""
        if build.launch == "wheel":
            return EngineAddress(unix_path=self._sockets / f"{secrets.token_hex(4)}.sock")
        return EngineAddress(port=free_loopback_port())


_SEARCHED: Final = ("/usr/local/bin", "/usr/bin", "/bin", "/opt/homebrew/bin")


def find_build(policy: EnginePolicy, engines: Path) -> EngineBuild:
    """The program of a policy. Raises EngineError `engine_missing`."""
    if policy.launch == "wheel":
        home = engines / policy.engine / (policy.version or "")
        python, launcher = home / "bin" / "python", home / "llama_wheel_launcher.py"
        if not policy.version or not python.exists() or not launcher.exists():
            raise _missing(f"{policy.engine} {policy.version} is not installed here", str(home))
        return EngineBuild(policy.engine, "wheel", policy.version, (str(python), "-I", str(launcher)), home)
    named = [Path(policy.path)] if policy.path else [Path(folder, "llama-server") for folder in _SEARCHED]
    for program in named:
        if program.is_file() and os.access(program, os.X_OK):
            return EngineBuild(policy.engine, "binary", policy.version or "", (str(program),), program, ours=False)
    raise _missing("there is no llama-server here", str(named[0]) if policy.path else "PATH")


def _missing(message: str, place: str) -> EngineError:
    return EngineError(
        "engine_missing", message, place=place, next_step="apply again, or install it and check its path"
    )

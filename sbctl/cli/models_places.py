"""Where `sbctl models` works: a cache on this machine, or those of hosts, each with the catalog that counts there.

--cache-dir D    that directory, in this process
(neither)        this machine's node; before it has a runtime, its cache directory, in this process
--host NAME      that host of sb.yml, over its node interface
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

from pydantic import BaseModel

from sbctl.artifacts.answers import CacheListing, Pruned, Pulled, Removed, Verified
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.artifacts.download import Progress
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.connection import Connection
from sbctl.base.errors import ConfigError, InputError, SbctlError, UsageError
from sbctl.base.limits import GIB, NODE_CALL_DEADLINE_S, SNAPSHOT_DEADLINE_S
from sbctl.base.patterns import NamePattern
from sbctl.base.suggest import did_you_mean
from sbctl.catalog.loader import Catalog, CatalogEntry, builtin_catalog
from sbctl.cli.host_lines import HostLines, fleet_lines
from sbctl.cli.services import OnlineSupplies, operator_cache
from sbctl.cli.workspace import Workspace
from sbctl.config.catalog_file import catalog_with_file
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.config.diagnose import Report
from sbctl.config.load import load
from sbctl.node.artifact_messages import (
    ArtifactImport,
    ArtifactList,
    ArtifactPrune,
    ArtifactPull,
    ArtifactRemove,
    ArtifactVerify,
)
from sbctl.node.messages import Method
from sbctl.node.paths import node_paths
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.answers import read_answer
from sbctl.remote.session import HostSession, open_session

__all__ = ["HERE", "Door", "Place", "PlaceRequest", "chosen_hosts", "config_of", "has_runtime", "opened_places"]

HERE: Final = "local"
_LEAST_RATE_BYTES_PER_S: Final = 128 * 1024
"""A transfer that is slower than this ends: stalls are found much earlier, by whoever fetches."""
_VERIFY_BYTES_PER_S: Final = 16 * 1024 * 1024

_Answer = TypeVar("_Answer", bound=BaseModel)


def _silent(_done: int, _total: int | None) -> None:
    return None


class Door(Protocol):
    """One model cache, wherever it is. Each call raises SbctlError."""

    def listing(self, wanted: Sequence[ArtifactFacts]) -> CacheListing: ...

    def pull(
        self, facts: ArtifactFacts, *, offline: bool, pinned: bool | None, push: bool, progress: Progress
    ) -> Pulled: ...

    def verify(self, artifact: str, size_bytes: int) -> Verified: ...

    def remove(self, artifact: str) -> Removed: ...

    def prune(self, *, dry_run: bool, everything: bool) -> Pruned: ...

    def snapshot(self) -> NodeSnapshot | None:
        """What the machine says of itself; None where it cannot."""
        ...


@dataclass(frozen=True, slots=True)
class Place:
    """`host` is what sb.yml says about it; None where sb.yml does not name it. `pushed`: it fetches nothing itself."""

    name: str
    door: Door
    catalog: Catalog
    host: CompiledHost | None = None

    @property
    def pushed(self) -> bool:
        return self.host is not None and (self.host.delivery == "push" or self.host.model_host.offline)


@dataclass(frozen=True, slots=True)
class PlaceRequest:
    """As the options say it."""

    file: Path
    hosts: tuple[str, ...] = ()
    cache_dir: Path | None = None
    catalog_file: Path | None = None


def config_of(workspace: Workspace, *, require_pins: bool) -> CompiledConfig | None:
    """sb.yml, None where nobody named one and there is none. Raises ConfigError, InputError `file.*`."""
    if not workspace.file.exists() and workspace.file == Path("sb.yml"):
        return None
    return load(workspace.file, environ=workspace.environ, keyed=None, require_pins=require_pins)


@contextlib.contextmanager
def opened_places(workspace: Workspace, request: PlaceRequest) -> Iterator[tuple[Place, ...]]:
    """Raises UsageError for options that exclude each other; ConfigError; InputError `host.unknown`, `catalog.*`."""
    if request.cache_dir is not None and request.hosts:
        raise UsageError("usage", "--cache-dir is a directory of this machine, --host is elsewhere: choose one")
    config = config_of(workspace, require_pins=bool(request.hosts))
    catalog = None if request.catalog_file is None else _catalog_file(request.catalog_file)
    if request.hosts:
        if config is None:
            raise InputError(
                "file.missing",
                "there is no sb.yml that names hosts",
                place=str(workspace.file),
                next_step="-f names another file; without --host the cache of this machine is meant",
            )
        chosen = chosen_hosts(config, request.hosts)
        connections = {name: host.connection for name, host in chosen.items()}
    else:
        here = _here(config)
        if request.cache_dir is not None or not has_runtime(workspace.environ):
            door = _local_door(workspace, request.cache_dir, here)
            yield (Place(HERE, door, catalog or _catalog_here(config, here), here),)
            return
        chosen = {}
        connections = {HERE: Connection("local")}
    lines = fleet_lines(workspace, connections, {})
    try:
        if chosen:
            yield tuple(
                Place(name, HostDoor(lines, name, workspace), catalog or host.catalog, host)
                for name, host in chosen.items()
            )
        else:
            yield (Place(HERE, HostDoor(lines, HERE, workspace), catalog or _catalog_here(config, here), here),)
    finally:
        lines.close()


def chosen_hosts(config: CompiledConfig, patterns: Sequence[str]) -> dict[str, CompiledHost]:
    """Raises InputError `host.unknown` for a pattern that matches none."""
    chosen: set[str] = set()
    for text in patterns:
        matched = {name for name in config.hosts if NamePattern(text).matches(name)}
        if not matched:
            close = did_you_mean(text, config.hosts)
            raise InputError(
                "host.unknown",
                f"there is no host {text}",
                place=config.path,
                next_step=f'did you mean "{close}"?' if close else "sbctl host list names the hosts",
            )
        chosen |= matched
    return {name: host for name, host in config.hosts.items() if name in chosen}


def _here(config: CompiledConfig | None) -> CompiledHost | None:
    """The host of sb.yml that is this machine, if one is."""
    hosts = () if config is None else config.hosts.values()
    return next((host for host in hosts if host.connection.kind == "local"), None)


def _catalog_here(config: CompiledConfig | None, here: CompiledHost | None) -> Catalog:
    """On an operator's machine that is no host: what any host of the fleet may serve, the first host's entry of each id."""
    if config is None:
        return builtin_catalog()
    if here is not None:
        return here.catalog
    entries: dict[str, CatalogEntry] = {}
    for host in reversed(tuple(config.hosts.values())):
        entries.update(host.catalog.entries)
    return Catalog(entries)


def _catalog_file(path: Path) -> Catalog:
    report = Report()
    catalog = catalog_with_file(report, str(path), Path(), None)
    errors = [finding for finding in report.diagnostics if finding.severity == "error"]
    if errors:
        raise ConfigError(errors)
    return catalog


def has_runtime(environ: Mapping[str, str]) -> bool:
    """Whether one was installed on this machine, for who asks."""
    return os.path.lexists(node_paths(os.getuid(), environ).opt / "current")


def _needed(host: CompiledHost) -> frozenset[str]:
    return frozenset(facts.artifact for one in host.deployments.values() for facts in one.artifacts)


def _local_door(workspace: Workspace, cache_dir: Path | None, here: CompiledHost | None) -> LocalDoor:
    cache = here.model_host.cache if here is not None else None
    configured: frozenset[str] = frozenset() if here is None else _needed(here)
    written = cache.directory if cache is not None else None
    root = cache_dir or (Path(written) if written else node_paths(os.getuid(), workspace.environ).models)
    budget_gib = cache.budget_gib if cache is not None else None
    return LocalDoor(
        CacheCalls(
            ArtifactCache(Path(os.path.abspath(root)), workspace.clock),
            workspace.environ,
            configured=configured,
            budget_bytes=None if budget_gib is None or cache_dir is not None else max(1, round(budget_gib * GIB)),
            offline=here.model_host.offline if here is not None else False,
        ),
        workspace,
    )


class LocalDoor:
    """A directory of this machine, in this process."""

    def __init__(self, calls: CacheCalls, workspace: Workspace) -> None:
        self._calls = calls
        self._workspace = workspace

    def listing(self, wanted: Sequence[ArtifactFacts]) -> CacheListing:
        return self._calls.listing(wanted)

    def pull(
        self, facts: ArtifactFacts, *, offline: bool, pinned: bool | None, push: bool, progress: Progress
    ) -> Pulled:
        """Whoever asks by name has this machine fetch, whatever its runtime may."""
        calls = self._calls if offline or not push else replace(self._calls, offline=False)
        return calls.pull(facts, _run, progress=progress, offline=offline, pinned=pinned)

    def verify(self, artifact: str, size_bytes: int) -> Verified:  # noqa: ARG002 - a deadline is for hosts
        return self._calls.verify(artifact)

    def remove(self, artifact: str) -> Removed:
        return self._calls.remove(artifact)

    def prune(self, *, dry_run: bool, everything: bool) -> Pruned:
        return self._calls.prune(dry_run=dry_run, everything=everything)

    def snapshot(self) -> NodeSnapshot | None:
        session = open_session(HERE, Connection("local"), clock=self._workspace.clock, environ=self._workspace.environ)
        try:
            return session.snapshot(SNAPSHOT_DEADLINE_S)
        except SbctlError:
            return None
        finally:
            session.close()


def _run(work: Any) -> Any:
    async def awaited() -> Any:
        return await work

    return asyncio.run(awaited())


class HostDoor:
    """A host's cache, over its node interface. Threads: one a host."""

    def __init__(self, lines: HostLines, name: str, workspace: Workspace) -> None:
        self._lines = lines
        self._name = name
        self._workspace = workspace

    def listing(self, wanted: Sequence[ArtifactFacts]) -> CacheListing:
        return self._call(Method.ARTIFACT_LIST, ArtifactList(wanted=tuple(wanted)), CacheListing)

    def pull(
        self, facts: ArtifactFacts, *, offline: bool, pinned: bool | None, push: bool, progress: Progress
    ) -> Pulled:
        """`push`: what the host lacks is fetched by this machine and sent."""
        deadline_s = NODE_CALL_DEADLINE_S + facts.total_bytes / _LEAST_RATE_BYTES_PER_S
        if push and not offline and not self._is_ready(facts):
            self._send(facts, deadline_s, progress)
            asked = ArtifactImport(artifact=facts, pinned=pinned)
            return self._call(Method.ARTIFACT_IMPORT, asked, Pulled, deadline_s=deadline_s)
        request = ArtifactPull(artifact=facts, offline=offline, pinned=pinned)
        return self._call(Method.ARTIFACT_PULL, request, Pulled, deadline_s=deadline_s, progress=progress)

    def _is_ready(self, facts: ArtifactFacts) -> bool:
        listed = self.listing(()).artifacts
        return any(one.artifact == facts.artifact and one.state == "ready" for one in listed)

    def _send(self, facts: ArtifactFacts, deadline_s: float, progress: Progress) -> None:
        supplies = OnlineSupplies(operator_cache(), self._workspace.environ, self._workspace.clock)
        files = supplies.artifact_files(facts.model_dump(mode="json"), progress)
        done = 0
        for digest, path in files.items():
            size, before = path.stat().st_size, done

            def report(sent: int, _total: int | None, before: int = before) -> None:
                progress(before + sent, facts.total_bytes)

            def put(session: HostSession, digest: str = digest, path: Path = path, report: Progress = report) -> None:
                session.put(digest, path, deadline_s=deadline_s, progress=report)

            self._lines.ask(self._name, put)
            done += size

    def verify(self, artifact: str, size_bytes: int) -> Verified:
        deadline_s = NODE_CALL_DEADLINE_S + size_bytes / _VERIFY_BYTES_PER_S
        return self._call(Method.ARTIFACT_VERIFY, ArtifactVerify(artifact=artifact), Verified, deadline_s=deadline_s)

    def remove(self, artifact: str) -> Removed:
        return self._call(Method.ARTIFACT_REMOVE, ArtifactRemove(artifact=artifact), Removed)

    def prune(self, *, dry_run: bool, everything: bool) -> Pruned:
        return self._call(Method.ARTIFACT_PRUNE, ArtifactPrune(dry_run=dry_run, everything=everything), Pruned)

    def snapshot(self) -> NodeSnapshot | None:
        return self._lines.ask(self._name, lambda session: session.snapshot(SNAPSHOT_DEADLINE_S))

    def _call(
        self,
        method: Method,
        request: BaseModel,
        answer: type[_Answer],
        *,
        deadline_s: float = NODE_CALL_DEADLINE_S,
        progress: Progress = _silent,
    ) -> _Answer:
        def ask(session: HostSession) -> Mapping[str, Any]:
            return session.call(
                method,
                request.model_dump(mode="json"),
                secrets={},
                deadline_s=deadline_s,
                progress=progress,
            )

        return read_answer(answer, self._lines.ask(self._name, ask), self._name)

"""`doctor` on the way out: what each host is told of proxy, authorities and endpoints, and whether what it has to fetch from answers there.

A host that is pushed to fetches nothing; for it this machine asks. One without a runtime cannot be asked yet.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from sbctl.artifacts.egress_probe import ask_sources
from sbctl.artifacts.fetch_policy import FetchSettings, shown
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.source_answer import SourceAnswer
from sbctl.base.errors import SbctlError
from sbctl.base.limits import CONNECT_MAX_PARALLEL, NODE_CALL_DEADLINE_S
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.node.egress_messages import EgressCheck, EgressTold
from sbctl.node.messages import Method
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.answers import read_answer
from sbctl.remote.observe import FleetObservation
from sbctl.views.host_views import Check

__all__ = ["egress_checks", "egress_line", "needed_artifacts", "source_checks"]

_NOT_YET: Final = "asked once a runtime is there (sbctl apply)"
Asked = tuple[SourceAnswer, ...] | SbctlError


def egress_checks(config: CompiledConfig, fleet: FleetObservation, environ: Mapping[str, str]) -> Iterator[Check]:
    """Of every host that answered."""
    here = [host for name, host in sorted(config.hosts.items()) if name in fleet.snapshots]
    asked = _ask_all(here, fleet, environ)
    for host in here:
        snapshot = fleet.snapshots[host.name]
        yield Check("egress", "pass", egress_line(host, environ), host=host.name)
        yield from source_checks(host, snapshot, asked.get(host.name))


def egress_line(host: CompiledHost, environ: Mapping[str, str]) -> str:
    """The effective settings, without a secret. `environ` counts for what this machine fetches for a host."""
    if host.model_host.offline:
        return "offline: it fetches nothing"
    if host.delivery == "push":
        settings = FetchSettings.from_environ(environ)
        proxies = sorted({shown(url) for url in settings.proxies.values()})
        said = [f"proxy {', '.join(proxies)}" if proxies else "no proxy"]
        said.append(f"authorities {settings.extra_authority or 'of the system'}")
        said += [f"hub {shown(settings.hf_endpoint)}", f"index {shown(settings.index)}"]
        return f"this machine fetches for it: {'; '.join(said)}"
    config = None if host.egress is None else host.egress.config
    if config is None:
        return "direct: no proxy, the system's authorities, the usual hub and index (egress of a host changes that)"
    bypass = f" (not for {', '.join(config.no_proxy)})" if config.proxy and config.no_proxy else ""
    said = [f"proxy {config.proxy}{bypass}" if config.proxy else "no proxy"]
    said.append(f"authorities {config.ca_file or 'of the system'}")
    said += [f"hub {config.hf_endpoint or 'the usual'}", f"index {config.package_index or 'the usual'}"]
    said += [f"also allowed: {', '.join(config.allowed_hosts)}"] if config.allowed_hosts else []
    said += [f"with {', '.join(config.secrets)}"] if config.secrets else []
    return "; ".join(said)


def needed_artifacts(host: CompiledHost, snapshot: NodeSnapshot) -> dict[ArtifactFacts, bool]:
    """What its deployments need, and whether it is there already."""
    ready = {one.artifact for one in snapshot.artifacts if one.state == "ready"}
    facts = {one.artifact: one for deployment in host.deployments.values() for one in deployment.artifacts}
    return {one: artifact in ready for artifact, one in sorted(facts.items())}


def source_checks(host: CompiledHost, snapshot: NodeSnapshot, asked: Asked | None) -> Iterator[Check]:
    """One line a source. A failure only where an artifact is not here and none of its sources answers."""
    needed = {f"{facts.model}:{facts.variant}": there for facts, there in needed_artifacts(host, snapshot).items()}
    if host.model_host.offline or not needed:
        return
    if asked is None:
        yield Check("sources", "skip", _NOT_YET, host=host.name)
        return
    if isinstance(asked, SbctlError):
        yield Check("sources", "warn", f"they could not be asked: {asked.message}", asked.next_step or "", host.name)
        return
    answering = {one.model for one in asked if one.answered}
    for one in asked:
        name = f"source {one.source}"
        if one.answered:
            yield Check(name, "pass", f"answers in {one.milliseconds} ms, for {one.model}", host=host.name)
            continue
        needs_it = not needed.get(one.model, False) and one.model not in answering
        so = "" if needs_it else ", which is here already" if needed.get(one.model) else ", which another source has"
        yield Check(
            name,
            "fail" if needs_it else "warn",
            f"{one.said} ({one.address or 'its address is not known'}), for {one.model}{so}",
            "look at egress of this host in sb.yml: proxy, ca_file, hf_endpoint, package_index, hf_token, allowed_hosts; or set delivery: push",
            host.name,
        )


def _ask_all(hosts: Iterable[CompiledHost], fleet: FleetObservation, environ: Mapping[str, str]) -> dict[str, Asked]:
    found: dict[str, Asked] = {}

    def ask(host: CompiledHost) -> None:
        snapshot = fleet.snapshots[host.name]
        wanted = tuple(needed_artifacts(host, snapshot))
        if not wanted or host.model_host.offline:
            return
        try:
            if host.delivery == "push":
                found[host.name] = tuple(asyncio.run(ask_sources(wanted, FetchSettings.from_environ(environ))))
            elif snapshot.bootstrapped:
                found[host.name] = _ask_host(fleet, host.name, wanted)
        except SbctlError as error:
            found[host.name] = error

    with ThreadPoolExecutor(CONNECT_MAX_PARALLEL, thread_name_prefix="egress") as pool:
        list(pool.map(ask, hosts))
    return found


def _ask_host(fleet: FleetObservation, name: str, wanted: tuple[ArtifactFacts, ...]) -> tuple[SourceAnswer, ...]:
    request = EgressCheck(wanted=wanted).model_dump(mode="json")
    raw = fleet.sessions[name].call(
        Method.EGRESS_CHECK, request, secrets={}, deadline_s=NODE_CALL_DEADLINE_S, progress=lambda *_told: None
    )
    return read_answer(EgressTold, raw, name).sources

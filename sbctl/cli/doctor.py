"""`doctor`: facts of machines against what would run there. Rules are pure; `examine` gathers.

Without a configuration: this machine, and which models of the catalog it could serve. With one: every host of it, each deployment against
memory, disk, ports and engines.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final, Literal

from providers.engine_policy import engine_policy
from providers.standalone_python import standalone_label, standalone_problem, standalone_spec
from sbctl.base.connection import Connection
from sbctl.base.display import format_bytes
from sbctl.base.errors import EngineError, ExitCode, SbctlError
from sbctl.base.limits import GIB, MIB
from sbctl.catalog.loader import builtin_catalog
from sbctl.cli.cluster_words import cluster_check, store_checks
from sbctl.cli.egress_checks import egress_checks
from sbctl.cli.fitness import (
    budget_checks,
    cache_bytes,
    certificate_checks,
    clock_check,
    device_checks,
    filesystem_checks,
    need_checks,
    program_disk_check,
    system_checks,
    usable_bytes,
)
from sbctl.cli.machine import machine_report
from sbctl.cli.memory_needs import need_body, needs_of
from sbctl.cli.port_plan import asked_holders
from sbctl.cli.ports import port_checks
from sbctl.cli.servable import Servable, catalog_check, local_serving, servable_models
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledCluster, CompiledHost
from sbctl.engines.detect import find_engine, find_llama_server, probe_llama_server
from sbctl.engines.driver import EngineSite, EngineWish
from sbctl.engines.machine import this_machine
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_pin
from sbctl.node.devices import NvidiaDevices, nvidia_devices
from sbctl.node.snapshot import EngineState, HostFacts, NodeSnapshot, PortHolder, is_new_enough
from sbctl.views.host_views import Check

__all__ = [
    "Report",
    "budget_check",
    "engine_checks",
    "examine",
    "host_checks",
    "with_local_facts",
]

_RUNTIME_DISK_BYTES: Final = 600 * MIB


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the facts they rest on."""

    checks: tuple[Check, ...]
    hosts: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    needs: tuple[Mapping[str, Any], ...] = ()
    models: tuple[Servable, ...] = ()
    """Of the catalog, on this machine; empty when it is none of the hosts."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    budgets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def exit_code(self, *, strict: bool) -> ExitCode:
        bad = {"fail", "warn"} if strict else {"fail"}
        return ExitCode.REFUSED if any(check.verdict in bad for check in self.checks) else ExitCode.DONE

    def body(self, *, strict: bool) -> dict[str, Any]:
        """The JSON form. What is of this machine alone stands at the top, and is left out when it is none of the hosts."""
        return {
            **self.machine,
            "ready": self.exit_code(strict=strict) is ExitCode.DONE,
            "strict": strict,
            "checks": [asdict(check) for check in self.checks],
            "hosts": {name: snapshot.model_dump(mode="json") for name, snapshot in sorted(self.hosts.items())},
            "serve_entries": [dict(need) for need in self.needs],
            "models": [model.body() for model in self.models],
            "cache_budget_check": {host: dict(found) for host, found in sorted(self.budgets.items())},
            "local_serving": local_serving(self.checks, self.models),
        }


def examine(file: Path | None) -> Report:
    """Ask this machine, or every host of `file`. Raises ConfigError for a file that is none."""
    from sbctl.remote.observe import observe_fleet

    workspace = Workspace(file if file is not None else Path("sb.yml"))
    config = workspace.config if file is not None else None
    cluster = None if config is None else config.cluster
    connections = (
        {"local": Connection("local")} if config is None else {h.name: h.connection for h in config.hosts.values()}
    )
    checks: list[Check] = list(operator_checks())
    needs: list[Mapping[str, Any]] = []
    models: tuple[Servable, ...] = ()
    machine: Mapping[str, Any] = {}
    budgets: dict[str, Mapping[str, Any]] = {}
    hosts: dict[str, NodeSnapshot] = {}
    with observe_fleet(
        connections,
        clock=workspace.clock,
        environ=workspace.environ,
        secrets=workspace.login_secrets.prepared(connections.values()),
    ) as fleet:
        for name, error in sorted(fleet.unreachable.items()):
            checks.append(_failed(name, error))
        asked_at = workspace.clock.now()
        holders = {} if config is None else asked_holders(fleet, config, config.hosts)
        for name, told in sorted(fleet.snapshots.items()):
            host = config.hosts[name] if config is not None else None
            snapshot = hosts[name] = told
            if connections[name].kind == "local":
                devices = nvidia_devices()
                snapshot = hosts[name] = with_local_facts(told, devices, workspace.environ)
                machine = machine_report(snapshot, devices, _cache(host, snapshot), workspace.environ)
            else:
                checks.extend(clock_check(name, snapshot.host, asked_at, fleet.seconds))
            checks.extend(_checks_of_any(name, snapshot, asked_at))
            found = tuple(servable_models(builtin_catalog() if host is None else host.catalog, usable_bytes(snapshot)))
            checks.extend(host_checks(name, snapshot, host))
            if _serves(host):
                checks.append(catalog_check(name, found))
            models = found if connections[name].kind == "local" else models
            if host is not None:
                fits = list(need_checks(host, snapshot))
                checks.extend(fits)
                checks.extend(_checks_of_configured(host, cluster, snapshot, holders.get(name, ()), workspace.environ))
                needs.extend(_needs(host, snapshot, fits))
                budgets.update(budget_check(host, snapshot))
        if config is not None:
            checks.extend(egress_checks(config, fleet, workspace.environ))
        return Report(tuple(checks), hosts, tuple(needs), models, machine, budgets)


def _checks_of_any(name: str, snapshot: NodeSnapshot, now: datetime) -> Iterator[Check]:
    """What every host is looked at for, whatever sb.yml asks of it."""
    yield from device_checks(name, snapshot.host)
    yield from filesystem_checks(name, snapshot)
    yield from system_checks(name, snapshot.host)
    yield from certificate_checks(name, snapshot, now)
    yield from cluster_check(name, snapshot.cluster)
    yield from store_checks(name, snapshot.store)


def _checks_of_configured(
    host: CompiledHost,
    cluster: CompiledCluster | None,
    snapshot: NodeSnapshot,
    holders: Iterable[PortHolder],
    environ: Mapping[str, str],
) -> Iterator[Check]:
    """What a host of sb.yml is looked at for beside that, and beside what its deployments need."""
    yield from engine_checks(host, snapshot, environ)
    yield from program_disk_check(host, snapshot)
    yield from budget_checks(host, snapshot)
    yield from port_checks(host, cluster, snapshot, holders)


def with_local_facts(snapshot: NodeSnapshot, devices: NvidiaDevices, environ: Mapping[str, str]) -> NodeSnapshot:
    """Of this machine: its devices, and a `llama-server` on PATH also before anything of ours runs here."""
    told: dict[str, Any] = {"gpu_problem": devices.problem, "cuda": devices.cuda or ""}
    if devices.gpus:
        told["gpus"] = devices.gpus
    if devices.driver:
        told["nvidia_driver"] = devices.driver
    host = snapshot.host.model_copy(update=told)
    engines = snapshot.engines
    program = find_llama_server(environ.get("PATH", "")) if not snapshot.bootstrapped else None
    if program is not None:
        with contextlib.suppress(EngineError):
            version = probe_llama_server(program, with_flags=False).version
            engines = (
                EngineState(engine="llama_cpp", launch="binary", version=version, path=str(program), ours=False),
            )
    return snapshot.model_copy(update={"host": host, "engines": engines})


def _cache(host: CompiledHost | None, snapshot: NodeSnapshot) -> Path:
    """Where this machine keeps weights."""
    written = host.model_host.cache.directory if host is not None else None
    home = snapshot.paths.cache if snapshot.paths is not None else "/var/cache/sbctl"
    return Path(written) if written else Path(home, "models")


def operator_checks() -> Iterator[Check]:
    """This machine as the operator's: which `sbctl` the shell finds."""
    found = shutil.which("sbctl")
    ours = Path(__file__).resolve().parents[2]
    if found is None:
        yield Check(
            "sbctl on PATH", "warn", "the shell finds no sbctl", "call it by its path, or add its directory to PATH"
        )
    elif b"sbctl.cli" in Path(found).resolve().read_bytes()[:4096]:
        yield Check("sbctl on PATH", "pass", found)
    else:
        yield Check(
            "sbctl on PATH",
            "warn",
            f"{found} is another program (some systems ship a Secure Boot tool of this name)",
            f"put {ours} before it, or call sbctl by its path",
        )


def host_checks(name: str, snapshot: NodeSnapshot, host: CompiledHost | None = None) -> Iterator[Check]:
    """What any host needs; `host` as sb.yml has it. Pure."""
    facts = snapshot.host
    yield _python(name, facts, host)
    if _serves(host):
        yield _engine(name, snapshot)
    memory = facts.memory_total_bytes
    yield Check(
        "memory",
        "pass" if memory >= GIB else "warn",
        f"{format_bytes(memory)}, {format_bytes(facts.memory_available_bytes)} available",
        "models larger than the memory cannot be served",
        host=name,
    )
    yield Check(
        "service manager",
        "pass" if facts.init != "none" else "warn",
        {"systemd_system": "systemd", "systemd_user": "systemd of the user"}.get(facts.init, "no systemd"),
        "the runtime is kept by a small parent process and does not come back after a reboot",
        host=name,
    )
    yield from _service(name, snapshot)
    free = snapshot.disk.cache_free_bytes
    yield Check(
        "disk",
        "fail" if free is not None and free < _RUNTIME_DISK_BYTES else "pass",
        "unknown" if free is None else f"{format_bytes(free)} free for runtime, engine and weights",
        f"free at least {format_bytes(_RUNTIME_DISK_BYTES)}",
        host=name,
    )


def _serves(host: CompiledHost | None) -> bool:
    """Whether models run there: not on authorities and gateways alone, which may be too small for any."""
    return host is None or "worker" in host.roles


def _service(name: str, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Only what an operator should know: the host is out of service, or somebody changes it."""
    drain, lease = snapshot.drain, snapshot.lease
    if drain is not None and drain.persistent:
        said = f"out of service since {drain.since}, by {drain.by}"
        yield Check("in service", "warn", said, f"sbctl host resume {name}", name)
    if lease is not None:
        said = f"{lease.owner} is changing it ({lease.purpose}) since {lease.since}"
        yield Check("lease", "warn", said, "wait for it; apply does so with --lock-timeout SECONDS", name)


def _python(name: str, facts: HostFacts, host: CompiledHost | None) -> Check:
    found = ", ".join(f"{one.version} ({one.path})" for one in facts.pythons)
    if host is not None and (spec := standalone_spec(host)) is not None:
        problem = standalone_problem(facts, spec)
        if problem is not None:
            return Check("python", "fail", problem.message, problem.next_step, name)
        return Check("python", "pass", f"{standalone_label(spec)}, sent to the host", host=name)
    if any(is_new_enough(one.version) for one in facts.pythons):
        return Check("python", "pass", found, host=name)
    return Check(
        "python",
        "fail",
        f"no Python 3.11 or newer (found: {found or 'none'})",
        "apt-get install python3 (Debian 12 or newer), or send one: fleet.runtime.python: {path, sha256}",
        host=name,
    )


def _engine(name: str, snapshot: NodeSnapshot) -> Check:
    found = [engine for engine in snapshot.engines if engine.engine == "llama_cpp"]
    if found:
        return Check("llama.cpp", "pass", "; ".join(f"{one.version} at {one.path}" for one in found), host=name)
    try:
        wheel_pin(LLAMA_CPP_WHEEL_DEFAULT, snapshot.host.arch, snapshot.host.libc)
    except EngineError as error:
        remedy = "install llama-server and name it: engines: {llama_cpp: {launch: binary, path: /path/to/llama-server}}"
        return Check("llama.cpp", "fail", f"no llama-server on PATH; {error.message}", remedy, host=name)
    return Check("llama.cpp", "pass", f"not installed yet; launch: wheel installs {LLAMA_CPP_WHEEL_DEFAULT}", host=name)


def engine_checks(host: CompiledHost, snapshot: NodeSnapshot, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether each engine that deployments ask for is there or can be had. A program is only asked on this machine."""
    seen: set[tuple[str | None, ...]] = set()
    for deployment in host.deployments.values():
        policy = deployment.engine_policy
        wanted = (deployment.engine, policy.launch, policy.path, policy.version, policy.acceleration)
        if wanted in seen or policy.launch != "binary":
            continue
        seen.add(wanted)
        name = f"engine {deployment.engine}"
        if host.connection.kind != "local" or snapshot.paths is None:
            yield Check(name, "skip", "a program on the host is looked for when it is planned", host=host.name)
            continue
        wish = EngineWish("binary", policy.version, policy.path, engine_policy(deployment).acceleration, policy.sha256)
        site = EngineSite(Path(snapshot.paths.opt, "engines"), environ.get("PATH", ""), this_machine())
        found = find_engine(wish, site)
        if found.build is not None:
            state: Literal["pass", "warn"] = "warn" if found.build.notes else "pass"
            where = f"{found.build.version} at {found.build.path}"
            yield Check(name, state, "; ".join((where, *found.build.notes)), host=host.name)
        elif found.state == "acquirable":
            yield Check(name, "pass", found.reason, found.remedy, host.name)
        else:
            yield Check(name, "fail", found.reason, found.remedy, host.name)


def budget_check(host: CompiledHost, snapshot: NodeSnapshot) -> Mapping[str, Mapping[str, Any]]:
    """The cache's budget against the disk that is free for it or has its models already, by host; nothing where no budget is set. Pure."""
    budget, free = host.model_host.cache.budget_gib, snapshot.disk.cache_free_bytes
    if budget is None:
        return {}
    free_gib = None if free is None else round(free / GIB, 1)
    return {
        host.name: {
            "budget_gib": budget,
            "free_gib": free_gib,
            "sufficient": free is None or budget * GIB <= free + cache_bytes(snapshot),
        }
    }


def _needs(host: CompiledHost, snapshot: NodeSnapshot, checks: Iterable[Check]) -> Iterator[Mapping[str, Any]]:
    verdicts = {check.name: check for check in checks}
    for need in needs_of(host, snapshot).deployments:
        deployment = need.deployment
        check = verdicts[f"fit {deployment.id}"]
        fits = check.verdict == "pass"
        asked = deployment.model.engine
        yield {
            "host": host.name,
            "deployment": deployment.id,
            "model": deployment.artifact.model,
            "variant": deployment.artifact.variant,
            "reference": deployment.artifact.source,
            "engine": deployment.engine,
            "engine_reason": "named by the deployment"
            if asked != "auto"
            else f"auto, for {deployment.artifact.format}",
            "fit": {
                "verdict": "fits" if fits else "too-large",
                "detail": check.detail,
                "needs_bytes": need.host_bytes + need.device_bytes,
                "memory": need_body(need),
            },
            "runnable": fits,
            "blocker": None if fits else check.detail,
        }


def _failed(host: str, error: SbctlError) -> Check:
    return Check("answer", "fail", error.message, error.next_step or "", host=host)

"""`doctor`: facts of machines against what would run there. Rules are pure; `examine` gathers.

Without a configuration: this machine, and which models of the catalog it could serve. With one: every host of it, each deployment against
memory, disk, ports and engines.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.connection import Connection
from sbctl.base.display import format_bytes
from sbctl.base.errors import EngineError, ExitCode, SbctlError
from sbctl.base.limits import GIB, MIB
from sbctl.catalog.loader import builtin_catalog
from sbctl.cli.machine import machine_report
from sbctl.cli.servable import Servable, catalog_check, local_serving, servable_models
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledHost
from sbctl.engines.detect import find_engine, find_llama_server, probe_llama_server
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_pin
from sbctl.node.devices import NvidiaDevices, nvidia_devices
from sbctl.node.snapshot import EngineState, HostFacts, NodeSnapshot
from sbctl.views.host_views import Check, Verdict

__all__ = [
    "Report",
    "budget_check",
    "device_checks",
    "engine_checks",
    "examine",
    "host_checks",
    "need_checks",
    "with_local_facts",
]

_CPU_MEMORY_FRACTION: Final = 0.7
"""Of the installed memory, what models may take on a machine without GPU."""
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
        for name, told in sorted(fleet.snapshots.items()):
            host = config.hosts[name] if config is not None else None
            snapshot = hosts[name] = told
            if connections[name].kind == "local":
                devices = nvidia_devices()
                snapshot = hosts[name] = with_local_facts(told, devices, workspace.environ)
                machine = machine_report(snapshot, devices, _cache(host, snapshot), workspace.environ)
                checks.extend(device_checks(name, devices))
            found = tuple(servable_models(builtin_catalog() if host is None else host.catalog, _usable_bytes(snapshot)))
            checks.extend((*host_checks(name, snapshot), catalog_check(name, found)))
            if connections[name].kind == "local":
                models = found
            if host is not None:
                fits = list(need_checks(host, snapshot))
                checks.extend((*fits, *engine_checks(host, snapshot, workspace.environ), *port_checks(host, snapshot)))
                needs.extend(_needs(host, fits))
                budgets.update(budget_check(host, snapshot))
        return Report(tuple(checks), hosts, tuple(needs), models, machine, budgets)


def with_local_facts(snapshot: NodeSnapshot, devices: NvidiaDevices, environ: Mapping[str, str]) -> NodeSnapshot:
    """Of this machine: its devices, and a `llama-server` on PATH also before anything of ours runs here."""
    host = snapshot.host.model_copy(update={"gpus": devices.gpus})
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


def _usable_bytes(snapshot: NodeSnapshot) -> int:
    return int(snapshot.host.memory_total_bytes * _CPU_MEMORY_FRACTION)


def device_checks(name: str, devices: NvidiaDevices) -> Iterator[Check]:
    """Pure."""
    if devices.problem is not None:
        yield Check("gpu driver", "warn", devices.problem, "repair the driver (often a reboot after its update)", name)
    elif devices.gpus:
        yield Check("gpu driver", "pass", f"NVIDIA {devices.driver}, CUDA {devices.cuda}", host=name)


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


def host_checks(name: str, snapshot: NodeSnapshot) -> Iterator[Check]:
    """What any host needs. Pure."""
    facts = snapshot.host
    yield _python(name, facts)
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
        "gpu",
        "pass" if facts.gpus else "skip",
        f"{', '.join(str(gpu.get('name', 'device')) for gpu in facts.gpus) or 'none found'}; engines of this version run on the CPU",
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


def _service(name: str, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Only what an operator should know: the host is out of service, or somebody changes it."""
    drain, lease = snapshot.drain, snapshot.lease
    if drain is not None and drain.persistent:
        said = f"out of service since {drain.since}, by {drain.by}"
        yield Check("in service", "warn", said, f"sbctl host resume {name}", name)
    if lease is not None:
        said = f"{lease.owner} is changing it ({lease.purpose}) since {lease.since}"
        yield Check("lease", "warn", said, "wait for it; apply does so with --lock-timeout SECONDS", name)


def _python(name: str, facts: HostFacts) -> Check:
    if facts.pythons:
        return Check("python", "pass", ", ".join(f"{one.version} ({one.path})" for one in facts.pythons), host=name)
    return Check(
        "python",
        "fail",
        "no Python 3.11 or newer",
        "apt-get install python3 (Debian 12 or newer), or set fleet.runtime.python",
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


def need_checks(host: CompiledHost, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Each deployment of a host against its memory, all of them together, and the downloads against the disk. Pure."""
    usable = _usable_bytes(snapshot)
    total = 0
    for deployment in host.deployments.values():
        need = deployment.artifact.min_memory_bytes * deployment.model.replicas
        total += need
        yield _compared(
            f"fit {deployment.id}",
            host.name,
            need,
            usable,
            f"{deployment.artifact.model}:{deployment.artifact.variant} needs",
        )
    if len(host.deployments) > 1:
        yield _compared("fit together", host.name, total, usable, "all deployments need")
    present = {artifact.artifact for artifact in snapshot.artifacts if artifact.state == "ready"}
    missing = {
        one.artifact.artifact: one.artifact for one in host.deployments.values() if one.artifact.artifact not in present
    }
    free = snapshot.disk.cache_free_bytes
    if missing and free is not None:
        yield _disk(host.name, missing.values(), free)


def _compared(name: str, host: str, need: int, usable: int, words: str) -> Check:
    verdict: Verdict = "pass" if need <= usable else "fail"
    return Check(
        name,
        verdict,
        f"{words} {format_bytes(need)}; {format_bytes(usable)} may be used here",
        "choose a smaller model or variant, or another host (required_labels)",
        host=host,
    )


def _disk(host: str, missing: Iterable[ArtifactFacts], free: int) -> Check:
    need = sum(facts.total_bytes for facts in missing)
    return Check(
        "disk for weights",
        "pass" if need < free else "fail",
        f"{format_bytes(need)} to fetch, {format_bytes(free)} free",
        "free space, or set proxy.model_host.cache.directory to a larger disk",
        host=host,
    )


def engine_checks(host: CompiledHost, snapshot: NodeSnapshot, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether each engine that deployments ask for is there or can be had. A program is only asked on this machine."""
    seen: set[tuple[str, str, str | None]] = set()
    for deployment in host.deployments.values():
        policy = deployment.engine_policy
        wanted = (deployment.engine, policy.launch, policy.path)
        if wanted in seen or policy.launch != "binary":
            continue
        seen.add(wanted)
        name = f"engine {deployment.engine}"
        if host.connection.kind != "local" or snapshot.paths is None:
            yield Check(name, "skip", "a program on the host is looked for when it is planned", host=host.name)
            continue
        found = find_engine(
            launch="binary",
            version=policy.version,
            path=policy.path,
            engines=Path(snapshot.paths.opt, "engines"),
            search_path=environ.get("PATH", ""),
        )
        if found.build is not None:
            yield Check(name, "pass", f"{found.build.version} at {found.build.path}", host=host.name)
        else:
            yield Check(name, "fail", found.reason, found.remedy, host.name)


def budget_check(host: CompiledHost, snapshot: NodeSnapshot) -> Mapping[str, Mapping[str, Any]]:
    """The cache's budget against the free disk, by host; nothing where no budget is set. Pure."""
    budget, free = host.model_host.cache.budget_gib, snapshot.disk.cache_free_bytes
    if budget is None:
        return {}
    free_gib = None if free is None else round(free / GIB, 1)
    return {host.name: {"budget_gib": budget, "free_gib": free_gib, "sufficient": free is None or budget * GIB <= free}}


def port_checks(host: CompiledHost, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Whether the ports that the runtime will bind are free, on this machine only; a runtime of ours may hold them."""
    if host.connection.kind != "local" or snapshot.runtime.running:
        return
    ports = [("port of the API", host.proxy.bind_address, host.proxy.http_bind_port)]
    if host.proxy.admin.enabled:
        ports.append(("port of the admin API", host.proxy.admin.bind, host.proxy.admin.port))
    for name, address, port in ports:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                yield Check(
                    name,
                    "fail",
                    f"{address}:{port}: {error.strerror}",
                    "stop what listens there, or choose another port",
                    host=host.name,
                )
            else:
                yield Check(name, "pass", f"{address}:{port} is free", host=host.name)


def _needs(host: CompiledHost, checks: Iterable[Check]) -> Iterator[Mapping[str, Any]]:
    verdicts = {check.name: check for check in checks}
    for deployment in host.deployments.values():
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
                "needs_bytes": deployment.artifact.min_memory_bytes * deployment.model.replicas,
            },
            "runnable": fits,
            "blocker": None if fits else check.detail,
        }


def _failed(host: str, error: SbctlError) -> Check:
    return Check("answer", "fail", error.message, error.next_step or "", host=host)

"""`doctor`: facts of machines against what would run there. Rules are pure; `examine` gathers.

Without a configuration: this machine, and whether it could serve a small model. With one: every host of it, each deployment against
memory, disk, ports and engines.
"""

from __future__ import annotations

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
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledHost
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_pin
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.views.host_views import Check, Verdict

__all__ = ["Report", "examine", "host_checks", "need_checks"]

_CPU_MEMORY_FRACTION: Final = 0.7
"""Of the installed memory, what models may take on a machine without GPU."""
_RUNTIME_DISK_BYTES: Final = 600 * MIB


@dataclass(frozen=True, slots=True)
class Report:
    """All findings, and the facts they rest on."""

    checks: tuple[Check, ...]
    hosts: Mapping[str, NodeSnapshot] = field(default_factory=dict)
    needs: tuple[Mapping[str, Any], ...] = ()

    def exit_code(self, *, strict: bool) -> ExitCode:
        bad = {"fail", "warn"} if strict else {"fail"}
        return ExitCode.REFUSED if any(check.verdict in bad for check in self.checks) else ExitCode.DONE

    def body(self, *, strict: bool) -> dict[str, Any]:
        """The JSON form."""
        return {
            "ready": self.exit_code(strict=strict) is ExitCode.DONE,
            "strict": strict,
            "checks": [asdict(check) for check in self.checks],
            "hosts": {name: snapshot.model_dump(mode="json") for name, snapshot in sorted(self.hosts.items())},
            "serve_entries": [dict(need) for need in self.needs],
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
    with observe_fleet(connections, clock=workspace.clock, environ=workspace.environ) as fleet:
        for name, error in sorted(fleet.unreachable.items()):
            checks.append(_failed(name, error))
        for name, snapshot in sorted(fleet.snapshots.items()):
            host = config.hosts[name] if config is not None else None
            checks.extend(host_checks(name, snapshot))
            if host is not None:
                found = list(need_checks(host, snapshot))
                checks.extend(found)
                needs.extend(_needs(host, found))
                checks.extend(port_checks(host, snapshot))
        return Report(tuple(checks), dict(fleet.snapshots), tuple(needs))


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
        ", ".join(str(gpu.get("name", "device")) for gpu in facts.gpus) or "none found; models run on the CPU",
        host=name,
    )
    yield Check(
        "service manager",
        "pass" if facts.init != "none" else "warn",
        {"systemd_system": "systemd", "systemd_user": "systemd of the user"}.get(facts.init, "no systemd"),
        "the runtime is kept by a small parent process and does not come back after a reboot",
        host=name,
    )
    free = snapshot.disk.cache_free_bytes
    yield Check(
        "disk",
        "fail" if free is not None and free < _RUNTIME_DISK_BYTES else "pass",
        "unknown" if free is None else f"{format_bytes(free)} free for runtime, engine and weights",
        f"free at least {format_bytes(_RUNTIME_DISK_BYTES)}",
        host=name,
    )


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
    usable = int(snapshot.host.memory_total_bytes * _CPU_MEMORY_FRACTION)
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
        yield {
            "host": host.name,
            "deployment": deployment.id,
            "model": deployment.artifact.model,
            "variant": deployment.artifact.variant,
            "engine": deployment.engine,
            "fit": {"verdict": "fits" if check.verdict == "pass" else "too-large", "detail": check.detail},
            "runnable": check.verdict == "pass",
        }


def _failed(host: str, error: SbctlError) -> Check:
    return Check("answer", "fail", error.message, error.next_step or "", host=host)

"""What the host says about itself: one call, read from files, one systemctl question, one control socket question, no bytes of weights."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from sbctl.artifacts.cache import ArtifactCache
from sbctl.base import fs
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import EngineError, HostError, InputError, SbctlError
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.engines.detect import find_llama_server, installed_engines, probe_llama_server
from sbctl.node.devices import nvidia_devices
from sbctl.node.drain_file import read_drain
from sbctl.node.facts import FactsError, gather
from sbctl.node.machine import filesystem_of
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.node.snapshot import BundleState, ClusterState, DeploymentState, NodeSnapshot
from sbctl.node.store_server import PROGRAM_NAME
from sbctl.runtime.host_devices import named_gpus
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.programs import SYSTEM_PATH
from sbctl.runtime.nodeops.units import UNIT_NAME, Systemd, Units, systemd_of, units_digest
from sbctl.runtime.observed_memory import observed_memory
from sbctl.runtime.public_tls_files import installed_fingerprint
from sbctl.runtime.settings import load_trust
from sbctl.runtime.supervise import supervisor_of

__all__ = ["activated_as", "answer_snapshot", "cache_root", "host_facts", "stored_config", "take_snapshot"]

_State = TypeVar("_State", BundleState, ClusterState, DeploymentState)

_CONFIG_MAX_BYTES = 4 * BUNDLE_MAX_BYTES


def host_facts(context: NodeContext) -> dict[str, Any]:
    """The facts that need no runtime. Raises HostError `host.marker_damaged`."""
    try:
        facts = gather(context.environ, context.uid)
    except FactsError as error:
        raise HostError(error.code, error.message, place=error.place, next_step=error.next_step) from error
    facts["host"].update(_devices(context.paths))
    return facts


def _devices(paths: NodePaths) -> dict[str, Any]:
    """What the driver's own library tells, over what files told; with the numbers that the runtime gives devices, and what it withholds."""
    devices = nvidia_devices()
    told: dict[str, Any] = {"gpu_problem": devices.problem, "cuda": devices.cuda or ""}
    if devices.gpus:
        config, _ = stored_config(paths)
        told["gpus"] = named_gpus(paths.state, devices.gpus, () if config is None else config.excluded_devices)
    return {**told, "nvidia_driver": devices.driver} if devices.driver else told


def stored_config(paths: NodePaths) -> tuple[RuntimeConfig | None, str | None]:
    """The runtime's configuration and the digest of its file; (None, digest) when the file cannot be read as one."""
    try:
        data = fs.read_bounded(paths.runtime_config, max_bytes=_CONFIG_MAX_BYTES)
    except InputError as error:
        return None, None if error.code == "file.missing" else "unreadable"
    try:
        return RuntimeConfig.model_validate_json(data), sha256_bytes(data)
    except ValidationError:
        return None, sha256_bytes(data)


def cache_root(paths: NodePaths) -> Path:
    """Where this host keeps weights: as its configuration says, else the usual place."""
    config, _ = stored_config(paths)
    return Path(config.cache_directory) if config is not None and config.cache_directory else paths.models


def take_snapshot(context: NodeContext) -> NodeSnapshot:
    """Everything, in one document. Raises HostError only when the host's owner cannot be read."""
    facts = host_facts(context)
    paths = context.paths
    status = ControlClient(paths.control_socket).status() or {}
    root = cache_root(paths)
    told = {
        "bootstrapped": True,
        "host": facts["host"],
        "marker": facts["marker"],
        "drain": status.get("drain") or read_drain(paths),
        "lease": facts["lease"],
        "paths": facts["paths"],
        "disk": {
            **facts["disk"],
            "cache_free_bytes": fs.free_bytes(root),
            "cache_filesystem": filesystem_of(root),
            "state_free_bytes": fs.free_bytes(paths.state),
        },
        "runtime": _runtime(context, facts, status),
        "engines": _engines(context),
        "artifacts": [asdict(entry) for entry in ArtifactCache(root).entries()],
        "bundle": _one(BundleState, status.get("bundle")),
        "cluster": _cluster(paths, status),
        "certificate": _certificate(context, status),
        "enrollment": _enrollment(context),
        "store": _store(context),
        "store_program": _store_program(),
        "deployments": [
            _with_memory(state)
            for state in (_one(DeploymentState, raw) for raw in _list(status.get("deployments")))
            if state
        ],
        "memory": [{"key": key, "observed_bytes": size} for key, size in observed_memory(paths.state).items()],
    }
    # One model is built, not one for each part: most of what a node process does is starting.
    return NodeSnapshot.model_validate(told)


def answer_snapshot(context: NodeContext, _params: None) -> dict[str, Any]:
    """`take_snapshot` as the node interface answers it."""
    return take_snapshot(context).model_dump(mode="json")


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _one(kind: type[_State], raw: object) -> _State | None:
    try:
        return None if raw is None else kind.model_validate(raw)
    except ValidationError:
        return None


def _cluster(paths: NodePaths, status: Mapping[str, Any]) -> ClusterState | None:
    """Asked only where the configuration makes this a node of a cluster."""
    config, _ = stored_config(paths)
    if not status or config is None or config.cluster is None:
        return None
    return _one(ClusterState, ControlClient(paths.control_socket).cluster())


def _with_memory(state: DeploymentState) -> DeploymentState:
    replicas = tuple(one.model_copy(update={"memory_bytes": _resident_bytes(one.pid)}) for one in state.replicas)
    return state.model_copy(update={"replicas": replicas})


def _resident_bytes(pid: int | None) -> int | None:
    if pid is None:
        return None
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _runtime(context: NodeContext, facts: Mapping[str, Any], status: Mapping[str, Any]) -> dict[str, Any]:
    paths = context.paths
    systemd = systemd_of(facts["host"]["init"], context.environ, context.uid)
    units = systemd.installed() if systemd is not None else {}
    parent = supervisor_of(paths)
    supervision, is_up = _supervision(systemd, units, parent is not None)
    by_hand = bool(status.get("started_by_hand"))
    return {
        **facts["runtime"],
        "supervision": supervision,
        "unit_path": str(systemd.unit_path) if systemd is not None and UNIT_NAME in units else None,
        "unit_sha256": units_digest(units),
        "config_sha256": stored_config(paths)[1],
        "trust_digest": _trust(paths),
        "running": bool(status) or is_up,
        "healthy": bool(status.get("healthy")),
        "pid": status.get("pid"),
        "version_running": status.get("version"),
        "started_by_hand": by_hand,
        "changing": bool(status.get("changing")) or paths.activation_journal.exists(),
        "admin_url": status.get("admin_url"),
        "http_url": status.get("http_url"),
        "https_url": status.get("https_url"),
        "tls": _public_tls(paths, status.get("tls")),
    }


def activated_as(context: NodeContext, facts: Mapping[str, Any]) -> dict[str, Any]:
    """What an activation answered and a smaller change leaves as it is: `unit_sha256`, `supervision`."""
    systemd = systemd_of(facts["host"]["init"], context.environ, context.uid)
    units = systemd.installed() if systemd is not None else {}
    supervision, _is_up = _supervision(systemd, units, supervisor_of(context.paths) is not None)
    return {"unit_sha256": units_digest(units), "supervision": supervision}


def _public_tls(paths: NodePaths, told: object) -> dict[str, Any] | None:
    config, _digest = stored_config(paths)
    if config is None or not config.has_tls:
        return None
    return {
        **(told if isinstance(told, dict) else {}),
        "installed": installed_fingerprint(paths),
        "followed": config.tls_cert_file is not None,
    }


def _supervision(systemd: Systemd | None, units: Units, has_parent: bool) -> tuple[Any, bool]:
    if systemd is not None and UNIT_NAME in units:
        return systemd.kind, systemd.is_active()
    return ("parent", True) if has_parent else ("none", False)


def _trust(paths: NodePaths) -> str | None:
    """A damaged set has a digest that no plan expects, so that it shows as drift."""
    try:
        return load_trust(paths)[1]
    except SbctlError:
        return "unreadable"


def _certificate(context: NodeContext, status: Mapping[str, Any]) -> dict[str, Any] | None:
    """What is installed; only where something is, the library for it is loaded."""
    if not (context.paths.etc / "identity").is_symlink():
        return None
    from sbctl.runtime.identity_files import installed_state
    from sbctl.runtime.renewal_state import renewal_problem

    held = status.get("identity")
    state = installed_state(context.paths, context.clock.now())
    return {
        **state,
        "renewal_problem": renewal_problem(context.paths, state.get("fingerprint")),
        "used": held.get("fingerprint") if isinstance(held, dict) else None,
    }


def _enrollment(context: NodeContext) -> dict[str, Any] | None:
    """What is installed; only where something is, its module is loaded."""
    if not (context.paths.etc / "enrollment").is_dir():
        return None
    from sbctl.runtime.nodeops.enrollment_ops import enrollment_state

    return enrollment_state(context)


def _store(context: NodeContext) -> dict[str, Any] | None:
    """What is installed; only where something is, its module is loaded."""
    if not (context.paths.etc / "store").is_dir():
        return None
    from sbctl.runtime.nodeops.store_ops import store_state

    return store_state(context)


def _store_program() -> dict[str, str] | None:
    """Only a host that has one is asked for its version."""
    if shutil.which(PROGRAM_NAME, path=SYSTEM_PATH) is None:
        return None
    from sbctl.runtime.nodeops.store_program import program_on_path

    found = program_on_path()
    return None if found is None else {"path": str(found.path), "version": found.version}


def _engines(context: NodeContext) -> list[dict[str, Any]]:
    engines = context.paths.engines
    found: list[dict[str, Any]] = [
        {
            "engine": record.engine,
            "launch": record.launch,
            "version": record.version,
            "digest": record.sha256,
            "path": str(engines / "llama_cpp" / record.version),
        }
        for record in installed_engines(engines)
    ]
    program = find_llama_server(context.environ.get("PATH", ""))
    if program is not None:
        with contextlib.suppress(EngineError):
            version = probe_llama_server(program, with_flags=False).version
            found.append(
                {"engine": "llama_cpp", "launch": "binary", "version": version, "path": str(program), "ours": False}
            )
    return found

"""This machine as `doctor --format json` tells it (SBproxy, `doctor`): system, devices, engines and how each can be had, programs, model hub.

Nothing here asks the network and nothing is changed. What was not asked is null, never a guess.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from yarl import URL

from sbctl.artifacts.foreign_caches import foreign_caches, measured
from sbctl.base.errors import EngineError
from sbctl.engines.build_tools import missing_tools
from sbctl.engines.machine import this_machine
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_for
from sbctl.engines.release_pins import Machine, archive_pin
from sbctl.node.devices import NvidiaDevices
from sbctl.node.snapshot import NodeSnapshot

__all__ = ["machine_report"]

_HUB: Final = "https://huggingface.co"
_PACKAGE_MANAGERS: Final = ("apt-get", "dnf", "zypper", "pacman", "apk", "brew")
_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - asked how large it is
_FOREIGN_ENGINES: Final = ("vllm", "sglang", "mistralrs")


def machine_report(
    snapshot: NodeSnapshot, devices: NvidiaDevices, cache: Path, environ: Mapping[str, str]
) -> dict[str, Any]:
    """`snapshot` is this machine's; `cache` is where its weights are kept."""
    facts, path = snapshot.host, environ.get("PATH", os.defpath)
    docker, podman = _which("docker", path), _which("podman", path)
    return {
        "host": {
            "os": facts.os_id,
            "arch": facts.arch,
            "cpu_count": facts.cpu_count,
            "total_ram_bytes": facts.memory_total_bytes,
        },
        "gpus": [dict(gpu) for gpu in devices.gpus],
        "drivers": {"nvidia_driver": devices.driver, "cuda": devices.cuda, "problem": devices.problem},
        "engines": [_llama_cpp(snapshot), *(_foreign(name, path) for name in _FOREIGN_ENGINES)],
        "container_runtime": "docker" if docker else "podman" if podman else None,
        "containers": {"docker": docker, "podman": podman, "daemon_reachable": None},
        "package_managers": [name for name in _PACKAGE_MANAGERS if _which(name, path)],
        "git": _which("git", path),
        "python": {
            "python3": facts.pythons[0].path if facts.pythons else None,
            "uv": _which("uv", path),
            "pip": _which("pip3", path) or _which("pip", path),
        },
        "huggingface": {
            "endpoint": _without_credentials(environ.get("HF_ENDPOINT") or _HUB),
            "token_present": bool(environ.get("HF_TOKEN") or environ.get("HUGGING_FACE_HUB_TOKEN")),
            "reachable": None,
        },
        "model_cache_dir": str(cache),
        "model_cache_exists": cache.is_dir(),
        "model_cache_free_bytes": snapshot.disk.cache_free_bytes,
        "foreign_model_caches": [
            {"source": one.kind, "path": str(one.root), "files": files, "total_bytes": total}
            for one in foreign_caches(environ)
            for files, total in [measured(one)]
        ],
        "shared_memory": _shared_memory(),
    }


def _llama_cpp(snapshot: NodeSnapshot) -> dict[str, Any]:
    found = next((engine for engine in snapshot.engines if engine.engine == "llama_cpp"), None)
    pin = wheel_for(snapshot.host.arch, snapshot.host.libc)
    wheel = (
        f"the pinned wheel {LLAMA_CPP_WHEEL_DEFAULT}"
        if pin is not None
        else f"no pinned wheel for {snapshot.host.arch}, {snapshot.host.libc or 'unknown C library'}"
    )
    on_host = found is not None and found.launch == "binary"
    machine = replace(this_machine(), arch=snapshot.host.arch, libc=snapshot.host.libc)
    ways = [
        _way("wheel", pin is not None, wheel),
        _way("binary", on_host, "a llama-server on PATH or at path:"),
        _release(machine),
        _cuda_source(machine),
    ]
    return {
        "engine": "llama_cpp",
        "program": "llama-server",
        "path": found.path if found is not None else None,
        "version": found.version if found is not None else None,
        "acquisition": ways,
    }


def _release(machine: Machine) -> dict[str, Any]:
    try:
        pin = archive_pin(None, machine)
    except EngineError as error:
        return _way("release", False, error.message)
    return _way("release", True, f"launch: binary installs {pin.filename}")


def _cuda_source(machine: Machine) -> dict[str, Any]:
    try:
        pin = archive_pin(None, machine, "cuda")
    except EngineError as error:
        return _way("cuda_source", False, error.message)
    lacking = missing_tools()
    said = f"missing here: {', '.join(lacking)}" if lacking else f"acceleration: cuda builds {pin.filename}"
    return _way("cuda_source", not lacking, said)


def _foreign(name: str, path: str) -> dict[str, Any]:
    """An engine that sbctl does not start yet: shown where it is installed, so that nobody wonders why it is not used."""
    program = {"sglang": "sglang", "vllm": "vllm", "mistralrs": "mistralrs-server"}[name]
    return {
        "engine": name,
        "program": program,
        "path": _which(program, path),
        "version": None,
        "acquisition": [_way("none", False, f"{name} is not in this version of sbctl")],
    }


def _way(method: str, available: bool, detail: str) -> dict[str, Any]:
    return {"method": method, "available": available, "detail": detail}


def _which(name: str, path: str) -> str | None:
    return shutil.which(name, path=path)


def _without_credentials(text: str) -> str:
    try:
        return str(URL(text).with_user(None).with_query(None))
    except ValueError:
        return "not a URL"


def _shared_memory() -> dict[str, Any]:
    try:
        told = os.statvfs(_SHARED_MEMORY)
    except OSError:
        return {"path": str(_SHARED_MEMORY), "total_bytes": None, "available_bytes": None}
    return {
        "path": str(_SHARED_MEMORY),
        "total_bytes": told.f_blocks * told.f_frsize,
        "available_bytes": told.f_bavail * told.f_frsize,
    }

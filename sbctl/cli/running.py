"""`sbctl run MODEL`: one command to a local endpoint, and nothing left when it ends but the weights in the cache.

It is the ordinary pipeline in a directory of its own: a generated sb.yml, a fleet with one host, a node prefix below a temporary directory, a
key that lives in memory. So it never meets a runtime that this machine serves otherwise, apart from the ports.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from sbctl.base.errors import ConfigError, ExitCode, InputError
from sbctl.base.fs import read_bounded, write_atomic
from sbctl.cli.applying import ApplyRequest, apply
from sbctl.cli.models_lock import refuse_unlocked
from sbctl.cli.planning import PlanRequest
from sbctl.cli.run_place import private_directory
from sbctl.cli.workspace import Workspace
from sbctl.node.paths import PREFIX_VARIABLE, NodePaths, node_paths
from sbctl.plan.model import Plan
from sbctl.trust.keys import SigningKey
from sbctl.views.apply_text import print_apply_result
from sbctl.views.console import note, print_plain
from sbctl.views.live import event_view
from sbctl.views.plan import print_plan

__all__ = ["RunRequest", "configuration_of", "run_model"]

_ENGINE: Final = "llama_cpp"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """`port` 0 takes any free one, as `admin_port` does; `name` is the public model name, by default the model's id. With `lock_file` the model
    has to be as it was locked there."""

    model: str
    variant: str | None = None
    name: str | None = None
    port: int = 8080
    admin_port: int = 0
    engine: str = "auto"
    acceleration: str = "auto"
    max_concurrency: int = 2
    cache_directory: Path | None = None
    lock_file: Path | None = None


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a run lives, and on which ports it answers."""

    workspace: Workspace
    node: NodePaths
    port: int
    admin_port: int


def configuration_of(request: RunRequest, port: int, admin_port: int) -> dict[str, Any]:
    """The sb.yml of a run. Raises InputError `run.model`, `run.engine`, `run.acceleration` for what cannot be run here."""
    if request.engine not in ("auto", _ENGINE):
        raise InputError(
            "run.engine",
            f"the engine {request.engine} is not in this version of sbctl",
            next_step=f"--engine {_ENGINE}",
        )
    if request.acceleration not in ("auto", "cpu"):
        raise InputError(
            "run.acceleration",
            f"acceleration by {request.acceleration} is not in this version of sbctl",
            next_step="--accel auto and cpu run on the CPU",
        )
    if ":" in request.model or "/" in request.model:
        raise InputError(
            "run.model",
            f'"{request.model}" is not a catalog id',
            next_step="name a model of the catalog, e.g. smollm2-135m-instruct; your own models go into a catalog_file",
        )
    cache = request.cache_directory or node_paths(os.geteuid(), os.environ).cache / "models"
    deployment: dict[str, Any] = {
        "model": request.model,
        "pull": "on_boot",
        "warm": True,
        "engine": request.engine,
        "max_concurrency": request.max_concurrency,
    }
    if request.variant:
        deployment["variant"] = request.variant
    provider = {
        "name": "local",
        "provider_type": "managed_model",
        "deployment": "local",
        "models": [request.name or request.model],
    }
    origin = {"action": {"type": "ai_proxy", "providers": [provider]}}
    return {
        "fleet": {"defaults": {"keep": ["weights"]}},
        "proxy": {
            "http_bind_port": port,
            "admin": {"enabled": True, "port": admin_port},
            "model_host": {"cache": {"directory": str(cache)}, "deployments": {"local": deployment}},
        },
        "origins": {"127.0.0.1": origin, "localhost": origin},
    }


@contextlib.contextmanager
def _place(request: RunRequest) -> Iterator[_Place]:
    """A private directory with everything of this run; removed at the end."""
    port, admin_port = request.port or _free_port(), request.admin_port or _free_port()
    with private_directory() as directory:
        file = directory / "sb.yml"
        write_atomic(file, json.dumps(configuration_of(request, port, admin_port), indent=2).encode())
        environ = {
            **os.environ,
            PREFIX_VARIABLE: str(directory / "node"),
            "SBCTL_SIGNING_KEY": SigningKey.generate().to_pem().reveal().decode(),
        }
        for name in ("SBCTL_SIGNING_KEY_FILE", "SBCTL_SIGNING_KEY_PASSPHRASE"):
            environ.pop(name, None)
        yield _Place(Workspace(file, environ), node_paths(os.geteuid(), environ), port, admin_port)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_model(request: RunRequest, *, dry_run: bool) -> ExitCode:
    """Serve until a signal; then remove everything but the cache. Returns the exit code of what went worst.

    Raises InputError for what cannot be run here; InputError `models_lock.*`, RefusedError `models_lock.drift` before anything is started.
    """
    with _place(request) as place:
        workspace = place.workspace
        _check(workspace)
        if request.lock_file is not None:
            refuse_unlocked(workspace.config, request.lock_file)
        if dry_run:
            from sbctl.cli.planning import planned

            with planned(workspace, PlanRequest()) as found:
                print_plan(found.plan)
            return ExitCode.DONE
        started = _carry_out(workspace, "apply")
        if started in (ExitCode.DONE, ExitCode.DEGRADED):
            _banner(request, place)
            _wait_for_signal()
            note("stopping")
        removed = _carry_out(workspace, "destroy") if workspace.store.exists() else ExitCode.DONE
        return started if started is not ExitCode.DONE else removed


def _check(workspace: Workspace) -> None:
    """Raises InputError for what the catalog has not; its place would be a line of a file that the user never wrote."""
    try:
        _ = workspace.config
    except ConfigError as error:
        first = error.diagnostics[0]
        raise InputError(first.code, first.message, next_step="; ".join(first.notes) or None) from error


def _carry_out(workspace: Workspace, command: Literal["apply", "destroy"]) -> ExitCode:
    workspace.forget()
    asked = ApplyRequest(command, PlanRequest(mode=command), assume_yes=True, has_file=False)

    def show(_plan: Plan) -> None:
        """`run` shows progress, not the plan: it was asked for by name."""

    with event_view(as_json=False) as sink:
        _plan, result = apply(workspace, asked, show=show, confirm=lambda _plan: True, sink=sink)
    if result is None:
        return ExitCode.DONE
    if result.exit_code is not ExitCode.DONE:
        print_apply_result(result)
    return result.exit_code


def _banner(request: RunRequest, place: _Place) -> None:
    base = f"http://127.0.0.1:{place.port}/v1"
    password = read_bounded(place.node.secrets / "admin_password", max_bytes=4096).decode()
    name = request.name or request.model
    body = json.dumps({"model": name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100})
    print_plain(
        f"{name} is ready on {base}\n"
        f"admin: http://127.0.0.1:{place.admin_port}/admin/model-host/status, user admin, password {password}\n"
        f"OPENAI_BASE_URL={base}\nOPENAI_API_KEY=local\n"
        f"curl -s {base}/chat/completions -H 'content-type: application/json' -d '{body}'\n"
    )
    note("Ctrl-C stops it")


def _wait_for_signal() -> None:
    stop = threading.Event()
    previous = {
        number: signal.signal(number, lambda *_: stop.set())
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        while not stop.wait(3600):
            pass
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)

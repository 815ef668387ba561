"""`run MODEL`: one command to a local endpoint."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["register"]


class Engine(StrEnum):
    """Engines that `run` may be asked for."""

    AUTO = "auto"
    LLAMA_CPP = "llama_cpp"
    VLLM = "vllm"
    SGLANG = "sglang"
    MISTRALRS = "mistralrs"


class Acceleration(StrEnum):
    """Kinds of device that `run` may be asked for."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"
    VULKAN = "vulkan"


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(run)


def run(
    model: Annotated[str, typer.Argument(help="A model of the catalog, e.g. smollm2-135m-instruct.")],
    variant: Annotated[str | None, typer.Option("--variant", help="One of its variants.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="The public model name.")] = None,
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0 takes any free port.")] = 8080,
    admin_port: Annotated[
        int, typer.Option("--admin-port", min=0, max=65535, help="Of the admin API; 0 takes any free port.")
    ] = 0,
    engine: Annotated[Engine, typer.Option("--engine", help="Which engine serves.")] = Engine.AUTO,
    accel: Annotated[Acceleration, typer.Option("--accel", help="Which kind of device.")] = Acceleration.AUTO,
    max_concurrency: Annotated[int, typer.Option("--max-concurrency", min=1, max=64, help="Requests at once.")] = 2,
    cache_directory: Annotated[Path | None, typer.Option("--cache-dir", help="Where weights are kept.")] = None,
    locked: Annotated[
        bool, typer.Option("--locked", help="Refuse (exit 4) a model that is not as ./sbproxy-models.lock has it.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
) -> int:
    """Serve one model on this machine until Ctrl-C, then leave nothing but its weights in the cache."""
    from sbctl.artifacts.lockfile import LOCK_NAME
    from sbctl.cli.running import RunRequest, run_model

    asked = RunRequest(
        model,
        variant=variant,
        name=name,
        port=port,
        admin_port=admin_port,
        engine=engine.value,
        acceleration=accel.value,
        max_concurrency=max_concurrency,
        cache_directory=cache_directory.resolve() if cache_directory is not None else None,
        lock_file=Path(LOCK_NAME).absolute() if locked else None,
    )
    return run_model(asked, dry_run=dry_run)

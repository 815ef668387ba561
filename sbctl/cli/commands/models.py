"""`models list|show|pull|remove|prune|lock|verify-lock`: weights, on this machine or on hosts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import ExitCode, InputError, worst_exit
from sbctl.cli.options import File, Format, OutputFormat

if TYPE_CHECKING:
    from sbctl.cli.models_places import PlaceRequest
    from sbctl.views.models_views import PlaceError

__all__ = ["Hosts", "app", "complain"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)

Hosts = Annotated[
    list[str] | None,
    typer.Option("--host", metavar="NAME", help="A host of sb.yml, or a pattern such as 'gpu-*'. Repeatable."),
]
CacheDir = Annotated[Path | None, typer.Option("--cache-dir", metavar="DIR", help="A cache directory of this machine.")]
CatalogFile = Annotated[
    Path | None, typer.Option("--catalog-file", metavar="FILE", help="A catalog of your own over the built-in one.")
]
Model = Annotated[str, typer.Argument(metavar="MODEL[:VARIANT]")]
Variant = Annotated[str | None, typer.Option("--variant", help="Which variant of the model.")]


def _request(
    file: Path, hosts: list[str] | None, cache_dir: Path | None = None, catalog_file: Path | None = None
) -> PlaceRequest:
    from sbctl.cli.models_places import PlaceRequest

    return PlaceRequest(file, tuple(hosts or ()), cache_dir, catalog_file)


def complain(errors: Sequence[PlaceError]) -> None:
    """Each on stderr, with its host; as JSON they stand in the result."""
    from sbctl.views.console import talk
    from sbctl.views.diagnostics import error_text

    for one in errors:
        if one.error.place is None:
            one.error.place = " ".join(part for part in (one.host, one.model) if part)
        talk(error_text(one.error))


@app.command("list")
def list_(
    hosts: Hosts = None,
    cache_dir: CacheDir = None,
    catalog_file: CatalogFile = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
) -> int:
    """Models of the catalog, whether they fit, and which are in the cache. Exit 7: a host gave no answer."""
    from sbctl.cli.models_places import opened_places
    from sbctl.cli.models_work import exit_code, listed
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.models_list_views import list_body, list_text

    workspace = Workspace(file)
    with opened_places(workspace, _request(file, hosts, cache_dir, catalog_file)) as places:
        rows, errors = listed(places)
    if format is OutputFormat.JSON:
        print_json("models.list", list_body(rows, errors))
    else:
        result(list_text(rows, errors))
        complain(errors)
    return exit_code(errors)


@app.command()
def show(
    model: Model,
    hosts: Hosts = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of what is cached. Exit 1: damaged.")
    ] = False,
    cache_dir: CacheDir = None,
    catalog_file: CatalogFile = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """One model: what the catalog says, its variants, and how they stand in the cache."""
    from sbctl.cli.models_places import opened_places
    from sbctl.cli.models_work import exit_code, shown
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import line_width, print_json, result
    from sbctl.views.models_list_views import show_body, show_text
    from sbctl.views.models_views import errors_body

    with opened_places(Workspace(file), _request(file, hosts, cache_dir, catalog_file)) as places:
        entry, (rows, errors) = shown(places, model, verify=verify)
    if format is OutputFormat.JSON:
        print_json("models.show", {**show_body(entry, rows), "errors": errors_body(errors)})
    else:
        result(show_text(entry, rows, width=line_width()))
        complain(errors)
    return exit_code(errors)


@app.command()
def pull(
    models: Annotated[
        list[str] | None,
        typer.Argument(metavar="[MODEL[:VARIANT]]...", help="Without: what the deployments of the host need."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every model of the catalog that can be served.")] = False,
    variant: Variant = None,
    engine: Annotated[str, typer.Option("--engine", help="For which engine a variant is chosen.")] = "auto",
    offline: Annotated[
        bool, typer.Option("--offline", help="Fetch nothing: take only what the machine already has.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read every byte of what was there; what is damaged is fetched again.")
    ] = False,
    pin: Annotated[
        bool | None, typer.Option("--pin/--no-pin", help="Keep it whatever the cache's budget says, or no longer.")
    ] = None,
    hosts: Hosts = None,
    cache_dir: CacheDir = None,
    catalog_file: CatalogFile = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Get weights into the cache: verified, published whole, found again by a seal. Interrupted, it goes on where it was."""
    from sbctl.cli.models_places import opened_places
    from sbctl.cli.models_work import PullRequest, exit_code, pulled
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.models_views import pull_body, pull_text
    from sbctl.views.transfers import transfers

    request = PullRequest(tuple(models or ()), all_, variant, engine, offline, verify, pin)
    with opened_places(Workspace(file), _request(file, hosts, cache_dir, catalog_file)) as places:
        with transfers() as begin:
            rows, errors = pulled(places, request, begin)
        several = len(places) > 1
    if format is OutputFormat.JSON:
        print_json("models.pull", pull_body(rows, errors))
    else:
        if rows:
            result(pull_text(rows, several=several))
        complain(errors)
    return exit_code(errors)


@app.command()
def remove(
    model: Annotated[str, typer.Argument(metavar="MODEL[:VARIANT]|ARTIFACT")],
    variant: Variant = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also what a deployment is configured with and no engine has open.")
    ] = False,
    hosts: Hosts = None,
    cache_dir: CacheDir = None,
    catalog_file: CatalogFile = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Remove a model from the cache; bytes that another one shares stay. Exit 4: it is in use."""
    from sbctl.base.display import format_bytes
    from sbctl.cli.models_places import opened_places
    from sbctl.cli.models_work import exit_code, removed
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json
    from sbctl.views.models_views import remove_body

    with opened_places(Workspace(file), _request(file, hosts, cache_dir, catalog_file)) as places:
        rows, errors = removed(places, model, variant=variant, force=force)
    if format is OutputFormat.JSON:
        print_json("models.remove", remove_body(rows, errors))
        return exit_code(errors)
    for row in rows:
        freed = format_bytes(row.removed.reclaimed_bytes)
        note(f"{row.host}: {row.model}:{row.variant} is removed, {freed} freed")
    if not rows and not errors:
        note(f"{model} was not in the cache")
    complain(errors)
    return exit_code(errors)


@app.command()
def prune(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go, and remove nothing.")] = False,
    all_: Annotated[
        bool, typer.Option("--all", help="Also unfinished downloads, and damaged files that were set aside.")
    ] = False,
    hosts: Hosts = None,
    cache_dir: CacheDir = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Remove bytes that no artifact names; then, where the host has a budget, what was unused the longest and nothing needs."""
    from sbctl.cli.models_places import opened_places
    from sbctl.cli.models_work import exit_code, pruned
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.models_views import prune_body, prune_text

    with opened_places(Workspace(file), _request(file, hosts, cache_dir)) as places:
        rows, errors = pruned(places, dry_run=dry_run, everything=all_)
        several = len(places) > 1
    if format is OutputFormat.JSON:
        print_json("models.prune", prune_body(rows, errors))
    else:
        result(prune_text(rows, several=several))
        complain(errors)
    return exit_code(errors)


@app.command()
def lock(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Unset: sbproxy-models.lock beside sb.yml.")
    ] = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Write down exactly which files and which engine build each deployment of sb.yml means; to be committed with it."""
    from sbctl.base.display import plural
    from sbctl.cli.models_lock import lock_path, locked_models, write_models_lock
    from sbctl.cli.models_places import config_of
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json
    from sbctl.views.models_views import lock_body

    workspace = Workspace(file)
    config = config_of(workspace, require_pins=False)
    if config is None:
        raise _no_config(file)
    path = out if out is not None else lock_path(file)
    written = write_models_lock(config, path, workspace.clock)
    if format is OutputFormat.JSON:
        print_json("models.lock", lock_body(str(path), written.catalog_revision, locked_models(written)))
    else:
        note(f"{plural(len(written.models), 'model')} locked in {path}; sbctl apply --locked refuses others")
    return ExitCode.DONE


@app.command("verify-lock")
def verify_lock(
    lockfile: Annotated[
        Path | None, typer.Option("--lockfile", metavar="FILE", help="Unset: sbproxy-models.lock beside sb.yml.")
    ] = None,
    hosts: Hosts = None,
    cache_dir: CacheDir = None,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Whether sb.yml, and the cache of this machine or of hosts, are as they were locked. Exit 2: they are not; 7: a host gave no answer."""
    from sbctl.artifacts.lockfile import drifted, read_lock
    from sbctl.cli.models_lock import lock_path, verified
    from sbctl.cli.models_places import config_of, opened_places
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import note, print_json, result
    from sbctl.views.models_views import lock_rows_body, lock_rows_text

    workspace = Workspace(file)
    path = lockfile if lockfile is not None else lock_path(file)
    locked = read_lock(path)
    config = config_of(workspace, require_pins=bool(hosts))
    elsewhere = config is not None and all(host.connection.kind != "local" for host in config.hosts.values())
    if elsewhere and not hosts and cache_dir is None:
        rows, errors = verified(config, locked, ())
        note("no cache was looked at: this machine is no host of sb.yml; --host NAME looks at one")
    else:
        with opened_places(workspace, _request(file, hosts, cache_dir)) as places:
            rows, errors = verified(config, locked, places)
    drift = drifted(row for _, row in rows)
    if format is OutputFormat.JSON:
        print_json("models.verify-lock", lock_rows_body(str(path), rows, errors, drift=drift))
    else:
        result(lock_rows_text(rows))
        complain(errors)
    return worst_exit([ExitCode.CHANGES if drift else ExitCode.DONE, *(one.error.exit_code for one in errors)])


def _no_config(file: Path) -> InputError:
    return InputError(
        "file.missing",
        "there is no such file",
        place=str(file),
        next_step="sbctl init writes a starter; -f names another file",
    )

"""`host list|trust|facts|exec|shell`: the machines of a fleet, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import ExitCode, UsageError
from sbctl.cli.commands import host_life
from sbctl.cli.options import File, Format, OutputFormat, Parallelism, Yes

if TYPE_CHECKING:
    from sbctl.views.trust_views import Question, TrustOutcome

__all__ = ["app"]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
host_life.register(app)


@app.command("list")
def list_(
    file: File = Path("sb.yml"),
    check: Annotated[
        bool, typer.Option("--check", help="Ask every host whether it answers. Exit 7: one does not.")
    ] = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002 - the option's name
    parallelism: Parallelism = 10,
) -> int:
    """Every host: address, roles, group, labels, whether its key is pinned, and the last serial that changed it."""
    from sbctl.cli.fleet_hosts import host_rows, unpinned, unreachable
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import print_json, result
    from sbctl.views.fleet_hosts import host_list_body, host_list_text

    workspace = Workspace(file)
    rows = host_rows(workspace, unpinned(workspace), check=check, parallelism=parallelism)
    if format is OutputFormat.JSON:
        print_json("host.list", host_list_body(rows))
    else:
        result(host_list_text(rows))
    return ExitCode.UNREACHABLE if unreachable(rows) else ExitCode.DONE


@app.command()
def trust(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Hosts and jumps of sb.yml; patterns such as 'gpu-*'."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every host and jump.")] = False,
    from_: Annotated[
        Path | None,
        typer.Option("--from", metavar="KNOWN_HOSTS", help="Take keys from this OpenSSH file, without connecting."),
    ] = None,
    fingerprint: Annotated[
        str,
        typer.Option("--fingerprint", metavar="SHA256:…", help="What the one host must show, as its console has it."),
    ] = "",
    prune: Annotated[
        bool, typer.Option("--prune", help="Instead: remove the pins of hosts that neither sb.yml nor the state has.")
    ] = False,
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Show the SSH key of hosts, ask, and pin it in sb.hosts.lock, which is to be committed. Exit 4: one was not pinned."""
    from sbctl.cli.fleet_hosts import recorded_connections, unpinned
    from sbctl.cli.fleet_setup import interactive
    from sbctl.cli.trusting import TrustRequest, ssh_scan, targets_of, trust_hosts, unnamed_pins
    from sbctl.cli.workspace import Workspace
    from sbctl.config.known_hosts import read_known_hosts
    from sbctl.views.trust_views import TrustOutcome

    if [bool(names), all_, prune].count(True) != 1:
        raise UsageError("usage", "name hosts, or pass --all or --prune", next_step="sbctl host list names them")
    if fingerprint and from_ is not None:
        raise UsageError("usage", "--fingerprint and --from do not go together: one of them says what is trusted")

    workspace = Workspace(file)
    config = unpinned(workspace)
    connections = {name: host.connection for name, host in config.hosts.items()}
    recorded = recorded_connections(workspace)
    if prune:
        removed = unnamed_pins(config.host_lock, connections, recorded, remove=True)
        return _show_trust(TrustOutcome(config.host_lock, removed), format)
    request = TrustRequest(
        lock=config.host_lock,
        targets=targets_of(connections, names or ()),
        ask=_asks_to_pin if interactive() else None,
        assume_yes=yes,
        fingerprint=fingerprint,
        known=read_known_hosts(from_) if from_ is not None else None,
        known_file=str(from_ or ""),
        recorded=recorded,
    )
    with ssh_scan(workspace) as scan:
        outcome = trust_hosts(request, scan)
    stale = unnamed_pins(config.host_lock, connections, recorded, remove=False) if all_ else ()
    return _show_trust(replace(outcome, hosts=(*outcome.hosts, *stale)), format)


def _asks_to_pin(question: Question) -> bool:
    from sbctl.views.console import ask_yes, talk
    from sbctl.views.trust_views import question_text

    talk(question_text(question))
    return ask_yes(f"Pin this key for {question.name}? (y/N) ")


def _show_trust(outcome: TrustOutcome, format: OutputFormat) -> int:  # noqa: A002
    """The exit code."""
    from sbctl.views.console import print_json, result
    from sbctl.views.trust_views import trust_body, trust_text

    if format is OutputFormat.JSON:
        print_json("host.trust", trust_body(outcome))
    else:
        result(trust_text(outcome))
    return outcome.exit_code


@app.command()
def facts(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Hosts; patterns such as 'gpu-*'.")],
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
    parallelism: Parallelism = 10,
) -> int:
    """What hosts say of themselves: system, memory, devices, runtime, engines, weights. Exit 7: one gave no answer."""
    from sbctl.cli.host_work import chosen_hosts
    from sbctl.cli.workspace import Workspace
    from sbctl.remote.observe import observe_fleet
    from sbctl.views.console import line_width, print_json, result
    from sbctl.views.exec_views import facts_body, facts_text

    workspace = Workspace(file)
    connections = chosen_hosts(workspace, names)
    with observe_fleet(
        connections,
        clock=workspace.clock,
        max_parallel=parallelism,
        environ=workspace.environ,
        secrets=workspace.login_secrets.prepared(connections.values()),
    ) as fleet:
        if format is OutputFormat.JSON:
            print_json("host.facts", facts_body(fleet.snapshots, fleet.unreachable))
        else:
            result(facts_text(fleet.snapshots, fleet.unreachable, line_width()))
        return ExitCode.UNREACHABLE if fleet.unreachable else ExitCode.DONE


@app.command("exec")
def exec_(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="A host, or a pattern such as 'gpu-*'.")],
    argv: Annotated[
        list[str], typer.Argument(metavar="-- COMMAND [ARG]...", help="What to run, word by word; no shell reads it.")
    ],
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
    parallelism: Parallelism = 10,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, max=86_400, metavar="SECONDS", help="For each host.")
    ] = 60.0,
) -> int:
    """Run one command on hosts, as root where the login becomes root. Exit 1: it failed on one; 7: one gave no answer."""
    from sbctl.cli.host_work import chosen_hosts, executed
    from sbctl.cli.workspace import Workspace
    from sbctl.views.console import complain_plain, note, print_json, print_plain
    from sbctl.views.exec_views import (
        NO_SUCH_PROGRAM,
        complaint_lines,
        exec_body,
        exec_exit_code,
        exec_summary,
        output_lines,
    )

    workspace = Workspace(file)
    connections = chosen_hosts(workspace, [pattern])
    width = max(map(len, connections))
    results = []
    for each in executed(workspace, connections, argv, parallelism=parallelism, deadline_s=timeout):
        results.append(each)
        if format is OutputFormat.TEXT:
            print_plain(output_lines(each, width))
            complain_plain(complaint_lines(each, width))
    results.sort(key=lambda each: list(connections).index(each.name))
    if format is OutputFormat.JSON:
        print_json("host.exec", exec_body(argv, results))
    elif len(results) > 1:
        note(exec_summary(results))
    if len(argv) == 1 and " " in argv[0] and any(each.exit_code == NO_SUCH_PROGRAM for each in results):
        note("the quoted words were taken for the name of one program; leave out the quotes, or: -- sh -c '…'")
    return exec_exit_code(results)


@app.command()
def shell(name: Annotated[str, typer.Argument(help="A host.")], file: File = Path("sb.yml")) -> int:
    """A terminal on a host by the system's ssh, with the key, jumps and pinned host keys of sb.yml and nothing of ~/.ssh/config."""
    from sbctl.base.errors import InputError
    from sbctl.cli.host_work import chosen_hosts, open_shell
    from sbctl.cli.workspace import Workspace

    workspace = Workspace(file)
    chosen = chosen_hosts(workspace, [name])
    if len(chosen) > 1:
        raise InputError(
            "host.several", f"{len(chosen)} hosts are named, and a shell is on one: {', '.join(list(chosen)[:5])}"
        )
    host, connection = next(iter(chosen.items()))
    return open_shell(workspace, host, connection)

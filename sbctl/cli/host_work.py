"""`host facts|exec|shell`: one-off looks at hosts, by their names in sb.yml and in the state. Nothing is recorded."""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Final

from sbctl.base.connection import Connection
from sbctl.base.display import display_safe
from sbctl.base.errors import ExitCode, InputError, RefusedError, SbctlError
from sbctl.base.patterns import NamePattern
from sbctl.base.suggest import did_you_mean
from sbctl.cli.fleet_hosts import recorded_connections, unpinned
from sbctl.cli.workspace import Workspace
from sbctl.views.exec_views import Executed

__all__ = ["chosen_hosts", "executed", "open_shell"]

_PASSED_ON: Final = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SSH_AUTH_SOCK", "TERM", "USER")
_SSH_FAILED: Final = 255


def chosen_hosts(workspace: Workspace, patterns: Sequence[str]) -> dict[str, Connection]:
    """Hosts that a pattern names: of sb.yml, and those that only the state still knows.

    Raises InputError `host.unknown` with the nearest name, `pattern.invalid`, and what reading sb.yml raises.
    """
    known = {name: host.connection for name, host in unpinned(workspace).hosts.items()}
    for name, connection in recorded_connections(workspace).items():
        known.setdefault(name, connection)
    chosen: set[str] = set()
    for text in patterns:
        pattern = NamePattern(text)
        matched = {name for name in known if pattern.matches(name)}
        if not matched:
            close = did_you_mean(text, known)
            raise InputError(
                "host.unknown",
                f'there is no host "{display_safe(text, max_chars=120)}"',
                next_step=f'did you mean "{close}"?' if close else "sbctl host list names them",
            )
        chosen |= matched
    return {name: connection for name, connection in known.items() if name in chosen}


def executed(
    workspace: Workspace,
    connections: Mapping[str, Connection],
    argv: Sequence[str],
    *,
    parallelism: int,
    deadline_s: float,
) -> Iterator[Executed]:
    """How it ended on each host, as it ends. Raises InputError `shell.refused` before anything runs."""
    from sbctl.remote.commands import run_on_host
    from sbctl.remote.shell import command_line
    from sbctl.remote.ssh_links import SshLinks

    command_line(argv)
    links = SshLinks(workspace.clock, workspace.login_secrets.prepared(connections.values()))

    ends: list[Callable[[], None]] = []

    def run(name: str) -> Executed:
        try:
            done = run_on_host(
                name,
                connections[name],
                argv,
                clock=workspace.clock,
                links=links,
                environ=workspace.environ,
                deadline_s=deadline_s,
                begun=ends.append,
            )
        except SbctlError as error:
            return Executed(name, error=error)
        return Executed(
            name, done.status, done.stdout.decode("utf-8", "replace"), done.stderr.decode("utf-8", "replace")
        )

    pool = ThreadPoolExecutor(max_workers=max(1, min(parallelism, len(connections))), thread_name_prefix="exec")
    try:
        for ended in as_completed([pool.submit(run, name) for name in connections]):
            yield ended.result()
    except BaseException:
        # Ctrl-C: nothing new begins, and what runs is ended, so that nobody waits for it.
        pool.shutdown(wait=False, cancel_futures=True)
        for end in ends:
            end()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
        links.close()


def open_shell(
    workspace: Workspace, name: str, connection: Connection, *, run: Callable[..., int] | None = None
) -> ExitCode:
    """A terminal on a host by the system's ssh, which gets the pinned keys. Exit 7 when ssh could not get there.

    Raises RefusedError `shell.*` saying why there is none.
    """
    from sbctl.cli.fleet_setup import interactive
    from sbctl.remote.system_ssh import known_hops, write_ssh_files

    if connection.kind == "local":
        raise InputError("host.local", f'"{name}" is this machine: you are there', next_step="run the command here")
    program = shutil.which("ssh", path=workspace.environ.get("PATH"))
    if program is None:
        raise RefusedError(
            "shell.no_ssh",
            "there is no ssh program on this machine, and a shell needs its terminal",
            next_step=f"install openssh-client, or run single commands: sbctl host exec {name} -- COMMAND",
        )
    if run is None and not interactive():
        raise RefusedError(
            "shell.no_terminal",
            "a shell needs a terminal, and there is none",
            next_step=f"sbctl host exec {name} -- COMMAND",
        )
    if any(not hop.host_keys for hop in connection.path(name)):
        unpinned_hop = next(hop for hop in connection.path(name) if not hop.host_keys)
        raise RefusedError(
            "shell.not_pinned",
            f'no host key of "{unpinned_hop.name}" is pinned, so nobody could tell it from another machine',
            next_step=f"sbctl host trust {unpinned_hop.name}",
        )
    with tempfile.TemporaryDirectory(prefix="sbctl-ssh-") as directory:
        hops = known_hops(connection.path(name), Path(directory), workspace.clock, secrets=workspace.login_secrets)
        argv = (program, *write_ssh_files(hops, Path(directory)))
        environment = {key: value for key, value in workspace.environ.items() if key in _PASSED_ON}
        status = (run or _in_foreground)(argv, environment)
    return ExitCode.UNREACHABLE if status == _SSH_FAILED else ExitCode.DONE


def _in_foreground(argv: Sequence[str], environment: Mapping[str, str]) -> int:
    """Ctrl-C belongs to what runs on the host; a handler of ours that does nothing is not passed on to ssh."""
    before = signal.signal(signal.SIGINT, lambda _number, _frame: None)
    try:
        return subprocess.run(list(argv), env=dict(environment), close_fds=True, check=False).returncode
    finally:
        signal.signal(signal.SIGINT, before)

"""Runtimes that one command talks to: that of this machine, or those of hosts of sb.yml; at the same time, each failure told beside the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final, TypeVar

from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, InputError, SbctlError
from sbctl.cli.host_lines import Lines, fleet_lines
from sbctl.cli.models_places import HERE, chosen_hosts, config_of, has_runtime
from sbctl.cli.workspace import Workspace
from sbctl.node.paths import node_paths
from sbctl.remote.session import HostSession
from sbctl.views.models_views import PlaceError

__all__ = ["Nodes", "opened_nodes"]

_AT_ONCE: Final = 16

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Nodes:
    """`names` in the order of sb.yml."""

    names: tuple[str, ...]
    lines: Lines

    def each(self, work: Callable[[str, HostSession], _Answer]) -> tuple[list[tuple[str, _Answer]], list[PlaceError]]:
        """What `work` makes of each, in the order of the names, whoever was done first."""

        def guarded(name: str) -> tuple[str, _Answer] | PlaceError:
            try:
                return name, self.lines.ask(name, lambda session: work(name, session))
            except SbctlError as error:
                return PlaceError(name, error)

        if len(self.names) == 1:
            found = [guarded(self.names[0])]
        else:
            pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="nodes")
            try:
                found = list(pool.map(guarded, self.names))
            finally:
                # An interrupt is not kept waiting: the lines are closed next, which ends what the threads wait for.
                pool.shutdown(wait=False, cancel_futures=True)
        answers = [one for one in found if not isinstance(one, PlaceError)]
        return answers, [one for one in found if isinstance(one, PlaceError)]


@contextlib.contextmanager
def opened_nodes(workspace: Workspace, patterns: Sequence[str]) -> Iterator[Nodes]:
    """Raises ConfigError, InputError `file.*`, `host.unknown`; HostError `host.no_runtime` where this machine has none and no host is named."""
    if patterns:
        config = config_of(workspace, require_pins=True)
        if config is None:
            raise InputError(
                "file.missing",
                "there is no sb.yml that names hosts",
                place=str(workspace.file),
                next_step="-f names another file; without --host this machine is meant",
            )
        connections = {name: host.connection for name, host in chosen_hosts(config, patterns).items()}
    elif has_runtime(workspace.environ):
        connections = {HERE: Connection("local")}
    else:
        raise _no_runtime(workspace)
    lines = fleet_lines(workspace, connections, {})
    try:
        yield Nodes(tuple(connections), lines)
    finally:
        lines.close()


def _no_runtime(workspace: Workspace) -> HostError:
    paths = node_paths(os.getuid(), workspace.environ)
    if os.path.lexists(paths.control_socket):
        return HostError(
            "host.no_runtime",
            "the runtime of this machine was started by hand, and only one that an apply installed answers this command",
            place=str(paths.control_socket),
            next_step="ask its admin API (GET /admin/model-host/status), or --host NAME for a host of sb.yml",
        )
    return HostError(
        "host.no_runtime",
        "this machine has no runtime of this user",
        place=str(paths.opt),
        next_step="--host NAME asks a host of sb.yml (sbctl host list); sbctl apply installs one here",
    )

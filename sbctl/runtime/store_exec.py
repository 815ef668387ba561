"""`sbctl-runtime store`: become the store's server, as a child of its supervisor, which it does not outlive, with a keeper beside it."""

from __future__ import annotations

import os
from typing import Final

from sbctl.base.errors import UsageError
from sbctl.base.fs import read_bounded
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.store_keeper import keep_in_background
from sbctl.runtime.supervise import die_with_supervisor

__all__ = ["PROGRAM_FILE", "run_store"]

PROGRAM_FILE: Final = "program"
"""In `<etc>/store`: the path of the server."""


def run_store(argv: list[str]) -> int:
    """Does not return. Raises InputError `file.*` where no store is installed, OSError."""
    if argv:
        raise UsageError("store.usage", "the store is started as: sbctl-runtime store")
    paths: NodePaths = node_paths(os.getuid(), os.environ)
    home = paths.etc / "store"
    program = read_bounded(home / PROGRAM_FILE, max_bytes=4096).decode()
    die_with_supervisor()
    config = home / "nats.conf"
    keep_in_background(os.pidfd_open(os.getpid()), config)
    os.execv(program, [program, "--config", str(config)])  # noqa: S606 - argv, no shell

"""How an activation ends: the new runtime has proved itself, or the old one is back. And the guard that ends one which nobody ended.

The guard runs from the version that was healthy last. It waits for the lock, which the kernel takes from a node process that dies; when the
journal still stands then, the new runtime gets its time to become healthy, else what ran before is put back.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any, Final

from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.flock import held
from sbctl.node.paths import node_paths
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import record_event
from sbctl.runtime.log import configure_logging, get_log
from sbctl.runtime.nodeops import activation_journal
from sbctl.runtime.nodeops.activation_journal import Activation, read_journal
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.launcher_units import LAUNCHER_SERVICE
from sbctl.runtime.nodeops.running import (
    HEALTHY_DEADLINE_S,
    LocalRuntime,
    Wanted,
    link_version,
    local_runtime,
    stamp_path,
    stored_stamp,
)
from sbctl.runtime.nodeops.snapshot import cache_root, host_facts
from sbctl.runtime.nodeops.units import GUARD_NAME
from sbctl.runtime.supervise import passed_environment

__all__ = ["commit", "post_guard", "roll_back", "run_guard", "settle"]

_POLL_S: Final = 0.2


def commit(runtime: LocalRuntime, wanted: Wanted) -> None:
    """The new runtime is healthy: from here on it is what a later activation falls back to."""
    paths = runtime.paths
    if wanted.stamp != stored_stamp(paths):
        fs.write_atomic(stamp_path(paths), wanted.stamp.encode(), mode=0o600)
    if link_version(paths.proven) != wanted.version:
        fs.replace_symlink(paths.proven, wanted.version)
    activation_journal.end(paths)
    _remember(runtime, EventKind.RUNTIME_ACTIVATED, f"version {wanted.version}")


def _remember(runtime: LocalRuntime, kind: EventKind, message: str) -> None:
    record_event(runtime.paths.database, runtime.clock, kind, message)


def roll_back(runtime: LocalRuntime, activation: Activation, cause: SbctlError) -> SbctlError:
    """Put back what ran before and see it serve; returns what the caller tells. The journal stands until the files are back."""
    was, wanted = activation.previous, activation.wanted
    try:
        activation_journal.put_back(runtime.paths, activation)
        _sweep(runtime)
        runtime.give_files(cache_root(runtime.paths))
        if runtime.systemd is not None:
            runtime.systemd.must("daemon-reload")
            runtime.systemd.ctl("try-restart", LAUNCHER_SERVICE)
        if _is_untouched(runtime, activation):
            activation_journal.end(runtime.paths)
            return cause
        runtime.run(was.version, restart=True, rebind=activation.rebind)
        runtime.await_healthy(was, deadline_s=HEALTHY_DEADLINE_S, check=_nothing)
    except SbctlError as error:
        if error.code == "runtime.not_healthy":
            # Its files are back, and whoever supervises it goes on starting it.
            activation_journal.end(runtime.paths)
        return HostError(
            "runtime.rollback_failed",
            f"{_named(wanted, was)} did not prove itself ({cause.message}), and the former one does not serve again: {error.message}",
            place=error.place or str(runtime.paths.control_socket),
            next_step=error.next_step or "look at its log, then run sbctl apply again",
        )
    activation_journal.end(runtime.paths)
    _remember(runtime, EventKind.RUNTIME_ROLLED_BACK, f"to version {was.version}: {cause.message}")
    return HostError(
        "runtime.rolled_back",
        f"{_named(wanted, was)} did not prove itself, and the former one serves again: {cause.message}",
        place=str(runtime.paths.control_socket),
        next_step="correct what it says, then run sbctl apply again; nothing of the new one is in use",
    )


def _sweep(runtime: LocalRuntime) -> None:
    """What a process that was killed has left half written; programs have an order of their own for that."""
    directories = [runtime.paths.etc, runtime.paths.secrets]
    if runtime.systemd is not None:
        directories.append(runtime.systemd.directory)
    for directory in directories:
        fs.sweep_temporaries(directory, older_than_s=0.0, now_s=runtime.clock.now().timestamp())


def _named(wanted: Wanted, was: Wanted) -> str:
    return f"runtime {wanted.version}" if wanted.version != was.version else "the runtime with its new configuration"


def _is_untouched(runtime: LocalRuntime, activation: Activation) -> bool:
    """Whether the process that ran before still does, and serves."""
    status = runtime.control.status()
    return (
        status is not None
        and status.get("pid") == activation.previous_pid
        and activation.previous.differs(status) is None
    )


def _nothing() -> None:
    return None


def settle(runtime: LocalRuntime) -> str | None:
    """End an activation whose node process is gone; what was done, in a sentence, None when there was nothing to end.

    The caller holds the lock. Raises HostError `runtime.activation_damaged`, `runtime.rollback_failed`, SbctlError `disk.*`.
    """
    activation = read_journal(runtime.paths)
    if activation is None:
        activation_journal.end(runtime.paths)
        _sweep(runtime)
        return None
    interrupted = HostError("runtime.not_healthy", "its activation was interrupted", next_step="run the command again")
    if activation.switched:
        try:
            runtime.await_healthy(activation.wanted, deadline_s=HEALTHY_DEADLINE_S, check=_nothing)
        except HostError as error:
            interrupted = error
        else:
            commit(runtime, activation.wanted)
            return f"the activation of runtime {activation.wanted.version} was interrupted; it is healthy and stays"
    told = roll_back(runtime, activation, interrupted)
    if told.code == "runtime.rollback_failed":
        raise told
    return f"the activation of runtime {activation.wanted.version} was interrupted; what ran before is back"


def post_guard(runtime: LocalRuntime) -> subprocess.Popen[bytes] | None:
    """Have the guard wait beside this process; the process itself where systemd does not run. Raises HostError `host.systemctl_failed`."""
    if runtime.systemd is not None:
        runtime.systemd.must("start", "--no-block", GUARD_NAME)
        return None
    argv = [str(runtime.paths.proven / "bin" / "python"), "-I", "-m", "sbctl.runtime.main", "guard"]
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=passed_environment(runtime.environ),
        cwd="/",
        start_new_session=True,
    )


def run_guard(argv: list[str]) -> int:
    """Wait until the activation that runs is ended, or end it. Raises what `settle` raises: its supervisor starts it again."""
    del argv
    os.umask(0o022)
    configure_logging()
    environ: Mapping[str, str] = dict(os.environ)
    paths = node_paths(os.getuid(), environ)
    context = NodeContext(paths, environ, os.getuid())
    while paths.activation.is_dir():
        with held(paths.activation_lock) as is_alone:
            if is_alone:
                return _settle_alone(context)
        SYSTEM_CLOCK.sleep_s(_POLL_S)
    return 0


def _settle_alone(context: NodeContext) -> int:
    facts: dict[str, Any] = host_facts(context)
    said = settle(local_runtime(context, facts["host"]["init"]))
    if said is not None:
        get_log("guard").info(said)
    return 0

"""`runtime.keys`: exchanged keys of external providers, installed as files and handed to the runtime that uses them. No restart.

Keys go from standard input to 0600 files and over the control socket: never to an argument, a log or a status. A runtime that starts later
reads the files.
"""

from __future__ import annotations

from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.flock import exclusive
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import RuntimeKeys
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.snapshot import activated_as, host_facts, stored_config

__all__ = ["install_provider_keys"]

_LOCK_DEADLINE_S: Final = 240.0
_TAKE_S: Final = 15.0


def install_provider_keys(context: NodeContext, params: RuntimeKeys) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, `runtime.unknown_key`, InputError `node.invalid_params`, LockedError `host.locked`, what a
    running runtime says, SbctlError `disk.*`."""
    facts = host_facts(context)
    refuse_other_lineage(facts, params.lineage)
    paths = context.paths
    sent = _sent(context, params.names)
    with exclusive(paths.activation_lock, deadline_s=_LOCK_DEADLINE_S, check=context.cancellation.check):
        config, _digest = stored_config(paths)
        unknown = set(sent).difference(() if config is None else config.provider_keys)
        if unknown:
            raise RefusedError(
                "runtime.unknown_key",
                f"the runtime's configuration names no such key: {', '.join(sorted(unknown))}",
                place=str(paths.runtime_config),
                next_step="plan again: the runtime is not as the plan saw it",
            )
        for name, key in sent.items():
            fs.write_atomic(paths.secrets / name, key.reveal(), mode=0o600)
        used = _hand_over(ControlClient(paths.control_socket), sent)
    return {"used": used, **activated_as(context, facts)}


def _sent(context: NodeContext, names: tuple[str, ...]) -> dict[str, Secret]:
    missing = [name for name in names if name not in context.secrets]
    if missing:
        raise InputError("node.invalid_params", f"these keys did not come with the call: {', '.join(missing)}")
    return {name: context.secrets[name] for name in names}


def _hand_over(control: ControlClient, keys: dict[str, Secret]) -> bool:
    """False where none runs: it reads the files at its start."""
    if control.status() is None:
        return False
    control.take_provider_keys(keys, timeout_s=_TAKE_S)
    return True

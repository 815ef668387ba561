"""Keys of external providers that are exchanged and nothing else: they are sent to a running runtime, which takes them up as it is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from providers.comparison import Call
from sbctl.base.truths import Desired, Recorded
from sbctl.node.identity_messages import RuntimeKeys
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["keys_call", "send_keys"]

_DEADLINE_S: Final = 60.0


def keys_call(desired: Desired, recorded: Recorded) -> Call | None:
    """None where no key differs, or where the runtime's configuration must name another one, which it reads at its start."""
    held, wanted = recorded.spec.get("provider_keys", {}), desired.spec.get("provider_keys", {})
    changed = {name: key for name, key in wanted.items() if held.get(name) != key}
    if not changed or held.keys() != wanted.keys():
        return None
    params = {"lineage": desired.spec["config"]["lineage"], "keys": changed}
    return Call(Method.RUNTIME_KEYS, params, "exchange the provider's key", deadline_s=_DEADLINE_S)


def send_keys(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Raises InputError `secret.*`, what the host says."""
    keys = step.params["keys"]
    request = RuntimeKeys(lineage=step.params["lineage"], names=tuple(sorted(keys)))
    return context.node.call(
        step.method,
        request.model_dump(mode="json"),
        secrets={name: context.services.secret(key["reference"]) for name, key in keys.items()},
        deadline_s=step.deadline_s,
        progress=context.progress,
    )

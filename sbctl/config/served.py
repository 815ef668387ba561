"""What of `origins` sbctl serves: origins of type `ai_proxy` with managed providers, and external ones of a fallback chain. All else stays in
the file and is named, not read.

Other planes' blocks are taken out here, before variables are put in: a secret of a provider need not be set to plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, get_args

from sbctl.base.suggest import did_you_mean
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.external import chained_provider, is_chain
from sbctl.config.layers import View
from sbctl.config.origins import OtherActionModel, provider_form
from sbctl.config.planes import Foreign, accepts, without_foreign

__all__ = ["Served", "report_foreign", "served_origins"]

_OTHER_ACTIONS = frozenset(get_args(OtherActionModel.model_fields["type"].annotation))


@dataclass
class Served:
    """`value` is `origins` without what is not read; `exposed` are the hostnames that sbctl answers."""

    value: Any
    exposed: set[str] = field(default_factory=set)


def served_origins(report: Report, view: View, accepted: tuple[str, ...]) -> Served:
    """`view` shows `origins`. Findings name each kind of thing that is not managed once, and each restriction that is not enforced."""
    raw = view.value
    if not isinstance(raw, dict):
        return Served(raw)
    served = Served({})
    for hostname, origin in raw.items():
        served.value[hostname] = _reduced(report, view, hostname, origin, served.exposed)
    served.value, found = without_foreign(served.value, ("origins",))
    shown = [Foreign(each.path[1:], each.pattern, each.restricts and each.path[1] in served.exposed) for each in found]
    report_foreign(report, view, "origins", shown, accepted)
    return served


def _reduced(report: Report, view: View, hostname: str, origin: Any, exposed: set[str]) -> Any:
    action = origin.get("action") if isinstance(origin, dict) else None
    if not isinstance(action, dict):
        return origin
    kind = action.get("type")
    if isinstance(kind, str) and kind in _OTHER_ACTIONS:
        message = f"an action of type {kind} is kept, and not served by sbctl"
        report.note("config.not_managed", message, view.value_span((hostname, "action", "type")))
        return {**origin, "action": {"type": kind}}
    providers = action.get("providers")
    if not isinstance(providers, list):
        return origin
    in_chain = is_chain(action)
    reduced = []
    for index, provider in enumerate(providers):
        form = provider_form(provider)
        path: Path = (hostname, "action", "providers", index)
        if form == "managed":
            exposed.add(hostname)
            reduced.append(provider)
        elif form == "serving":
            # A block that is a map was lowered before.
            report.add("config.wrong_type", '"serve" must be a map of fields', view.key_span((*path, "serve")))
            exposed.add(hostname)
            reduced.append({"name": provider.get("name"), "serve": {}})
        elif isinstance(provider, dict) and in_chain and provider.get("base_url") is not None:
            reduced.append(chained_provider(report, view, path, provider))
        elif isinstance(provider, dict):
            if "name" in provider:
                message = "a provider that is not a managed_model is kept, and not served by sbctl"
                if provider.get("base_url") is not None:
                    message += "; with routing: fallback_chain it stands in for a deployment"
                report.note("config.not_managed", message, view.value_span((*path, "name")))
            reduced.append({name: value for name, value in provider.items() if name == "name"})
        else:
            reduced.append(provider)
    told = (
        in_chain and sum("deployment" in each or "base_url" in each for each in reduced if isinstance(each, dict)) > 1
    )
    if told or _is_chain_misspelt(report, view, hostname, action):
        action = {name: value for name, value in action.items() if name != "routing"}
    return {**origin, "action": {**action, "providers": reduced}}


def _is_chain_misspelt(report: Report, view: View, hostname: str, action: dict[str, Any]) -> bool:
    """Names a routing that is nearly the one that sbctl serves."""
    routing = action.get("routing")
    if not isinstance(routing, str) or is_chain(action) or did_you_mean(routing, ("fallback_chain",)) is None:
        return False
    message = f'routing: {routing} is kept, and not managed by sbctl; did you mean "fallback_chain"?'
    report.note("config.not_managed", message, view.value_span((hostname, "action", "routing")))
    return True


def report_foreign(report: Report, view: View, root: str, found: Iterable[Foreign], accepted: tuple[str, ...]) -> None:
    """Name blocks of other planes. Paths of `found` are relative to `root`, which `view` shows."""
    named = {finding.message for finding in report.diagnostics if finding.code == "config.not_managed"}
    for each in found:
        span = view.key_span(each.path)
        if each.restricts and not accepts(accepted, each.pattern):
            dotted = ".".join(map(str, (root, *each.path))) if root else ".".join(map(str, each.path))
            notes = (f'remove it, or accept that with fleet.accept_unenforced: ["{each.pattern}"]',)
            message = f"{dotted} restricts access, and sbctl does not enforce it yet"
            report.add("config.unenforced", message, span, notes=notes)
            continue
        message = f"{each.pattern} is kept, and not managed by sbctl"
        if message not in named:
            named.add(message)
            report.note("config.not_managed", message, span)

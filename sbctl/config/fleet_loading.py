"""`fleet`, read: variables put in where they are known, then checked as one block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbctl.base.errors import InputError
from sbctl.config.availability import check_fleet
from sbctl.config.diagnose import Checked, Report, report_expansion, validated
from sbctl.config.document import Document, Path
from sbctl.config.fleet import FleetModel
from sbctl.config.host_view import layers_at
from sbctl.config.interpolate import Expansion, Variables, expanded
from sbctl.config.layers import View
from sbctl.config.scalars import Scalar
from sbctl.config.state_block import check_state

__all__ = ["load_fleet", "written_vars"]

_VARS = "vars"


def load_fleet(report: Report, document: Document, environ: Mapping[str, str]) -> Checked[FleetModel]:
    """The checked block; findings go to the report. `proxy` overlays stay as written: their variables are put in per host, after merging."""
    view = View(document, layers_at(document, ("fleet",)))
    if not isinstance(view.value, dict):
        return validated(report, FleetModel, view.value, view, texts={}, prefix=("fleet",))
    expansion = _expand_fleet(view.value, environ)
    report_expansion(report, view, expansion.problems)
    broken = [path for path, _, _ in expansion.problems]
    checked = validated(
        report, FleetModel, expansion.value, view, texts=expansion.texts, broken=broken, prefix=("fleet",)
    )
    fleet = checked.model
    if fleet is None:
        return checked
    check_fleet(report, fleet, document)
    if not any(path[:1] == ("state",) for path in broken):
        check_state(report, fleet.state, lambda path: view.key_span(("state", *path)))
    _check_signers(report, fleet, view)
    for name, host in (fleet.hosts or {}).items():
        if host.group is not None and host.group not in fleet.groups:
            report.add(
                "config.unknown_group",
                f'there is no group "{host.group}"',
                view.value_span(("hosts", name, "group")),
                notes=(f"groups: {', '.join(sorted(fleet.groups)) or 'none'}",),
            )
    return checked


def _check_signers(report: Report, fleet: FleetModel, view: View) -> None:
    if fleet.trust is None:
        return
    from sbctl.trust.keys import parse_public_key

    for name, key in fleet.trust.signers.items():
        try:
            parse_public_key(key)
        except InputError as error:
            report.add(
                f"config.{error.code}",
                f'the key of signer "{name}": {error.message}',
                view.value_span(("trust", "signers", name)),
            )


def written_vars(block: Any, environ: Mapping[str, str]) -> dict[str, Scalar]:
    """`vars` of one host, group or defaults block, as far as they can be read."""
    raw = block.get(_VARS) if isinstance(block, dict) else None
    if not isinstance(raw, dict):
        return {}
    value = expanded(raw, Variables((environ,))).value
    return {name: each for name, each in value.items() if isinstance(each, (str, int, float, bool))}


def _expand_fleet(raw: dict[str, Any], environ: Mapping[str, str]) -> Expansion:
    result = Expansion(value={})
    defaults = written_vars(raw.get("defaults"), environ)
    groups: dict[str, Any] = raw["groups"] if isinstance(raw.get("groups"), dict) else {}

    def expand(block: Any, path: Path, *layers: Mapping[str, Scalar]) -> Any:
        if not isinstance(block, dict):
            return _take(result, expanded(block, Variables((*layers, environ))), path)
        kept = {key: block[key] for key in ("proxy",) if key in block}
        own = {_VARS: block[_VARS]} if _VARS in block else {}
        rest = {key: child for key, child in block.items() if key not in ("proxy", _VARS)}
        _take(result, expanded(own, Variables((environ,))), path)
        value = _take(result, expanded(rest, Variables((*layers, environ))), path)
        value.update(kept)
        value.update(expanded(own, Variables((environ,))).value)
        return value

    for key, block in raw.items():
        if key == "defaults":
            result.value[key] = expand(block, (key,), defaults)
        elif key == "groups" and isinstance(block, dict):
            result.value[key] = {
                name: expand(group, (key, name), written_vars(group, environ), defaults)
                for name, group in block.items()
            }
        elif key == "hosts" and isinstance(block, dict):
            result.value[key] = {}
            for name, host in block.items():
                named = host.get("group") if isinstance(host, dict) else None
                group = groups.get(named) if isinstance(named, str) else None
                layers = (written_vars(host, environ), written_vars(group, environ), defaults)
                result.value[key][name] = expand(host, (key, name), *layers)
        else:
            result.value[key] = _take(result, expanded(block, Variables((defaults, environ))), (key,))
    return result


def _take(result: Expansion, part: Expansion, path: Path) -> Any:
    result.texts.update({path + inner: text for inner, text in part.texts.items()})
    result.problems.extend((path + inner, code, sentence) for inner, code, sentence in part.problems)
    return part.value

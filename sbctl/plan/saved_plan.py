"""A plan kept for later: sealed, so that exactly what was shown is what will be done.

The payload holds what the plan was made from (lineage, serial, digests, decisive facts), how to plan again (mode, targets, options), the
document that was shown, and a digest of every change with its steps. Applying a saved plan means: open the signature
(`trust.envelope`, PLAN_PAYLOAD_TYPE), plan again from today's truths, and refuse with `plan.stale` unless nothing moved. Nothing of the
payload is ever executed itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, ValidationError

from sbctl import __version__
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import InputError, RefusedError, StalePlanError
from sbctl.base.ids import is_digest
from sbctl.base.limits import PLAN_MAX_BYTES
from sbctl.base.strict_json import loads
from sbctl.plan.document import PLAN_FORMAT_VERSION, PlanDocument, plan_document, read_plan_document
from sbctl.plan.model import Change, Plan, PlanMode, Unknown

__all__ = [
    "PLAN_PAYLOAD_TYPE",
    "SavedPlan",
    "changes_digest",
    "check_saved",
    "decisive_facts",
    "read_saved",
    "saved_payload",
]

PLAN_PAYLOAD_TYPE: Final = "application/vnd.sbctl.plan.v1+json"

_MOVED_MAX: Final = 8
_WRITTEN_BY: Final = "name a file that sbctl plan --out wrote"


class SavedPlan(BaseModel):
    """What a saved plan says. `decisive`: address → facts, for every resource on a host that the plan changes."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    format_version: str
    sbctl_version: str
    created_at: str
    mode: PlanMode
    lineage: str | None
    serial: int
    config_digest: str
    catalog_digest: str
    targets: tuple[str, ...]
    excludes: tuple[str, ...]
    replaces: tuple[str, ...]
    allow_unreachable: bool
    options: dict[str, Any]
    decisive: dict[str, dict[str, Any]]
    changes_digest: str
    plan: dict[str, Any]
    seal: str

    @property
    def document(self) -> PlanDocument:
        """For `sbctl show`, also of a stale plan. Raises InputError when it is not a plan document."""
        return read_plan_document(self.plan)


def saved_payload(plan: Plan) -> bytes:
    """Canonical bytes for `sign_envelope(PLAN_PAYLOAD_TYPE, …)`. Raises InputError `plan.not_saveable` for a plan that nothing can apply."""
    if plan.offline or plan.mode in ("drift", "against"):
        raise InputError(
            "plan.not_saveable",
            f"a plan made by {'--no-refresh' if plan.offline else plan.mode} cannot be applied later",
            next_step="save one that looked at the hosts: sbctl plan --out FILE",
        )
    body = {
        "format_version": PLAN_FORMAT_VERSION,
        "sbctl_version": __version__,
        "created_at": rfc3339(plan.created_at),
        "mode": plan.mode,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "config_digest": plan.config_digest,
        "catalog_digest": plan.catalog_digest,
        "targets": list(plan.targets),
        "excludes": list(plan.excludes),
        "replaces": list(plan.replaces),
        "allow_unreachable": plan.allow_unreachable,
        "options": dict(plan.options),
        "decisive": decisive_facts(plan),
        "changes_digest": changes_digest(plan),
        "plan": plan_document(plan),
    }
    return canonical_json({**body, "seal": fingerprint(body)})


def read_saved(payload: bytes) -> SavedPlan:
    """The payload of a verified envelope.

    Raises InputError `plan.foreign_format`, `plan.invalid`, `json.*`; RefusedError `plan.edited` when the content does not match its seal.
    """
    raw = loads(payload, max_bytes=PLAN_MAX_BYTES)
    if not isinstance(raw, dict):
        raise InputError("plan.invalid", "the file is not a saved plan", next_step=_WRITTEN_BY)
    version = str(raw.get("format_version"))
    if version.split(".", maxsplit=1)[0] != PLAN_FORMAT_VERSION.split(".")[0]:
        raise InputError(
            "plan.foreign_format",
            f"the saved plan has format {version[:20]}; this sbctl reads {PLAN_FORMAT_VERSION}",
            next_step="plan again with this sbctl",
        )
    try:
        saved = SavedPlan.model_validate(raw)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise InputError(
            "plan.invalid", f"the file is not a saved plan: {place}: {first['msg']}", next_step=_WRITTEN_BY
        ) from None
    if saved.seal != fingerprint({key: value for key, value in raw.items() if key != "seal"}):
        raise RefusedError(
            "plan.edited", "the saved plan was changed after it was made", next_step="plan again: sbctl plan --out FILE"
        )
    return saved


def check_saved(
    saved: SavedPlan, *, lineage: str | None, serial: int, config_digest: str, catalog_digest: str, fresh_plan: Plan
) -> None:
    """Nothing moved since `saved` was made; `fresh_plan` was made now with its mode, targets and options.

    Raises StalePlanError `plan.stale` that names everything that moved, the cause before its effects.
    """
    moved = list(
        _moved(
            saved,
            fresh_plan,
            lineage=lineage,
            serial=serial,
            config_digest=config_digest,
            catalog_digest=catalog_digest,
        )
    )
    if not moved:
        return
    shown = moved[:_MOVED_MAX]
    if len(moved) > len(shown):
        shown.append(f"{len(moved) - len(shown)} more")
    raise StalePlanError(
        "plan.stale",
        f"the saved plan of {saved.created_at} is stale: {'; '.join(text for text in shown)}",
        next_step="look at what would change now: sbctl plan --out FILE",
        detail={"moved": moved},
    )


def changes_digest(plan: Plan) -> str:
    """64 hex characters over everything that would be done: equal exactly when an apply would do the same.

    Costs, notes and reasons are for the reader and not part of it.
    """
    return fingerprint([_decided(change) for change in plan.changes if change.action != "no-op"])


def decisive_facts(plan: Plan) -> dict[str, dict[str, Any]]:
    """Address → decisive facts, of everything on the hosts that the plan changes."""
    touched = {change.host for change in plan.actionable}
    return {
        str(change.address): _plain(change.decisive)
        for change in plan.changes
        if change.host in touched and change.action != "unreachable"
    }


def _decided(change: Change) -> dict[str, Any]:
    return {
        "address": str(change.address),
        "action": change.action,
        "blast_radius": str(change.blast_radius),
        "blocked": change.blocked_code,
        "downtime": change.downtime,
        "leaves": [[leaf.path, _plain(leaf.before), _plain(leaf.after)] for leaf in change.leaves],
        "steps": [[step.key, step.method, _plain(step.params)] for step in change.steps],
        "desired": None if change.desired is None else change.desired.fingerprint,
    }


def _plain(value: Any) -> Any:
    if isinstance(value, Unknown):
        return {"unknown": value.why}
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _moved(
    saved: SavedPlan, fresh: Plan, *, lineage: str | None, serial: int, config_digest: str, catalog_digest: str
) -> Iterator[str]:
    if saved.lineage != lineage:
        yield (
            "it was made before there was a state, and now there is one"
            if saved.lineage is None
            else f"it was made for another fleet (lineage {saved.lineage}, here {lineage or 'none yet'})"
        )
        return
    if saved.serial != serial:
        said = fresh.header.get("state")
        yield f"the state moved from serial {saved.serial} to {serial}{f' ({said})' if said else ''}"
    if saved.config_digest != config_digest:
        yield "the configuration changed"
    if saved.catalog_digest != catalog_digest:
        yield "the catalog changed"
    yield from _moved_facts(saved.decisive, decisive_facts(fresh))
    if saved.changes_digest != changes_digest(fresh):
        before, now = saved.document.summary, len(fresh.counted)
        planned = before.create + before.update + before.replace + before.delete + before.forget
        yield (
            f"planning now gives other changes ({now}, it had {planned})"
            if now != planned
            else "planning now gives other changes"
        )


def _moved_facts(was: Mapping[str, Mapping[str, Any]], now: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for address in sorted(was.keys() & now.keys()):
        left, right = _plain(was[address]), _plain(now[address])
        for key in sorted(left.keys() | right.keys()):
            if left.get(key) != right.get(key):
                yield f"{address} changed on its host: {key} {_brief(left.get(key))} → {_brief(right.get(key))}"


def _brief(value: Any) -> str:
    text = "none" if value is None else str(value)
    if is_digest(text):
        return f"{text[:12]}…"
    return text if len(text) <= 40 else f"{text[:37]}…"

"""What the state remembers: its resources, one of them, its history, and the keys that its fleet trusts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.base.connection import Connection
from sbctl.base.display import plural
from sbctl.base.strict_json import dump_pretty
from sbctl.plan.model import Recorded
from sbctl.plan.order import address_key
from sbctl.state.model import OpenIntent, RunSummary, StateView
from sbctl.views.layout import safe
from sbctl.views.tables import Column, render_fields, render_rows

__all__ = [
    "history_body",
    "history_text",
    "key_list_body",
    "key_list_text",
    "recorded_body",
    "recorded_text",
    "state_list_body",
    "state_list_text",
]

_STATUS_STYLES: Final = {
    "applied": "green",
    "partial": "yellow",
    "failed": "red",
    "interrupted": "yellow",
    "running": "cyan",
}


def state_list_text(state: StateView) -> RenderableType:
    """Every recorded resource, and what nobody knows the outcome of."""
    rows = [
        (str(one.address), one.host, one.fingerprint[:12], _standing(one)) for one in _sorted(state.resources.values())
    ]
    columns = ("address", "host", "fingerprint", Column("is", style_by={"delete pending": "yellow"}))
    head = Text(f"{safe(state.fleet_name)} · serial {state.serial} · lineage {safe(state.lineage)}", style="bold")
    table = render_rows(columns, rows, empty="nothing is recorded")
    return Group(head, table, *_intents(state.open_intents))


def _standing(one: Recorded) -> str:
    if one.attempted:
        return "begun"
    return "delete pending" if one.pending_delete else "recorded"


def state_list_body(state: StateView) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "lineage": state.lineage,
        "serial": state.serial,
        "fleet": state.fleet_name,
        "resources": [
            {
                "address": str(one.address),
                "host": one.host,
                "fingerprint": one.fingerprint,
                "pending_delete": one.pending_delete,
                "attempted": one.attempted,
            }
            for one in _sorted(state.resources.values())
        ],
        "open_intents": [
            {"step": intent.step_key, "address": str(intent.address), "host": intent.host, "title": intent.title}
            for intent in state.open_intents
        ],
    }


def recorded_text(recorded: Recorded, *, width: int = 80) -> RenderableType:
    """One resource with its spec and its record."""
    fields = (
        ("host", recorded.host),
        ("reached by", _connection(recorded.connection)),
        ("fingerprint", recorded.fingerprint),
        ("stands on", ", ".join(sorted(map(str, recorded.after)))),
        ("member of", None if recorded.member_of is None else str(recorded.member_of)),
        ("prevent_destroy", recorded.prevent_destroy),
        ("kept", recorded.keep),
        ("delete pending", recorded.pending_delete),
    )
    parts: list[RenderableType] = [render_fields(fields, width=width, title=str(recorded.address))]
    for title, content in (("spec", recorded.spec), ("record", recorded.record)):
        if content:
            parts += [Text(f"  {title}", style="dim"), *_indented(content)]
    return Group(*parts)


def recorded_body(recorded: Recorded) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "address": str(recorded.address),
        "host": recorded.host,
        "connection": {"kind": recorded.connection.kind, "address": recorded.connection.address},
        "fingerprint": recorded.fingerprint,
        "after": sorted(map(str, recorded.after)),
        "member_of": None if recorded.member_of is None else str(recorded.member_of),
        "prevent_destroy": recorded.prevent_destroy,
        "keep": recorded.keep,
        "pending_delete": recorded.pending_delete,
        "spec": dict(recorded.spec),
        "record": dict(recorded.record),
        "record_version": recorded.record_version,
    }


def history_text(runs: Iterable[RunSummary]) -> RenderableType:
    """One line a serial, the newest first."""
    columns = (
        Column("serial", "right"), "command", Column("status", style_by=_STATUS_STYLES), "started", "by", "commit",
        Column("resources", "right"),
    )  # fmt: skip
    rows = [
        (
            run.serial,
            run.info.command,
            run.status,
            run.started_at,
            run.info.operator,
            run.info.commit[:7],
            run.resources,
        )
        for run in _newest_first(runs)
    ]
    return render_rows(columns, rows, empty="nothing was applied yet")


def history_body(runs: Iterable[RunSummary]) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "runs": [
            {
                "serial": run.serial,
                "command": run.info.command,
                "status": run.status,
                "started_at": rfc3339(run.started_at),
                "finished_at": None if run.finished_at is None else rfc3339(run.finished_at),
                "operator": run.info.operator,
                "commit": run.info.commit,
                "ci_url": run.info.ci_url,
                "tool_version": run.info.tool_version,
                "resources": run.resources,
                "counts": dict(run.counts),
            }
            for run in _newest_first(runs)
        ]
    }


def key_list_text(signers: Mapping[str, str], *, key_epoch: int, mine: str | None = None) -> RenderableType:
    """Whose bundles the fleet accepts. `mine`: the operator's own public key, None without one."""
    rows = [(name, public, "this machine's" if public == mine else "") for name, public in sorted(signers.items())]
    table = render_rows(("name", "public key", "whose"), rows, empty="no signer is recorded yet")
    warning = (
        []
        if mine is None or mine in signers.values()
        else [Text("this machine's key is not in the set", style="yellow")]
    )
    return Group(Text(f"key epoch {key_epoch} · {plural(len(signers), 'signer')}", style="bold"), table, *warning)


def key_list_body(signers: Mapping[str, str], *, key_epoch: int, mine: str | None = None) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "key_epoch": key_epoch,
        "signers": [{"name": name, "public_key": key, "mine": key == mine} for name, key in sorted(signers.items())],
    }


def _sorted(resources: Iterable[Recorded]) -> list[Recorded]:
    return sorted(resources, key=lambda one: (one.host, address_key(one.address)))


def _newest_first(runs: Iterable[RunSummary]) -> list[RunSummary]:
    return sorted(runs, key=lambda run: run.serial, reverse=True)


def _intents(intents: Iterable[OpenIntent]) -> list[Text]:
    return [
        Text(
            f"unknown: {safe(intent.title)} on {safe(intent.host)} (serial {intent.serial}); the next plan reads the host",
            style="yellow",
        )
        for intent in intents
    ]


def _connection(connection: Connection) -> str:
    if connection.kind == "local":
        return "this machine"
    user = f"{connection.user}@" if connection.user else ""
    way = f" through {', '.join(jump.name for jump in connection.jumps)}" if connection.jumps else ""
    return f"ssh {user}{connection.address}:{connection.port}{way}{', root by sudo' if connection.become else ''}"


def _indented(content: Mapping[str, Any]) -> list[Text]:
    return [Text(f"    {safe(line)}") for line in dump_pretty(dict(content)).splitlines()]

"""`state mv`: another name for a recorded deployment, within its host.

Only the record changes. What it is called on its host stays until the next apply, which the plan shows. A host is not renamed so: its
machine, its identity and the bundles it accepted carry its name.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sbctl.base.errors import InputError, RefusedError, StateError
from sbctl.base.ids import Address
from sbctl.state.codec import decode, recorded_from_json
from sbctl.state.journal import drop_resource, put_resource
from sbctl.state.rows import Rows

__all__ = ["rename", "renamed_desired", "renaming"]

Json = dict[str, Any]


def renaming(old: Address, new: Address) -> Callable[[Address], Address]:
    """What every address becomes. Raises RefusedError `state.cannot_move` for kinds and places that are not names of the user's."""

    def refuse(why: str, next_step: str) -> RefusedError:
        return RefusedError("state.cannot_move", why, place=str(old), next_step=next_step)

    if old == new:
        raise refuse("the two addresses are the same", "give the new one second")
    if old.kind != new.kind:
        raise refuse(f"a {old.kind} does not become a {new.kind}", "give two addresses of one kind")
    if old.kind == "host":
        raise refuse(
            f"the machine, its identity and the bundles it accepted carry the name {old.scope}; a record alone does not rename it",
            f"sbctl destroy --target '*.{old.scope}' (keep: [weights] leaves the weights there), then rename it in sb.yml and apply",
        )
    if old.kind != "deployment":
        raise refuse(
            f"{old.kind} is not named by you but by what it is",
            "deployments can be renamed: sbctl state mv deployment.HOST/OLD deployment.HOST/NEW",
        )
    if old.scope != new.scope:
        raise refuse(
            f"{old} runs on {old.scope}; a record does not carry it to {new.scope}",
            "change sb.yml and apply: it starts there and stops here",
        )
    return lambda address: new if address == old else address


def _renamed(raw: Json, move: Callable[[Address], Address]) -> Json:
    def text(address: str | None) -> str | None:
        return None if address is None else str(move(Address.parse(address)))

    return {
        **raw,
        "address": text(raw["address"]),
        "after": sorted(str(text(each)) for each in raw["after"]),
        "member_of": text(raw["member_of"]),
    }


def renamed_desired(desired: list[Json], move: Callable[[Address], Address]) -> list[Json]:
    return [_renamed(entry, move) for entry in desired]


def rename(rows: Rows, old: Address, new: Address, at: datetime) -> None:
    """Carry it out. Raises StateError `state.no_resource`; RefusedError `state.cannot_move`; InputError `state.exists_already`."""
    move = renaming(old, new)
    entries = [decode(body) for _, body in rows.scan("resources")]
    known = {Address.parse(entry["address"]) for entry in entries}
    if old not in known:
        raise StateError(
            "state.no_resource",
            "the state has no such resource",
            place=str(old),
            next_step="`sbctl state list` names them",
        )
    if new in known:
        raise InputError(
            "state.exists_already",
            f"{new} stands in the state already",
            place=str(new),
            next_step=f"choose another name, or first: sbctl state rm {new}",
        )
    for entry in entries:
        changed = _renamed(entry, move)
        if changed != entry:
            if changed["address"] != entry["address"]:
                drop_resource(rows, Address.parse(entry["address"]), at)
            put_resource(rows, recorded_from_json(changed), at)

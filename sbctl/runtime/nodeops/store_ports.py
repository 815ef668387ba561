"""Ports that the store is to have and somebody else has: refused before anything of it is installed or bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sbctl.base.errors import HostError
from sbctl.node.machine import port_holders
from sbctl.node.store_messages import StoreInstall
from sbctl.node.store_server import PROGRAM_NAME, STORE_UNIT
from sbctl.runtime.binding import holder_text, overlap

__all__ = ["refuse_taken_ports"]

_LOOPBACK: Final = "127.0.0.1"


def refuse_taken_ports(params: StoreInstall, *, is_installed: bool, in_unit: bool) -> None:
    """`is_installed`: a store of ours may have them already; `in_unit`: which runs in its unit, else beside a parent of ours.

    Raises HostError `store.port_in_use`; nothing where a holder may not be seen.
    """
    wanted = dict(_wanted(params))
    for holder in port_holders(wanted):
        field, address = wanted[holder["port"]]
        named = holder_text(holder)
        is_ours = holder.get("unit") == STORE_UNIT if in_unit else holder.get("program") == PROGRAM_NAME
        if named is None or not overlap(holder["address"], address) or (is_installed and is_ours):
            continue
        place = f"{address}:{holder['port']}"
        raise HostError(
            "store.port_in_use",
            f"the store cannot listen on {place}: {named} listens there",
            place=params.node_id,
            next_step=f"stop it, or choose another port (proxy.cluster.store.{field})",
        )


def _wanted(params: StoreInstall) -> Iterator[tuple[int, tuple[str, str]]]:
    yield params.port, ("port", params.bind_address)
    yield params.monitor_port, ("monitor_port", _LOOPBACK)
    if len(params.members) > 1:
        own = next(member for member in params.members if member.node_id == params.node_id)
        yield own.port, ("cluster_port", params.bind_address)

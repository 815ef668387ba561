"""What the store's server says of itself on loopback: whether it runs, with which configuration, and whether the group is whole."""

from __future__ import annotations

import http.client
import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

__all__ = ["Health", "look"]

_DEADLINE_S: Final = 2.0
_MAX_BYTES: Final = 4 * 1024 * 1024
_WRITE_ERROR: Final = "write error"
_OPENS_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """`config` is the server's own digest of what it read. `leader`: who leads the group, None while nobody does; a store of one leads itself.
    `connected`: the other members that it sees; `behind`: those of them that the leader, when it is this one, knows to lag. `is_stuck`: a
    write failed, most likely on a full disk; after that the server takes none until it is started anew, whatever room there is. One that is alone
    names the write; a member of a group gives up its data and its vote."""

    version: str
    config: str
    loaded_at: str
    is_whole: bool
    leader: str | None
    connected: frozenset[str]
    behind: frozenset[str]
    problem: str | None
    is_stuck: bool = False


def look(port: int, *, others: Collection[str]) -> Health | None:
    """None when nothing answers there. Never raises."""
    told = _ask(port, "/varz")
    if told is None:
        return None
    healthy = _ask(port, "/healthz") or {}
    data = _ask(port, "/jsz") or {}
    group = data.get("meta_cluster") or {}
    routes = (_ask(port, "/routez") or {}).get("routes") or ()
    name = str(told.get("server_name", ""))
    is_whole = healthy.get("status") == "ok"
    problem = None if is_whole else str(healthy.get("error") or "it is not ready")[:300]
    leader = str(group.get("leader") or "") or None
    # Who does not lead knows of the leader only.
    replicas = group.get("replicas") or () if leader == name else ()
    return Health(
        version=str(told.get("version", ""))[:64],
        config=str(told.get("config_digest", ""))[:128],
        loaded_at=str(told.get("config_load_time", ""))[:64],
        is_whole=is_whole,
        leader=leader if others else name,
        connected=frozenset(str(route.get("remote_name", "")) for route in routes) & frozenset(others),
        behind=frozenset(str(one.get("name", "")) for one in replicas if one.get("offline") or not one.get("current")),
        problem=problem,
        is_stuck=problem is not None and (_WRITE_ERROR in problem or (data.get("disabled") is True and _is_up(told))),
    )


def _is_up(told: Mapping[str, Any]) -> bool:
    """Whether it has had the time to open its data, by its own clock."""
    try:
        began, now = (datetime.fromisoformat(str(told[name])) for name in ("start", "now"))
        return (now - began).total_seconds() >= _OPENS_S
    except (KeyError, ValueError, TypeError):
        return False


def _ask(port: int, path: str) -> dict[str, Any] | None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_DEADLINE_S)
    try:
        connection.request("GET", path)
        document = json.loads(connection.getresponse().read(_MAX_BYTES))
    except (OSError, http.client.HTTPException, ValueError):
        return None
    finally:
        connection.close()
    return document if isinstance(document, dict) else None

"""Where the models of a fleet answer, from what the state recorded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from sbctl.base.field_types import is_loopback
from sbctl.base.ids import Address
from sbctl.state.model import StateView
from sbctl.views.host_views import Endpoint

__all__ = ["endpoints_of"]

_HTTPS = 443
_ANYWHERE = ("0.0.0.0", "::")  # noqa: S104 - compared, not bound


def endpoints_of(state: StateView) -> list[Endpoint]:
    """One row for each public model of each origin on each host that answers clients, by host."""
    rows = []
    for address, runtime in sorted(state.resources.items()):
        scope = _origins_at(state, address, runtime.spec) if address.kind == "runtime" else None
        if scope is None:
            continue
        config = runtime.spec["config"]
        bind, secured = config["http_bind_address"], config.get("https_bind_port")
        name = runtime.connection.address if bind in _ANYWHERE and runtime.connection.kind == "ssh" else bind
        host = "127.0.0.1" if name in _ANYWHERE else name
        base_url = _url(host, config["http_bind_port"], secured=False)
        bundle = state.resources.get(Address("bundle", scope))
        keys = bool(bundle is not None and bundle.spec["api_keys"])
        origins = [
            (one.name or "", recorded.spec)
            for one, recorded in sorted(state.resources.items())
            if one.kind == "origin" and one.scope == scope
        ]
        for hostname, spec in origins:
            if secured is not None:
                # A certificate is for names, so the name is where clients go; DNS leads it to the host.
                base_url = _url(hostname, secured, secured=True)
            for model, deployment in sorted(spec["models"].items()):
                named = hostname if secured is None and (len(origins) > 1 or not is_loopback(host)) else ""
                resolved = f"{hostname}:{secured}:{host}" if secured is not None and hostname != host else ""
                curl = _curl(base_url, named, model, needs_key=keys, resolved=resolved)
                rows.append(Endpoint(address.scope, base_url, hostname, model, deployment, keys, curl))
    return rows


def _origins_at(state: StateView, address: Address, spec: Mapping[str, Any]) -> str | None:
    """The host whose bundle has the origins that this one serves: itself, or for a gateway of a cluster an authority. None: it answers nobody."""
    cluster = spec["config"].get("cluster")
    if cluster is None:
        return address.scope
    if "gateway" not in cluster["roles"]:
        return None
    return next((one.scope for one in sorted(state.resources) if one.kind == "bundle"), None)


def _url(host: str, port: int, *, secured: bool) -> str:
    name = f"[{host}]" if ":" in host else host
    if secured:
        return f"https://{name}{'' if port == _HTTPS else f':{port}'}/v1"
    return f"http://{name}:{port}/v1"


def _curl(base_url: str, hostname: str, model: str, *, needs_key: bool, resolved: str = "") -> str:
    """`resolved`: NAME:PORT:ADDRESS, so that the line works before DNS knows the name."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 100})
    parts = ["curl", "-s", f"{base_url}/chat/completions", "-H", "content-type: application/json"]
    if resolved:
        parts += ["--resolve", resolved]
    if hostname:
        parts += ["-H", f"host: {hostname}"]
    line = shlex.join([*parts, "-d", body])
    return f'{line} -H "authorization: Bearer $API_KEY"' if needs_key else line

"""From the origins of sb.yml to what a host answers: public names, the deployments behind them, and who stands in."""

from __future__ import annotations

from collections.abc import Mapping

from sbctl.config.checks import managed_providers, public_names
from sbctl.config.compiled import CompiledDeployment, CompiledExternal, CompiledOrigin, CompiledStandIn, PublicRoute
from sbctl.config.external import ExternalReader
from sbctl.config.host_view import HostView

__all__ = ["compiled_origins"]


def compiled_origins(
    view: HostView, deployments: Mapping[str, CompiledDeployment], externals: ExternalReader
) -> dict[str, CompiledOrigin]:
    """Hostnames with what can be answered: by this host itself, or in a cluster by whoever runs it."""
    found: dict[str, CompiledOrigin] = {}
    for hostname, origin in view.origins.items():
        routes: dict[str, PublicRoute] = {}
        default: str | None = None
        chain: dict[int, CompiledExternal | CompiledStandIn] = {}
        for index, provider in managed_providers(origin):
            if provider.deployment in deployments or view.proxy.model_host.authority == "admin_managed":
                names = public_names(provider)
                first = {model: routes.setdefault(model, PublicRoute(model, provider.deployment)) for model in names}
                behind = tuple(model for model in names if first[model].deployment != provider.deployment)
                if behind:
                    chain[index] = CompiledStandIn(provider.name, provider.deployment, behind)
                default = default or provider.default_model
        if routes:
            chain |= externals.read(hostname, origin, set(routes), view.origins_view)
            found[hostname] = CompiledOrigin(
                hostname,
                tuple(routes.values()),
                default,
                force_ssl=origin.force_ssl and view.proxy.https_bind_port is not None,
                stand_ins=tuple(chain[index] for index in sorted(chain)),
            )
    return found

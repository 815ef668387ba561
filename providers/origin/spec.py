"""Desired: the hostnames that each host serves, or in a cluster its gateways, as its authorities publish it; each stands on the deployments that it routes to."""

from __future__ import annotations

from collections.abc import Iterator

from providers.members import MemberCompiler
from providers.resource import desired_resource
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig

__all__ = ["desired"]


def desired(config: CompiledConfig) -> Iterator[Desired]:
    compiler = MemberCompiler()
    cluster = config.cluster
    serving = config.hosts if cluster is None else cluster.authorities
    for host in (config.hosts[name] for name in serving):
        bundle = Address("bundle", host.name)
        for hostname, origin in (host.origins if cluster is None else cluster.origins).items():
            spec, digest = compiler.origin(origin)
            address = Address("origin", host.name, hostname)
            after = frozenset(Address("deployment", host.name, name) for name in spec["models"].values())
            yield desired_resource(config, host, address, spec, spec_fingerprint=digest, after=after, member_of=bundle)

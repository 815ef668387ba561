"""Desired: every host of the file belongs to this fleet's lineage."""

from __future__ import annotations

from collections.abc import Iterator

from providers.resource import desired_resource
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig

__all__ = ["desired"]


def desired(config: CompiledConfig) -> Iterator[Desired]:
    """`keep_weights` says how the host is given up; only the lineage is compared with the host."""
    for host in config.hosts.values():
        spec = {"lineage": config.lineage, "host": host.name, "keep_weights": host.keep_weights}
        yield desired_resource(config, host, Address("host", host.name), spec)

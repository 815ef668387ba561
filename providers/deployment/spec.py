"""Desired: each host's deployments, each as the bundle will say it; those of a cluster on its authorities, which publish them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.members import MemberCompiler, artifact_name, stands_on
from providers.resource import desired_resource
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig

__all__ = ["desired", "fields_for_reader"]


def desired(config: CompiledConfig) -> Iterator[Desired]:
    compiler = MemberCompiler()
    if config.cluster is not None:
        for authority in config.cluster.authorities:
            for name, deployment in config.cluster.deployments.items():
                spec, digest = compiler.of_cluster(deployment)
                address, bundle = Address("deployment", authority, name), Address("bundle", authority)
                host = config.hosts[authority]
                yield desired_resource(config, host, address, spec, spec_fingerprint=digest, member_of=bundle)
        return
    for host in config.hosts.values():
        bundle = Address("bundle", host.name)
        for name, deployment in host.deployments.items():
            spec, digest = compiler.deployment(deployment)
            address = Address("deployment", host.name, name)
            after = stands_on(host.name, spec)
            yield desired_resource(config, host, address, spec, spec_fingerprint=digest, after=after, member_of=bundle)


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The whole spec, with the files of the artifact as the short name of their content."""
    facts = spec["artifact"]
    artifact = {name: facts[name] for name in ("source", "revision", "mirrors", "license", "min_memory_bytes")}
    adapters = [
        {"name": artifact_name(each["artifact"]), "content": each["artifact"]["artifact"][:12], "scale": each["scale"]}
        for each in spec.get("adapters", ())
    ]
    shown = {**spec, "adapters": adapters, "artifact": {"content": facts["artifact"][:12], **artifact}}
    if "alternatives" in spec:
        shown["alternatives"] = [
            {"variant": each["variant"], "content": each["artifact"]["artifact"][:12]} for each in spec["alternatives"]
        ]
        shown.pop("shape")
    return shown

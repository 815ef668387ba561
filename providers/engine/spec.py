"""Desired: for each host and engine kind, the builds that its deployments name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.engine_policy import engine_policy
from providers.resource import desired_resource
from providers.standalone_python import standalone_spec
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.engines.pins import LLAMA_CPP_WHEEL_PROJECT

__all__ = ["desired", "fields_for_reader"]


def desired(config: CompiledConfig) -> Iterator[Desired]:
    for host in config.hosts.values():
        for kind, spec in _by_kind(host).items():
            after = frozenset({Address("runtime", host.name)})
            yield desired_resource(config, host, Address("engine", host.name, kind), spec, after=after)


def _by_kind(host: CompiledHost) -> Mapping[str, dict[str, Any]]:
    """One launch a kind, since `engines.KIND` is one block; versions may differ by deployment."""
    specs: dict[str, dict[str, Any]] = {}
    versions: dict[str, set[str]] = {}
    for deployment in host.deployments.values():
        policy = engine_policy(deployment)
        named = versions.setdefault(policy.engine, set())
        if policy.version is not None:
            named.add(policy.version)
        spec = specs.setdefault(policy.engine, {"launch": policy.launch, "delivery": host.delivery})
        if policy.launch == "wheel":
            spec |= {
                "project": LLAMA_CPP_WHEEL_PROJECT,
                "python": host.python,
                "standalone": standalone_spec(host),
            }
        else:
            sha256 = deployment.engine_policy.sha256
            spec |= {"path": policy.path}
            if policy.acceleration != "cpu":
                spec |= {"acceleration": policy.acceleration}
            if sha256 is not None:
                spec |= {"sha256": sha256}
    return {kind: {**spec, "versions": sorted(versions[kind])} for kind, spec in specs.items()}


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are compared. How an engine travels and which Python makes its environment matter at the next install only."""
    fields = {"launch": spec["launch"], "version": ", ".join(spec["versions"]) or None}
    if spec["launch"] == "binary":
        fields["path"] = spec["path"]
        if spec.get("acceleration", "cpu") != "cpu":
            fields["acceleration"] = spec["acceleration"]
    return fields

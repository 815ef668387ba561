"""Desired: for each host, every artifact that one of its deployments serves, once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.members import artifact_name, facts_dump
from providers.resource import desired_resource
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.digests import fingerprint
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledDeployment, CompiledHost

__all__ = ["desired", "fields_for_reader"]


def desired(config: CompiledConfig) -> Iterator[Desired]:
    fingerprints: dict[tuple[str, str, bool], tuple[dict[str, Any], str]] = {}
    for host in config.hosts.values():
        after = frozenset({Address("runtime", host.name)})
        for name, (artifact, deployment, fetched) in _needed(host, placed=config.cluster is not None).items():
            facts_text, facts = facts_dump(artifact)
            key = (facts_text, deployment.delivery, fetched)
            if key not in fingerprints:
                spec = {"facts": facts, "delivery": deployment.delivery, "fetched": fetched}
                fingerprints[key] = (spec, fingerprint(spec))
            spec, digest = fingerprints[key]
            address = Address("artifact", host.name, name)
            yield desired_resource(
                config, host, address, spec, spec_fingerprint=digest, after=after, keep=host.keep_weights
            )


def _needed(host: CompiledHost, *, placed: bool) -> Mapping[str, tuple[ArtifactFacts, CompiledDeployment, bool]]:
    """By name; fetched before the bundle as soon as one of the deployments asks for it.

    `placed`: a cluster decides which workers run it, and they fetch it then; what they cannot fetch is sent to all that may run it.
    """
    needed: dict[str, tuple[ArtifactFacts, CompiledDeployment, bool]] = {}
    for deployment in host.deployments.values():
        model = deployment.model
        fetched = deployment.delivery == "push" or (not placed and (model.pull == "on_boot" or model.warm))
        for artifact in deployment.artifacts:
            name = artifact_name({"model": artifact.model, "variant": artifact.variant})
            facts, first, earlier = needed.get(name, (artifact, deployment, False))
            needed[name] = (facts, first, earlier or fetched)
    return needed


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What differs for the reader between two artifacts of one name: the bytes, and when they are fetched."""
    facts = spec["facts"]
    return {
        "artifact": facts["artifact"][:12],
        "size_bytes": sum(file["size_bytes"] for file in facts["files"]),
        "fetched": "with apply" if spec["fetched"] else "when first asked for",
    }

"""Desired: the content of each host's bundle, under whose lineage and key epoch it is signed.

The spec is the content as `trust.bundle` dumps it, with `lineage` and `key_epoch` beside it; revision and times belong to the signing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from providers.bundle import cluster
from providers.members import MemberCompiler, stands_on
from providers.resource import desired_resource
from sbctl.base.digests import fingerprint
from sbctl.base.ids import Address
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.plan.selection import merge_member_maps

__all__ = ["content_of", "desired", "digest_of", "merged", "own_fields_for_reader", "restored"]

_CONTENT: Final = ("deployments", "origins", "api_keys", "public")
_CATALOG: Final = "catalog"
_SIGNED_UNDER: Final = ("lineage", "key_epoch", cluster.CLUSTER)


def desired(config: CompiledConfig) -> Iterator[Desired]:
    """A host that serves nothing has no bundle: its last one is cleared. What its admin API may add is not nothing."""
    compiler = MemberCompiler()
    if config.cluster is not None:
        yield from cluster.desired(config, config.cluster, compiler)
        return
    known: dict[tuple[Any, ...], tuple[dict[str, Any], str]] = {}
    for host in config.hosts.values():
        if not host.deployments and not host.origins and host.model_host.authority != "admin_managed":
            continue
        members = {name: compiler.deployment(deployment) for name, deployment in host.deployments.items()}
        origins = {name: compiler.origin(origin) for name, origin in host.origins.items()}
        key = _key(host, members, origins)
        if key not in known:
            spec = {
                "lineage": config.lineage,
                "key_epoch": config.key_epoch,
                "deployments": {name: member for name, (member, _) in members.items()},
                "origins": {name: member for name, (member, _) in origins.items()},
                "api_keys": {name: entry.model_dump(mode="json") for name, entry in host.api_keys.items()},
                "public": host.public,
                **_offered(host),
            }
            known[key] = (spec, fingerprint(spec))
        spec, digest = known[key]
        after = {Address("runtime", host.name)}.union(*(stands_on(host.name, member) for member, _ in members.values()))
        address = Address("bundle", host.name)
        yield desired_resource(config, host, address, spec, spec_fingerprint=digest, after=frozenset(after))


def _key(host: CompiledHost, members: Mapping[str, Any], origins: Mapping[str, Any]) -> tuple[Any, ...]:
    """Equal for hosts that serve the same; hosts of one group do, so their content is built and hashed once."""
    return (
        tuple((name, digest) for name, (_, digest) in members.items()),
        tuple((name, digest) for name, (_, digest) in origins.items()),
        tuple((name, entry.model_dump_json()) for name, entry in host.api_keys.items()),
        host.public,
        id(host.catalog) if host.model_host.authority == "admin_managed" else None,
    )


def _offered(host: CompiledHost) -> dict[str, Any]:
    """The operator's own models, where the admin API may choose from them; nothing where there are none."""
    if host.model_host.authority != "admin_managed":
        return {}
    own = host.catalog.operators_document()
    return {} if own is None else {_CATALOG: own.model_dump(mode="json", exclude_defaults=True)}


def content_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What the signed document's `content` is."""
    return {name: spec[name] for name in (*_CONTENT, *((_CATALOG,) if _CATALOG in spec else ()))}


def digest_of(spec: Mapping[str, Any]) -> str:
    """Equals `trust.bundle.content_digest` of the content."""
    return fingerprint(content_of(spec))


def own_fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What belongs to no member; hashes of keys as short names of theirs; whether a caller on the machine needs a key at all."""
    keys = {name: {**entry, "sha256": entry["sha256"][:12]} for name, entry in spec["api_keys"].items()}
    return {
        "api_keys": keys,
        "public": spec["public"],
        "open": bool(spec["public"] or not spec["api_keys"]),
        "key_epoch": spec["key_epoch"],
        **({cluster.CLUSTER: spec[cluster.CLUSTER]} if cluster.is_cluster(spec) else {}),
        **({"catalog": _models_for_reader(spec[_CATALOG])} if _CATALOG in spec else {}),
    }


def _models_for_reader(catalog: Mapping[str, Any]) -> dict[str, str]:
    return {name: fingerprint(model)[:12] for name, model in catalog["models"].items()}


def merged(
    recorded_spec: Mapping[str, Any] | None,
    desired_spec: Mapping[str, Any] | None,
    selected_members: Collection[Address],
    own_fields: bool,
) -> Mapping[str, Any]:
    """For --target: recorded members with the selected ones as desired. It is signed under today's epoch, or no node would take it."""
    spec = merge_member_maps(recorded_spec, desired_spec, selected_members, own_fields)
    today = {} if desired_spec is None else _signed_under(desired_spec)
    return {**spec, **today}


def restored(snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollback brings back no API key that was taken away or exchanged since, and is signed under today's epoch."""
    today = recorded_spec["api_keys"]
    keys = {
        name: {**entry, "sha256": today[name]["sha256"]}
        for name, entry in snapshot_spec["api_keys"].items()
        if name in today
    }
    return {**snapshot_spec, "api_keys": keys, **_signed_under(recorded_spec)}


def _signed_under(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {name: spec[name] for name in _SIGNED_UNDER if name in spec}

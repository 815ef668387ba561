"""Desired: version, configuration, trust and admin password of each host's runtime. The password is a reference and a fingerprint."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from providers.resource import desired_resource
from providers.runtime.cluster_node import cluster_fields, node_config
from providers.standalone_python import standalone_label, standalone_spec
from sbctl import __version__
from sbctl.artifacts.egress import Egress
from sbctl.base.ids import Address
from sbctl.base.limits import GIB
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost, CompiledTls, SecretRef
from sbctl.node.messages import AdminOperator, RuntimeConfig

__all__ = ["certificate_fields", "desired", "fields_for_reader", "restored", "runtime_config"]

_IDENTITY = ("schema_version", "lineage", "host")
"""Fields of the configuration that are the host's own and never differ between two versions of a spec."""

_UNSAID = ("admin_tls", "admin_allow_ips")
"""Fields that are not there where sb.yml says nothing, so what an earlier sbctl recorded without them differs in nothing."""


def runtime_config(config: CompiledConfig, host: CompiledHost) -> RuntimeConfig:
    """What the host's `runtime.json` will say, in full: a field that sb.yml leaves out has its default written out."""
    proxy, model_host = host.proxy, host.model_host
    budget_gib = model_host.cache.budget_gib
    node_files = None if host.tls is None else host.tls.node_files
    return RuntimeConfig(
        lineage=config.lineage,
        host=host.name,
        labels=dict(host.labels),
        http_bind_address=proxy.bind_address,
        http_bind_port=proxy.http_bind_port,
        https_bind_port=proxy.https_bind_port,
        tls_cert_file=None if node_files is None else node_files[0],
        tls_key_file=None if node_files is None else node_files[1],
        admin_enabled=proxy.admin.enabled,
        admin_tls=proxy.admin.tls is not None,
        admin_allow_ips=proxy.admin.allow_ips,
        admin_bind=proxy.admin.bind,
        admin_port=proxy.admin.port,
        admin_username=proxy.admin.username,
        admin_operators=tuple(
            AdminOperator(username=one.username, password_hash=one.password_hash.get_secret_value(), role=one.role)
            for one in proxy.admin.operators
        ),
        admin_rate_limit_per_minute=proxy.admin.rate_limit_per_minute,
        authority="cluster_authority" if config.cluster is not None else model_host.authority,
        cache_directory=model_host.cache.directory,
        cache_budget_bytes=None if budget_gib is None else max(1, round(budget_gib * GIB)),
        max_resident_models=model_host.cache.max_resident_models,
        excluded_devices=tuple(sorted(set(model_host.excluded_devices))),
        offline=model_host.offline,
        max_parallel_prepares=model_host.max_parallel_prepares,
        safety_margin=model_host.safety_margin,
        shutdown_deadline_ms=model_host.shutdown_deadline_ms,
        handoff_timeout_ms=model_host.handoff_timeout_ms,
        identity=config.has_identity(host.name),
        egress=Egress() if host.egress is None else host.egress.config,
        provider_keys=tuple(sorted(_provider_keys(host))),
        cluster=None if config.cluster is None else node_config(config, config.cluster, host),
    )


def _provider_keys(host: CompiledHost) -> dict[str, SecretRef]:
    """Keys of the external providers of all origins, by the names of their files."""
    return {key.name: key for origin in host.origins.values() for external in origin.externals for key in external.keys}


def _held(secrets: Mapping[str, SecretRef]) -> dict[str, dict[str, str | None]]:
    return {
        name: {"reference": secret.reference, "fingerprint": secret.fingerprint} for name, secret in secrets.items()
    }


def _tls(tls: CompiledTls | None) -> dict[str, Any] | None:
    """The certificate that is sent, and where both files come from; None without one. Of the key nothing: the certificate holds its public half."""
    if tls is None or tls.certificate is None:
        return None
    return {
        "certificate": tls.certificate.document(),
        "certificate_reference": tls.certificate_reference,
        "key_reference": tls.key_reference,
    }


def desired(config: CompiledConfig) -> Iterator[Desired]:
    signers = dict(config.signers or {})
    for host in config.hosts.values():
        password = host.admin_password
        spec = {
            "version": config.runtime_version or __version__,
            "python": host.python,
            "standalone": standalone_spec(host),
            "config": runtime_config(config, host).model_dump(mode="json"),
            "trust": {"signers": signers, "key_epoch": config.key_epoch},
            "tls": _tls(host.tls),
            "egress_secrets": _held(
                {} if host.egress is None else {str(name): held for name, held in host.egress.secrets.items()}
            ),
            "provider_keys": _held(_provider_keys(host)),
            "admin_password": None
            if password is None
            else {"reference": password.reference, "fingerprint": password.fingerprint},
        }
        before = ("host", "certificate") if config.has_identity(host.name) else ("host",)
        after = frozenset(Address(kind, host.name) for kind in before)
        yield desired_resource(config, host, Address("runtime", host.name), spec, after=after)


def fields_for_reader(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that are compared, flat, as the reader knows them. How the host's own Python is found is not one: it matters at the next
    install only. One that is sent is: another archive is another program that runs."""
    fields = {name: value for name, value in spec["config"].items() if name not in _IDENTITY}
    password = spec["admin_password"]
    python = standalone_label(spec.get("standalone"))
    certificate = certificate_fields(spec)
    for name in _UNSAID:
        if not fields.get(name):
            fields.pop(name, None)
    fields.pop("egress", None)
    fields.pop("provider_keys", None)
    fields.pop("cluster", None)
    return {
        "version": spec["version"],
        **cluster_fields(spec["config"]),
        **({} if python is None else {"python": python}),
        **fields,
        **egress_fields(spec),
        **_provider_fields(spec),
        **({} if certificate is None else {"certificate": certificate}),
        "signers": spec["trust"]["signers"],
        "key_epoch": spec["trust"]["key_epoch"],
        "admin_password": None if password is None else password["fingerprint"] or password["reference"],
    }


def egress_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of egress, each under its own name; secrets by what tells two of them apart. Nothing where sb.yml says nothing."""
    said = {name: value for name, value in spec["config"].get("egress", {}).items() if value and name != "secrets"}
    held = spec.get("egress_secrets", {})
    said |= {name: secret["fingerprint"] or secret["reference"] for name, secret in held.items()}
    return {"egress": said} if said else {}


def _provider_fields(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Each key by its reference; what it holds by what tells two of them apart."""
    held = spec.get("provider_keys", {}).values()
    keys = {secret["reference"]: secret["fingerprint"] or secret["reference"] for secret in held}
    return {"provider_keys": keys} if keys else {}


def certificate_fields(spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """What a client sees of the public certificate. Where its files come from matters when they are sent, and is not compared."""
    tls = spec.get("tls")
    if tls is None:
        return None
    certificate = tls["certificate"]
    return {
        **{name: certificate[name] for name in ("subject", "names", "issuer", "not_after")},
        "key": certificate["key_kind"],
        "fingerprint": certificate["fingerprint"][:32],
        "chain": [fingerprint[:16] for fingerprint in certificate["chain"]],
    }


def restored(snapshot_spec: Mapping[str, Any], recorded_spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rollback keeps today's signers: what was revoked since stays revoked, and who was added can still sign.

    An old password cannot come back either: its reference is resolved today, so an old fingerprint would be a lie. Nor can an old public
    certificate, for the same reason: where there was one, today's stays.
    """
    secrets = {
        kind: {
            name: _todays(secret, recorded_spec.get(kind, {}).get(name))
            for name, secret in snapshot_spec.get(kind, {}).items()
        }
        for kind in ("egress_secrets", "provider_keys")
    }
    tls = snapshot_spec.get("tls")
    if tls is not None and recorded_spec.get("tls") is not None:
        tls = recorded_spec["tls"]
    password = snapshot_spec["admin_password"]
    if password is not None:
        password = _todays(password, recorded_spec["admin_password"])
    return {
        **snapshot_spec,
        "trust": recorded_spec["trust"],
        "admin_password": password,
        "tls": tls,
        **secrets,
    }


def _todays(secret: Mapping[str, Any], today: Mapping[str, Any] | None) -> Mapping[str, Any]:
    """What is known of a secret's value is known of today's alone."""
    same = today is not None and today["reference"] == secret["reference"]
    return today if today is not None and same else {**secret, "fingerprint": None}

"""Bundles as files: read, verify, export."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from providers.bundle.spec import content_of
from providers.runtime.spec import runtime_config
from sbctl.base import strict_json
from sbctl.base.clock import rfc3339
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError
from sbctl.base.fs import read_bounded, write_atomic
from sbctl.base.ids import Address
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.base.naming import naming
from sbctl.cli.planning import desired_of
from sbctl.cli.signing import require_member
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, BundleContent, BundlePayload, TrustSet, content_digest
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import VerifiedBundle, parse_bundle, verify_bundle

__all__ = ["export_bundle", "read_unverified", "verified", "write_unsigned"]

_WRITTEN_BY: Final = "sbctl bundle export writes one"


def _text(path: Path) -> str:
    return read_bounded(path, max_bytes=BUNDLE_MAX_BYTES * 2).decode("utf-8", "replace")


def read_unverified(path: Path) -> tuple[BundlePayload, tuple[str, ...]]:
    """The payload and the claimed key ids, for showing only. Raises InputError."""
    with naming(str(path), next_step=_WRITTEN_BY):
        kind, payload, claimed = unverified_payload(_text(path), max_bytes=BUNDLE_MAX_BYTES)
        if kind != BUNDLE_PAYLOAD_TYPE:
            raise InputError("bundle.invalid", "this envelope does not hold a bundle")
        return parse_bundle(payload), claimed


def verified(workspace: Workspace, path: Path, host: str) -> VerifiedBundle:
    """As `host` would judge it, apart from its fence. Raises RefusedError, InputError."""
    state = workspace.require_state()
    trust = TrustSet(lineage=state.lineage, key_epoch=state.key_epoch, signers=dict(state.signers))
    with naming(str(path), next_step=_WRITTEN_BY):
        return verify_bundle(_text(path), trust=trust, scope=host, fence=None, now=workspace.clock.now())


def write_unsigned(workspace: Workspace, host: str, out: Path) -> None:
    """What `sbctl-runtime serve --config` reads: settings and desired state of one host, for who starts a runtime by hand.

    Holds no secret but hashes of API keys. Raises InputError `bundle.no_host`.
    """
    config = workspace.config
    content = _content(config, host)
    runtime = runtime_config(config, config.hosts[host]).model_dump(mode="json")
    runtime["lineage"] = runtime["lineage"] or "by-hand"
    document = {"runtime": runtime, "content": content.model_dump(mode="json")}
    write_atomic(out.resolve(), strict_json.dump_pretty(document).encode() + b"\n", mode=0o644)


def _content(config: CompiledConfig, host: str) -> BundleContent:
    address = Address("bundle", host)
    desired = next((one for one in desired_of(config) if one.address == address), None)
    if desired is None:
        raise InputError(
            "bundle.no_host",
            f"sb.yml asks nothing of a host named {host}",
            next_step=f"hosts: {', '.join(config.hosts)}",
        )
    return BundleContent.model_validate_json(canonical_json(content_of(desired.spec)))


def export_bundle(workspace: Workspace, host: str, out: Path) -> int:
    """Sign and write; returns the revision. Raises InputError `bundle.no_host`, RefusedError `key.*`."""
    config = workspace.config
    content = _content(config, host)
    key = workspace.signing_key
    if key is None:
        from sbctl.base.errors import RefusedError

        raise RefusedError("key.none", "this machine has no signing key", next_step="sbctl key add NAME --generate")
    signer = require_member(key, dict(config.signers or {}))
    revisions = workspace.state.revisions if workspace.state is not None else {}
    payload = BundlePayload(
        lineage=config.lineage,
        scope=host,
        key_epoch=config.key_epoch,
        revision=revisions.get(host, 0) + 1,
        issued_at=rfc3339(workspace.clock.now()),
        catalog_digest=config.catalog_digest,
        content=content,
        content_digest=content_digest(content),
    )
    envelope = signer.sign(BUNDLE_PAYLOAD_TYPE, canonical_json(payload.model_dump(mode="json")))
    write_atomic(out.resolve(), envelope.encode() + b"\n", mode=0o644)
    return payload.revision

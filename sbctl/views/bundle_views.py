"""A bundle for the reader."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Group, RenderableType

from sbctl.base.display import format_bytes
from sbctl.trust.bundle import BundlePayload
from sbctl.views.tables import render_fields, render_rows

__all__ = ["bundle_body", "bundle_text"]


def bundle_text(payload: BundlePayload, *, signer: str | None, claimed: Sequence[str]) -> RenderableType:
    """Head, deployments, origins. `signer` is None when the signature was not checked; then `claimed` is what it says of itself."""
    fields = (
        ("for", f"{payload.scope} of {payload.lineage}"),
        ("revision", payload.revision),
        ("key epoch", payload.key_epoch),
        ("issued at", payload.issued_at),
        ("expires at", payload.expires_at or "never"),
        ("content", payload.content_digest),
        ("signed by", signer if signer is not None else f"claims {', '.join(claimed) or 'nobody'} (not checked)"),
    )
    deployments = [
        (
            name,
            f"{one.model}:{one.variant}",
            one.replicas,
            one.max_concurrency,
            format_bytes(one.artifact.total_bytes),
            one.artifact.artifact[:12],
        )
        for name, one in sorted(payload.content.deployments.items())
    ]
    origins = [
        (hostname, public, deployment)
        for hostname, origin in sorted(payload.content.origins.items())
        for public, deployment in sorted(origin.models.items())
    ]
    return Group(
        render_fields(fields, title="bundle"),
        render_rows(
            ("deployment", "model", "replicas", "concurrency", "bytes", "artifact"), deployments, empty="no deployment"
        ),
        render_rows(("origin", "model", "deployment"), origins, empty="no origin"),
    )


def bundle_body(payload: BundlePayload, *, signer: str | None, claimed: Sequence[str]) -> dict[str, Any]:
    """The same as JSON."""
    return {"bundle": payload.model_dump(mode="json"), "signer": signer, "claimed_key_ids": list(claimed)}

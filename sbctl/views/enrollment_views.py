"""Join tokens, and the directory that an enrollment made. A token's text is in one document alone: that of the command that made it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.trust.node_identity import IDENTITY_FILE_NAMES, NodeIdentity
from sbctl.trust.token_store import TokenRow
from sbctl.views.layout import safe
from sbctl.views.tables import Column, render_fields, render_rows

__all__ = ["created_body", "enrolled_body", "enrolled_text", "token_body", "tokens_body", "tokens_text"]

_STYLES: Final = {"open": "green", "revoked": "red", "expired": "yellow"}


def created_body(text: str, row: TokenRow) -> dict[str, Any]:
    return {
        "token": text,
        "token_id": row.id,
        "expires_at_unix_secs": int(row.not_after.timestamp()),
        "constraints": _constraints(row),
    }


def token_body(row: TokenRow, now: datetime) -> dict[str, Any]:
    return {
        "token_id": row.id,
        "state": row.state(now),
        "constraints": _constraints(row),
        "created_at_unix_secs": int(row.created_at.timestamp()),
        "expires_at_unix_secs": int(row.not_after.timestamp()),
        "consumed_at_unix_secs": _seconds(row.consumed_at),
        "revoked_at_unix_secs": _seconds(row.revoked_at),
        "used_by": row.node,
        "fingerprint": row.issued,
    }


def tokens_body(rows: Sequence[TokenRow], now: datetime) -> dict[str, Any]:
    return {"tokens": [token_body(row, now) for row in rows]}


def tokens_text(rows: Sequence[TokenRow], now: datetime) -> RenderableType:
    columns = ("token", Column("state", style_by=_STYLES), "valid until", "for", "roles", "labels", "used by")
    listed = [
        (
            row.id,
            row.state(now),
            rfc3339(row.not_after),
            row.node_id or "any new host",
            ", ".join(row.roles),
            ", ".join(f"{key}={value}" for key, value in row.labels.items()) or None,
            row.node,
        )
        for row in rows
    ]
    return render_rows(columns, listed, empty="there is no join token: sbctl cluster token create")


def enrolled_body(directory: Path, identity: NodeIdentity) -> dict[str, Any]:
    claims = identity.claims
    return {
        "directory": str(directory),
        "cluster_id": claims.cluster_id,
        "node_id": claims.node_id,
        "roles": list(claims.roles),
        "labels": dict(claims.labels),
        "identity_epoch": claims.identity_epoch,
        "fingerprint": identity.certificate.fingerprint,
        "not_after": rfc3339(identity.certificate.not_after),
        "node_cert_file": str(directory / IDENTITY_FILE_NAMES["certificate"]),
        "node_key_file": str(directory / "node-key.pem"),
        "ca_file": str(directory / IDENTITY_FILE_NAMES["ca"]),
        "identity_file": str(directory / IDENTITY_FILE_NAMES["identity"]),
        "authority_verifying_key_file": str(directory / IDENTITY_FILE_NAMES["authority_key"]),
        "revocations_file": str(directory / IDENTITY_FILE_NAMES["revocations"]),
    }


def enrolled_text(directory: Path, identity: NodeIdentity) -> RenderableType:
    claims = identity.claims
    fields: list[tuple[str, str | int | None]] = [
        ("directory", str(directory)),
        ("cluster", claims.cluster_id),
        ("host", claims.node_id),
        ("roles", ", ".join(claims.roles)),
        ("epoch", claims.identity_epoch),
        ("valid until", rfc3339(identity.certificate.not_after)),
    ]
    return Group(
        render_fields(fields, title="Enrolled"),
        Text(f"To use it here: sbctl-runtime identity {safe(str(directory))}"),
    )


def _constraints(row: TokenRow) -> dict[str, Any]:
    return {"allowed_roles": list(row.roles), "labels": dict(row.labels), "node_id": row.node_id}


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())

"""The authority and the identities it gave: what `cluster init` made, and who has which identity until when."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.clock import rfc3339
from sbctl.trust.authority import Authority
from sbctl.trust.authority_facts import AuthorityFacts
from sbctl.views.layout import safe
from sbctl.views.tables import Column, render_fields, render_rows

__all__ = ["ROLLOVER_STEPS", "IdentityRow", "init_body", "init_text", "status_body", "status_text"]

_FILES: Final = {
    "ca_file": "ca.pem",
    "node_cert_file": "node.pem",
    "node_key_file": "node-key.pem",
    "identity_file": "identity.json",
    "authority_verifying_key_file": "authority-verifying.key",
}
ROLLOVER_STEPS: Final = {
    "add": "1 of 3: an apply has every host trust the new CA as well",
    "reissue": "2 of 3: an apply gives every host an identity of the new CA",
    "remove": "3 of 3: an apply has every host forget the old CA",
}
_STYLES: Final = {
    "valid": "green",
    "revoked": "red",
    "expired": "red",
    "renewal is due": "yellow",
    "rotation asked": "yellow",
}


@dataclass(frozen=True, slots=True)
class IdentityRow:
    """One node. `state`: valid, renewal is due, rotation asked, expired, revoked, none."""

    node_id: str
    state: str
    identity_epoch: int
    not_after: datetime | None
    renews: datetime | None
    fingerprint: str | None
    issuer: str | None
    roles: tuple[str, ...]


def init_body(authority: Authority) -> dict[str, Any]:
    settings = authority.settings
    return {
        "directory": str(authority.directory),
        "cluster_id": settings.cluster_id,
        "node_id": settings.node_id,
        "server_name": settings.server_name,
        **{name: str(authority.directory / file) for name, file in _FILES.items()},
        "ca_fingerprint": authority.facts().issuer,
        "authority_key": authority.verifying_key,
    }


def init_text(authority: Authority, beside: Path, *, named: bool) -> RenderableType:
    """What was made, and the lines for sb.yml where that has not `named` the directory yet."""
    body = init_body(authority)
    shown = os.path.relpath(authority.directory, beside)
    place = shown if shown.startswith("..") else f"./{shown}"
    lines = [
        "Add to sb.yml, then run sbctl plan:",
        *(f"    {safe(line)}" for line in ("fleet:", "  identity:", f"    directory: {place}")),
    ]
    return Group(
        render_fields(
            [
                ("directory", body["directory"]),
                ("cluster", body["cluster_id"]),
                ("CA", body["ca_fingerprint"][:16]),
                ("signs identities", body["authority_key"]),
            ],
            title="A new authority",
        ),
        Text("Keep a copy of the directory where only you can read it; never commit its keys.", style="yellow"),
        *(Text(line) for line in (["sb.yml names it already; next: sbctl plan"] if named else lines)),
    )


def status_text(
    authority: Authority, facts: AuthorityFacts, rows: Sequence[IdentityRow], *, enrollment: str = ""
) -> RenderableType:
    fields: list[tuple[str, str | int | None]] = [
        ("directory", str(authority.directory)),
        ("server name", facts.server_name),
        ("CA", facts.issuer[:16]),
        ("revocation list", facts.revocations),
        ("keys", "here" if facts.keys_here else "not here: this copy can plan, not issue"),
    ]
    if facts.rollover is not None:
        fields.append(("CA rollover", ROLLOVER_STEPS[facts.rollover]))
    if enrollment:
        fields.append(("enrollment server", enrollment))
    columns = ("node", Column("state", style_by=_STYLES), Column("epoch", "right"), "valid until", "renews", "roles")
    listed = [
        (
            row.node_id,
            row.state,
            row.identity_epoch or None,
            _day(row.not_after),
            _day(row.renews),
            ", ".join(row.roles),
        )
        for row in rows
    ]
    return Group(
        render_fields(fields, title=f"Cluster {facts.cluster_id}"),
        render_rows(columns, listed, empty="no identity was issued yet: sbctl apply"),
    )


def _day(moment: datetime | None) -> str | None:
    return None if moment is None else moment.date().isoformat()


def status_body(authority: Authority, facts: AuthorityFacts, rows: Sequence[IdentityRow]) -> dict[str, Any]:
    return {
        "directory": str(authority.directory),
        "cluster_id": facts.cluster_id,
        "server_name": facts.server_name,
        "ca": list(facts.ca),
        "issuer": facts.issuer,
        "rollover": facts.rollover,
        "revocations": facts.revocations,
        "keys_here": facts.keys_here,
        "nodes": [
            {
                "node_id": row.node_id,
                "state": row.state,
                "identity_epoch": row.identity_epoch,
                "not_after": None if row.not_after is None else rfc3339(row.not_after),
                "renews": None if row.renews is None else rfc3339(row.renews),
                "fingerprint": row.fingerprint,
                "issuer": row.issuer,
                "roles": list(row.roles),
            }
            for row in rows
        ],
    }

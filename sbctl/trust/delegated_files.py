"""An enrollment server's directory: what an apply supplies stands apart from what the server writes.

    supplied   ca.pem ca-key.pem                    the intermediate CA and its key, made on this host
               authority-signing.key                signs identity documents, made on this host
               delegation.json                      the authority's word for both
               roots.pem authority-verifying.key revocations.json      what hosts trust, believe and refuse
               authority.json server.json           cluster and server name; what the server does
               node.pem node-key.pem                the host's own identity, which it shows
    state      nodes/ tokens.db enrollment-audit.jsonl and locks

Supplied files come as systemd credentials: root's on disk, read-only for the server's account, which is nobody else's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import fs, strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import ENROLLED_HOURS_MAX
from sbctl.base.schema_faults import first_fault
from sbctl.base.secret import Secret
from sbctl.trust.authority import Authority
from sbctl.trust.authority_directory import AuthorityFiles
from sbctl.trust.authority_keys import AuthorityKeys

__all__ = ["IDENTITY_FILES", "SUPPLIED_FILES", "DelegatedAuthority", "DelegatedFiles", "ServerSettings"]

SUPPLIED_FILES: Final = (
    "authority.json",
    "server.json",
    "ca.pem",
    "ca-key.pem",
    "authority-signing.key",
    "delegation.json",
    "roots.pem",
    "authority-verifying.key",
    "revocations.json",
)
IDENTITY_FILES: Final = ("node.pem", "node-key.pem")
_MAX_BYTES: Final = 4 * 1024 * 1024


class ServerSettings(BaseModel):
    """`server.json`. `reserved` are names that no token gives: those hosts get their identity by an apply."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)

    bind_address: str = Field(max_length=64)
    port: int = Field(ge=1, le=65535)
    validity_hours: int = Field(ge=1, le=ENROLLED_HOURS_MAX)
    reserved: tuple[str, ...] = Field(max_length=10_000)


@dataclass(frozen=True)
class DelegatedFiles(AuthorityFiles):
    """`directory` is the state; `supplied` comes from outside and is trusted as it is."""

    supplied: Path

    def path(self, name: str) -> Path:
        return self.supplied / name if name in (*SUPPLIED_FILES, *IDENTITY_FILES) else self.directory / name

    def text(self, name: str) -> str:
        if name not in (*SUPPLIED_FILES, *IDENTITY_FILES):
            return super().text(name)
        return fs.read_bounded(self.path(name), max_bytes=_MAX_BYTES).decode("utf-8", "replace")

    def secret(self, name: str) -> Secret:
        try:
            return Secret(fs.read_bounded(self.path(name), max_bytes=_MAX_BYTES))
        except InputError:
            raise RefusedError(
                "authority.no_key",
                f"the enrollment server has no {name}",
                place=str(self.supplied),
                next_step="sbctl apply supplies it; look at: systemctl status sbctl-enrollment",
            ) from None

    def trusted_keys(self) -> AuthorityKeys:
        return AuthorityKeys.parse(self.text("authority-verifying.key"))

    def pinned_ca(self) -> str:
        return self.text("roots.pem")

    def trusted_ca(self) -> str:
        return self.text("roots.pem")

    def delegation(self) -> str | None:
        return self.text("delegation.json")

    def chain(self) -> str:
        return self.text("ca.pem")

    def reserved(self) -> frozenset[str]:
        return frozenset(self.settings_of_server.reserved)

    @cached_property
    def settings_of_server(self) -> ServerSettings:
        """Raises InputError `authority.invalid`."""
        try:
            document = strict_json.loads(self.text("server.json").encode(), max_bytes=_MAX_BYTES)
            return ServerSettings.model_validate_json(json.dumps(document))
        except ValidationError as error:
            where, what = first_fault(error)
            raise InputError(
                "authority.invalid",
                f"wrong at {where}: {what}",
                place=str(self.path("server.json")),
                next_step="sbctl apply writes it anew",
            ) from None


class DelegatedAuthority(Authority):
    """Issues by a delegation. The identity that it shows is the host's, which an apply renews."""

    def renew_own(self, *, now: datetime) -> bool:
        del now
        return False

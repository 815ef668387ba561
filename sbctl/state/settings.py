"""Where a shared state is kept, as sb.yml says it: plain values and references to secrets, so that they can be remembered beside the lock."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

__all__ = ["EncryptionSettings", "StateSettings", "stays_here"]


def stays_here(host: str) -> bool:
    """Whether a host of an address is this machine: nothing, a UNIX socket, localhost, a loopback address."""
    if not host or host.startswith("/") or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class EncryptionSettings:
    """Who can open the shared document. `recipients` are `sbx1…` texts; `passphrase` and `identity` are secret references."""

    recipients: tuple[str, ...] = ()
    passphrase: str | None = None
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class StateSettings:
    """`fleet.state`. `local`: the files beside sb.yml are all there is; else they are a working copy of what stands at `address`."""

    backend: Literal["local", "http", "postgres"] = "local"
    address: str = ""
    username: str = ""
    password: str | None = None
    """A secret reference."""
    ca_file: str = ""
    update_method: str = "POST"
    lock_address: str = ""
    lock_method: str = "LOCK"
    unlock_address: str = ""
    unlock_method: str = "UNLOCK"
    schema: str = "sbctl"
    table: str = "state"
    encryption: EncryptionSettings | None = None

    @property
    def shared(self) -> bool:
        return self.backend != "local"

    @property
    def place(self) -> str:
        """For people, and to tell one place from another. Holds no credentials: addresses with one are refused in sb.yml."""
        if self.backend == "postgres":
            return f"{self.address} ({self.schema}.{self.table})"
        return self.address or "local"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> StateSettings:
        """Raises TypeError, KeyError or AttributeError for what `to_json` did not write."""
        fields = dict(raw)
        encryption = fields.pop("encryption")
        if encryption is not None:
            encryption = EncryptionSettings(**{**encryption, "recipients": tuple(encryption["recipients"])})
        return cls(**fields, encryption=encryption)

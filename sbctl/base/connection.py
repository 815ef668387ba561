"""How a host is reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Connection"]


@dataclass(frozen=True, slots=True)
class Connection:
    """How a host is reached; recorded with each resource, so that it can be destroyed without sb.yml. No secrets: a key is named by its file."""

    kind: Literal["local", "ssh"]
    address: str = ""
    port: int = 22
    user: str = ""
    host_key: str = ""
    """`SHA256:…` or a full OpenSSH public key; empty only for local."""
    identity_file: str = ""

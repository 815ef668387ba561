"""Names of things: ids, digests, and addresses `kind.scope/name` of resources."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal, get_args

from sbctl.base.errors import InputError
from sbctl.base.limits import ID_MAX_CHARS

__all__ = [
    "DIGEST_RE",
    "ID_RE",
    "KINDS",
    "RESERVED_SCOPES",
    "Address",
    "Kind",
    "is_digest",
    "is_id",
]

Kind = Literal[
    "host", "certificate", "runtime", "store", "enrollment", "engine", "artifact", "bundle", "deployment", "origin"
]
KINDS: Final[tuple[str, ...]] = get_args(Kind)
"""In the order in which a host's resources are created; deletes run it backwards."""

RESERVED_SCOPES: Final = frozenset({"cluster", "local"})

ID_RE: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
DIGEST_RE: Final = re.compile(r"[0-9a-f]{64}")
_ADDRESS_RE: Final = re.compile(r"([a-z]+)\.([A-Za-z0-9._-]{1,128})(?:/(.{1,256}))?")


def is_id(text: str) -> bool:
    """SBproxy's id rule: 1..128 of `[A-Za-z0-9._-]`; `.` and `..` are never ids, since ids become path parts."""
    return len(text) <= ID_MAX_CHARS and ID_RE.fullmatch(text) is not None and text not in {".", ".."}


def is_digest(text: str) -> bool:
    """64 lowercase hex characters: a SHA-256."""
    return DIGEST_RE.fullmatch(text) is not None


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """One resource. `name` is None for what exists once per scope: `host.gpu-a`, `runtime.gpu-a`, `bundle.gpu-a`."""

    kind: str
    scope: str
    name: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}.{self.scope}" if self.name is None else f"{self.kind}.{self.scope}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Raises InputError `address.invalid` for anything that `str(address)` cannot give."""
        match = _ADDRESS_RE.fullmatch(text)
        if match is None or match[1] not in KINDS:
            raise InputError(
                "address.invalid",
                f'"{text}" is not a resource address',
                next_step=f"write kind.scope or kind.scope/name; kinds: {', '.join(KINDS)}",
            )
        return cls(match[1], match[2], match[3])

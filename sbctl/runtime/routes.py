"""Which deployment answers a request: Host names the origin, the public model name names the deployment, the key says what is allowed.

A table is immutable; a commit swaps it for another, so a request sees one desired state from beginning to end.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from sbctl.base.errors import RefusedError
from sbctl.runtime.generation import Generation
from sbctl.trust.bundle import ApiKeyEntry, BundleContent, OriginMember

__all__ = ["Caller", "RouteTable", "host_name", "is_loopback", "unknown_model"]


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks. `name` is the key's name, None without one."""

    name: str | None
    entry: ApiKeyEntry | None

    def may_use(self, model: str) -> bool:
        return self.entry is None or self.entry.models is None or model in self.entry.models


_NOBODY: Final = Caller(None, None)


def is_loopback(address: str) -> bool:
    """Whether an IP address is of this machine only; an IPv4 address mapped into IPv6 counts as what it is."""
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(parsed, "ipv4_mapped", None)
    return (mapped or parsed).is_loopback


def host_name(header: str) -> str:
    """The name in a Host header, lower case, without port, brackets or the final dot; empty when there is none."""
    text = header.strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].rstrip(".")


@dataclass(frozen=True, slots=True)
class RouteTable:
    """One desired state as requests see it."""

    origins: Mapping[str, OriginMember] = field(default_factory=dict)
    generations: Mapping[str, Generation] = field(default_factory=dict)
    api_keys: Mapping[str, ApiKeyEntry] = field(default_factory=dict)
    public: bool = False
    callers: Mapping[str, Caller] = field(init=False, repr=False, compare=False)
    """By the digest of the key that they present."""

    def __post_init__(self) -> None:
        callers = {entry.sha256: Caller(name, entry) for name, entry in self.api_keys.items()}
        object.__setattr__(self, "callers", callers)

    @classmethod
    def of(cls, content: BundleContent, generations: Mapping[str, Generation]) -> RouteTable:
        origins = {host_name(name): origin for name, origin in content.origins.items()}
        return cls(origins, dict(generations), content.api_keys, content.public)

    def caller(self, token: str | None, *, bound_to_loopback: bool) -> Caller:
        """Who presents `token`, found by its digest: how long that takes tells of the digest alone, from which no key is found.

        Without keys only loopback is served, unless the bundle says public. Raises RefusedError `unauthorized`.
        """
        if token is not None:
            digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).hexdigest()
            found = self.callers.get(digest)
            if found is not None:
                return found
            if self.api_keys and not self.public:
                raise RefusedError("unauthorized", "the API key is not known here")
        if self.public or (not self.api_keys and bound_to_loopback):
            return _NOBODY
        raise RefusedError("unauthorized", "an API key is needed: Authorization: Bearer <key>")

    def origin(self, host_header: str, *, bound_to_loopback: bool) -> OriginMember:
        """The origin of a Host header; a sole origin answers any Host on loopback. Raises RefusedError `unknown_origin`."""
        found = self.origins.get(host_name(host_header))
        if found is None and bound_to_loopback and len(self.origins) == 1:
            found = next(iter(self.origins.values()))
        if found is None:
            raise RefusedError("unknown_origin", "nothing is served under this host name")
        return found

    def is_own_page(self, origin_header: str | None) -> bool:
        """Whether no page asks, or one of this machine or of an origin. A name that a page's owner lets point here (DNS rebinding) is neither."""
        if origin_header is None:
            return True
        name = host_name(origin_header.partition("://")[2])
        return name == "localhost" or name in self.origins or is_loopback(name)

    def named(self, origin: OriginMember, model: str | None, *, instead: str | None = None) -> tuple[str, str]:
        """The public name and the deployment behind it, or the deployment `instead`. Raises RefusedError `unknown_model`."""
        name = model or origin.default_model or (next(iter(origin.models)) if len(origin.models) == 1 else None)
        deployment = instead or (origin.models.get(name) if name is not None else None)
        if name is None or deployment is None:
            raise unknown_model()
        return name, deployment

    def resolve(self, origin: OriginMember, model: str | None, *, instead: str | None = None) -> tuple[str, Generation]:
        """As `named`, with the generation that this host runs. Raises RefusedError `unknown_model`."""
        name, deployment = self.named(origin, model, instead=instead)
        generation = self.generations.get(deployment)
        if generation is None:
            raise unknown_model()
        return name, generation


def unknown_model() -> RefusedError:
    """Without its name: whoever asks knows it."""
    return RefusedError(
        "unknown_model",
        "this model is not served here: GET /v1/models lists those that are",
        detail={"param": "model"},
    )

"""Parameters of the node interface that concern weights: those of the host's cache, and blobs that neighbours give each other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from sbctl.artifacts.model import ArtifactFacts
from sbctl.node.params import DIGEST_PATTERN, Params

__all__ = [
    "ArtifactImport",
    "ArtifactList",
    "ArtifactPrune",
    "ArtifactPull",
    "ArtifactRemove",
    "ArtifactVerify",
    "BlobFetch",
    "BlobServe",
]


class ArtifactPull(Params):
    """Fetch, verify and publish into the host's cache; a complete one is found by its seal. Then the cache is brought within its budget.

    → `artifacts.answers.Pulled`. `offline`: only what is on the host is used. `pinned`: no collection takes it; None leaves that as it is.
    """

    artifact: ArtifactFacts
    offline: bool = False
    pinned: bool | None = None


class ArtifactImport(Params):
    """Publish files that were put by their digests. → `artifacts.answers.Pulled`"""

    artifact: ArtifactFacts
    pinned: bool | None = None


class ArtifactRemove(Params):
    """Remove one artifact; its blobs go when nothing else names them. Refused with `artifact.in_use` while leased. → {"removed", "reclaimed_bytes"}"""

    artifact: str = Field(pattern=DIGEST_PATTERN)


class ArtifactList(Params):
    """What the host's cache holds. Reads only. → `artifacts.answers.CacheListing`

    `wanted`: artifacts of which it is told whether another program on the host has their files.
    """

    wanted: tuple[ArtifactFacts, ...] = Field(default=(), max_length=4096)


class ArtifactVerify(Params):
    """Read every byte of an artifact; bad ones are set aside and its deployments are told. → `artifacts.answers.Verified`"""

    artifact: str = Field(pattern=DIGEST_PATTERN)


class ArtifactPrune(Params):
    """Remove blobs that no artifact names, then what the budget has no room for; `everything`: also unfinished downloads and what was
    quarantined. → `artifacts.answers.Pruned`"""

    dry_run: bool = False
    everything: bool = False


class BlobServe(Params):
    """Offer blobs that were put here, or that the model cache has, to neighbours over TLS for as long as this channel is open.

    The secret `token` is sent beside the call; `peers` are the only addresses that are answered, `bind` is the address that is listened on.
    Called again, it offers more. → {"port", "certificate_sha256", "missing": [digest…]}
    """

    digests: tuple[Annotated[str, Field(pattern=DIGEST_PATTERN)], ...] = Field(max_length=4096)
    peers: tuple[Annotated[str, Field(max_length=253)], ...] = Field(max_length=4096)
    bind: str = Field(min_length=1, max_length=253)


class BlobFetch(Params):
    """Fetch one blob from a neighbour that serves it, as if it had been put here; the secret `token` is sent beside the call. → {"fetched_bytes"}"""

    sha256: str = Field(pattern=DIGEST_PATTERN)
    size_bytes: int = Field(gt=0)
    address: str = Field(min_length=1, max_length=253)
    port: int = Field(gt=0, le=65535)
    certificate_sha256: str = Field(pattern=DIGEST_PATTERN)

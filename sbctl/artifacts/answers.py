"""What is told about a model cache, by the host that has it: the same for a host over SSH and for this machine.

All of it is foreign to the reader until these models accepted it. Bytes and milliseconds since 1970.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from sbctl.artifacts.model import Digest

__all__ = [
    "CacheListing",
    "CachedArtifact",
    "Collected",
    "Pruned",
    "Pulled",
    "Removed",
    "Verified",
]

_ARTIFACTS_MAX = 65_536
_Text = Annotated[str, Field(max_length=1024)]
_Bytes = Annotated[int, Field(ge=0)]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, defer_build=True)


class Collected(_Answer):
    """What a budget took. `skipped`: artifact → why it stayed. `problem`: why nothing could be taken."""

    before_bytes: _Bytes = 0
    after_bytes: _Bytes = 0
    reclaimed_bytes: _Bytes = 0
    deleted: tuple[Digest, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    skipped: dict[Digest, Annotated[str, Field(max_length=32)]] = Field(default_factory=dict, max_length=_ARTIFACTS_MAX)
    unsatisfied_bytes: _Bytes = 0
    problem: _Text | None = None


class Pulled(_Answer):
    """`imported_from` names programs whose files were taken instead of the network's."""

    artifact: Digest
    snapshot_path: _Text
    was_present: bool
    downloaded_bytes: _Bytes
    imported_bytes: _Bytes = 0
    imported_from: tuple[Annotated[str, Field(max_length=32)], ...] = Field(default=(), max_length=16)
    quarantined: tuple[_Text, ...] = Field(default=(), max_length=4096)
    collected: Collected | None = None
    """None: there is no budget, or the host cannot tell what its deployments need."""


class Removed(_Answer):
    removed: bool
    reclaimed_bytes: _Bytes


class Verified(_Answer):
    """What reading every byte found. `deployments` use the artifact and were told when it is bad."""

    is_good: bool
    reasons: tuple[_Text, ...] = Field(default=(), max_length=4096)
    quarantined: tuple[_Text, ...] = Field(default=(), max_length=4096)
    deployments: tuple[Annotated[str, Field(max_length=128)], ...] = Field(default=(), max_length=4096)


class Pruned(_Answer):
    """With a dry run: what would go. `collected` is of the budget, None without one or with a dry run."""

    dry_run: bool
    before_bytes: _Bytes
    reclaimed_bytes: _Bytes
    orphan_blobs: tuple[Digest, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    unfinished: tuple[Digest, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    quarantined: tuple[_Text, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    collected: Collected | None = None


class CachedArtifact(_Answer):
    """One artifact of which something is there; names are empty where its manifest is not there or damaged."""

    artifact: Digest
    state: Literal["ready", "partial", "corrupt"]
    size_bytes: _Bytes
    reason: _Text | None = None
    model: _Text = ""
    variant: _Text = ""
    format: Annotated[str, Field(max_length=32)] = ""
    license: _Text = ""
    last_accessed_ms: _Bytes = 0
    pinned: bool = False
    leased: bool = False
    """By a process, mostly the runtime, at the moment."""
    configured: bool = False
    """A deployment of the host is configured with it."""


class CacheListing(_Answer):
    """`importable`: artifact → the program that has files of the right names or sizes; their bytes are read when it is pulled."""

    root: _Text
    disk_bytes: _Bytes
    budget_bytes: Annotated[int, Field(gt=0)] | None = None
    free_bytes: _Bytes | None = None
    offline: bool = False
    orphan_bytes: _Bytes = 0
    quarantined: tuple[_Text, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    artifacts: tuple[CachedArtifact, ...] = Field(default=(), max_length=_ARTIFACTS_MAX)
    importable: dict[Digest, Annotated[str, Field(max_length=32)]] = Field(
        default_factory=dict, max_length=_ARTIFACTS_MAX
    )

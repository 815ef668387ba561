"""What a pack says of itself: its files by digest, for which hosts its wheels are, which weights it holds, from which sb.yml it was made.

Nothing in it depends on when or where it was made: the same inputs give the same bytes.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError
from sbctl.base.ids import DIGEST_RE
from sbctl.base.limits import PACK_MANIFEST_MAX_BYTES

__all__ = [
    "PACK_PAYLOAD_TYPE",
    "PackArtifact",
    "PackEntry",
    "PackManifest",
    "PackTarget",
    "Role",
    "parse_manifest",
    "render_manifest",
]

PACK_PAYLOAD_TYPE: Final = "application/vnd.sbctl.pack.v1+json"
_MAX_ENTRIES: Final = 65_536

Role = Literal["runtime", "python", "engine", "weights", "catalog"]
Digest = Annotated[str, Field(pattern=f"^{DIGEST_RE.pattern}$", min_length=64, max_length=64)]
Name = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", min_length=1, max_length=600)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class PackEntry(_Part):
    """One file. `name` is for people and, of a wheel, the file name it is installed under; the digest is its name in the pack."""

    name: Name
    sha256: Digest
    size_bytes: int = Field(ge=0, le=2**53 - 1)
    role: Role


class PackTarget(_Part):
    """One kind of host and the wheels of its runtime. `libc` is the oldest that they run on, `python` a minor version."""

    arch: str = Field(pattern=r"^[a-z0-9_]{1,20}$")
    libc: str = Field(pattern=r"^(glibc|musl)-[0-9]{1,2}\.[0-9]{1,3}$")
    python: str = Field(pattern=r"^[0-9]{1,2}\.[0-9]{1,3}$")
    wheels: tuple[Digest, ...] = Field(min_length=1, max_length=1024)


class PackArtifact(_Part):
    """One set of weights that the pack holds whole."""

    name: Name
    artifact: Digest
    files: tuple[Digest, ...] = Field(min_length=1, max_length=4096)


class PackManifest(_Part):
    """`left_out` lists roles that were excluded when it was made."""

    schema_version: Literal[1] = 1
    sbctl_version: str = Field(min_length=1, max_length=64)
    fleet: Name
    config_digest: Digest
    catalog_digest: str = Field(max_length=64)
    targets: tuple[PackTarget, ...] = Field(max_length=256)
    artifacts: tuple[PackArtifact, ...] = Field(max_length=4096)
    left_out: tuple[Role, ...] = ()
    entries: tuple[PackEntry, ...] = Field(min_length=1, max_length=_MAX_ENTRIES)

    @model_validator(mode="after")
    def _is_closed(self) -> PackManifest:
        """Each file once; every digest that is named is a file of the pack."""
        known = {entry.sha256 for entry in self.entries}
        if len(known) != len(self.entries):
            raise ValueError("one digest is listed twice")
        named = {digest for target in self.targets for digest in target.wheels}
        named |= {digest for artifact in self.artifacts for digest in artifact.files}
        if named - known:
            raise ValueError("a file is named that is not in the pack")
        kinds = [(target.arch, target.libc, target.python) for target in self.targets]
        if len(set(kinds)) != len(kinds):
            raise ValueError("one kind of host is listed twice")
        return self

    @property
    def total_bytes(self) -> int:
        return sum(entry.size_bytes for entry in self.entries)


def render_manifest(manifest: PackManifest) -> bytes:
    """The bytes that are packed and signed."""
    return canonical_json(manifest.model_dump(mode="json")) + b"\n"


def parse_manifest(data: bytes, place: str) -> PackManifest:
    """Raises InputError `pack.unsupported` for another version of the form, `pack.invalid` for what no sbctl wrote."""
    try:
        document = strict_json.loads(data, max_bytes=PACK_MANIFEST_MAX_BYTES, max_depth=8)
    except InputError as error:
        raise _invalid(f"the pack's manifest cannot be read: {error.message}", place) from error
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version != 1:
        raise InputError(
            "pack.unsupported",
            f"the pack has form {version}; this sbctl reads form 1",
            place=place,
            next_step="make the pack with the sbctl that will apply it",
        )
    try:
        manifest = PackManifest.model_validate_json(data)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the top"
        raise _invalid(f"the pack's manifest makes no sense at {where}: {first['msg']}", place) from error
    if render_manifest(manifest) != data:
        raise _invalid("the pack's manifest is not in its one form", place)
    return manifest


def _invalid(sentence: str, place: str) -> InputError:
    next_step = "bring it again from where it was made; sbctl pack verify tells whether a copy is whole"
    return InputError("pack.invalid", sentence, place=place, next_step=next_step)

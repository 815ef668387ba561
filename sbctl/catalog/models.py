"""Catalog v2: which models exist, and for each variant the exact files, where they come from and what they need (SBproxy, model host).

A variant has one identity, `source` with `revision`; `mirrors` are further ways to the bytes that the digests name. An entry without
variants is diagnostic only: it can be listed, not served.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.base.field_types import Block, EngineKind, HexDigest, Id, Items, PlainText, expected
from sbctl.base.limits import CATALOG_MAX_ENGINES, CATALOG_MAX_MODELS, CATALOG_MAX_VARIANTS, JSON_INT_MAX

__all__ = [
    "FORMAT_ENGINES",
    "FORMAT_EXTENSIONS",
    "Accelerator",
    "CatalogDocument",
    "CatalogFile",
    "CatalogModel",
    "CatalogVariant",
    "ComputeCapability",
    "Requirements",
    "is_commit",
    "source_kind",
]

Accelerator = Literal["cpu", "metal", "cuda"]
Format = Literal["safetensors", "gguf", "pickle"]
Modality = Literal["chat", "embedding", "rerank", "speech_to_text", "text_to_speech", "image"]
Pull = Literal["on_boot", "on_demand", "manual"]

FORMAT_EXTENSIONS: Final[dict[str, tuple[str, ...]]] = {
    "safetensors": (".safetensors",),
    "gguf": (".gguf",),
    "pickle": (".bin", ".pt", ".pth"),
}
"""At least one file of a variant has one of these."""

FORMAT_ENGINES: Final[dict[str, frozenset[str]]] = {
    "safetensors": frozenset({"vllm", "sglang", "mistralrs"}),
    "gguf": frozenset({"llama_cpp", "vllm"}),
    "pickle": frozenset({"vllm", "sglang"}),
}
"""Which engines can read a format at all."""

_HEX40_RE: Final = re.compile("[0-9a-f]{40}")
_HF_RE: Final = re.compile(
    r"hf:[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}(?:@[A-Za-z0-9][A-Za-z0-9._/-]{0,127})?"
)
_MEMBER: Final = r"#[^\s#?\\]{1,512}"
_PYPI_RE: Final = re.compile(rf"pypi:[A-Za-z0-9][A-Za-z0-9._-]{{0,127}}==[A-Za-z0-9][A-Za-z0-9.!+_-]{{0,63}}{_MEMBER}")
_URL_RE: Final = re.compile(
    rf"(?:https://[A-Za-z0-9.-]{{1,253}}|http://(?:127\.0\.0\.1|localhost|\[::1\]))(?::[0-9]{{1,5}})?/[^\s#?\\]{{0,2048}}(?:{_MEMBER})?"
)
_TOKEN_RE: Final = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]{0,127}\}")


def is_commit(revision: str) -> bool:
    """Whether a revision is a full commit: 40 lowercase hex characters."""
    return _HEX40_RE.fullmatch(revision) is not None


def source_kind(source: str) -> str | None:
    """`hf`, `https`, `file` or `pypi`; None for text that is no source. `http:` counts as `https`, on loopback only."""
    member = source.partition("#")[2]
    if ".." in member.split("/") or member.startswith("/"):
        return None
    if _HF_RE.fullmatch(source):
        return None if ".." in source else "hf"
    if _PYPI_RE.fullmatch(source):
        return "pypi"
    if _URL_RE.fullmatch(source):
        return "https"
    path = source.removeprefix("file:")
    if path != source and path.startswith("/") and path.isprintable() and ".." not in path.split("/"):
        return "file"
    return None


def _check_source(text: str) -> str:
    if text.startswith("ms:"):
        raise expected("a source that is supported: ms: (ModelScope) is reserved and not")
    if len(text) > 4096 or source_kind(text) is None:
        raise expected("hf:Org/Repo, https://host/path, file:/absolute/path or pypi:PROJECT==VERSION#member")
    return text


def _check_mirror(text: str) -> str:
    if source_kind(_check_source(text)) == "hf" and "@" not in text:
        raise expected("a revision on an hf: mirror: hf:Org/Repo@commit")
    return text


def _check_relative(text: str) -> str:
    parts = text.split("/")
    unsafe = re.search(r"[\\?#\x00-\x1f\x7f]", text) is not None
    if not 0 < len(text) <= 512 or unsafe or any(part in ("", ".", "..") for part in parts):
        raise expected("a relative path without .., backslash, ? or #")
    return text


_SOURCE_SCHEMA: Final[dict[str, Any]] = {"type": "string", "maxLength": 4096, "pattern": "^(hf|https?|file|pypi):"}
Source = Annotated[str, AfterValidator(_check_source), WithJsonSchema(_SOURCE_SCHEMA)]
Mirror = Annotated[str, AfterValidator(_check_mirror), WithJsonSchema(_SOURCE_SCHEMA)]
RelativePath = Annotated[
    str,
    AfterValidator(_check_relative),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 512,
            "not": {"pattern": r"[\\?#\u0000-\u001f\u007f]|^/|/$|//|(^|/)\.\.?(/|$)"},
        }
    ),
]


def _check_revision(text: str) -> str:
    if not 0 < len(text.encode()) <= 128 or re.search(r"[\x00-\x20\x7f]", text) is not None:
        raise expected("1 to 128 bytes without spaces")
    return text


Revision = Annotated[
    str,
    AfterValidator(_check_revision),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 128, "not": {"pattern": r"[\u0000-\u0020\u007f]"}}),
]


def _check_token(text: str) -> str:
    if _TOKEN_RE.fullmatch(text) is None:
        raise expected("the name of an environment variable as ${NAME}, never a token itself")
    return text


TokenName = Annotated[
    str,
    AfterValidator(_check_token),
    WithJsonSchema({"type": "string", "minLength": 4, "maxLength": 131, "pattern": r"^\$\{[A-Za-z_]"}),
]


def _known_version(value: Any) -> Any:
    if isinstance(value, bool):
        raise expected("the whole number 2")
    if isinstance(value, int) and value > 2:
        raise expected(f"schema_version 2: this catalog is of version {value}, which a newer sbctl reads")
    return value


class CatalogFile(Block):
    noun: ClassVar[str] = "a file of a variant"

    path: RelativePath = Field(description="Where the file stands in the artifact; also its path at an hf: source.")
    sha256: HexDigest = Field(description="SHA-256 of the whole file.")
    size_bytes: int = Field(gt=0, le=JSON_INT_MAX, description="Length in bytes.")


class ComputeCapability(Block):
    noun: ClassVar[str] = "a compute capability"

    major: int = Field(ge=0, le=99, description="Major number of the CUDA compute capability.")
    minor: int = Field(ge=0, le=99, description="Minor number of the CUDA compute capability.")


class Requirements(Block):
    noun: ClassVar[str] = "requirements"

    accelerators: Items[Accelerator] = Field(min_length=1, max_length=3, description="Kinds of device that can run it.")
    min_compute_capability: ComputeCapability | None = Field(default=None, description="Least CUDA compute capability.")
    min_memory_bytes: int = Field(ge=0, le=JSON_INT_MAX, description="Least memory of one replica, in bytes.")


class CatalogVariant(Block):
    noun: ClassVar[str] = "a variant"

    id: Id = Field(description="Id of the variant, unique in its model.")
    format: Format = Field(description="File format of the weights.")
    quant: PlainText = Field(description="Quantisation, as people write it.")
    engines: Items[EngineKind] = Field(
        min_length=1, max_length=CATALOG_MAX_ENGINES, description="Engines that were tried."
    )
    source: Source = Field(description="Where the identity was pinned: hf:, https:, file: or pypi:.")
    revision: Revision = Field(description="Which state of the source; a commit for hf:.")
    mirrors: Items[Mirror] = Field(
        default=(), max_length=16, description="Other ways to the same bytes, tried in order."
    )
    files: Items[CatalogFile] = Field(
        min_length=1, max_length=4096, description="Every file with its digest and length."
    )
    requirements: Requirements = Field(description="What a host must have.")
    shape: ModelShape | None = Field(
        default=None,
        description="What the header of the weights says about memory; without it min_memory_bytes stands for it.",
    )
    stability: Literal["stable", "preview", "config_only", "unsupported"] = Field(description="How far it was tried.")
    certification: PlainText = Field(description="Evidence for the stability.")

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(file.size_bytes for file in self.files)


class CatalogModel(Block):
    noun: ClassVar[str] = "a model of the catalog"

    hf_repo: PlainText | None = Field(default=None, description="Repository of the original weights.")
    quants: Items[PlainText] = Field(default=(), max_length=64, description="Quantisations that exist somewhere.")
    params: PlainText = Field(description="Number of parameters, as people write it.")
    license: PlainText = Field(description="Licence of the weights.")
    family: PlainText = Field(description="Model family.")
    min_vram_hint_gib: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = Field(
        default=None, description="Rough memory need, for people."
    )
    context_length: Annotated[int, Field(gt=0, le=JSON_INT_MAX)] | None = Field(
        default=None, description="Tokens of context; needed when there are variants."
    )
    variants: Items[CatalogVariant] = Field(
        default=(), max_length=CATALOG_MAX_VARIANTS, description="What can be served. None: diagnostic only."
    )
    allow_pickle: bool = Field(default=False, description="Allow pickle files, which can run code when loaded.")
    modality: Modality = Field(default="chat", description="What the model does.")
    source: PlainText | None = Field(default=None, description="Source of a catalog of version 1.")
    revision: PlainText | None = Field(default=None, description="Revision of a catalog of version 1.")
    sha256: dict[str, HexDigest] = Field(default_factory=dict, description="Pins of a catalog of version 1.")
    hf_token: TokenName | None = Field(
        default=None, description="As SBproxy's catalogs have it; not used: egress.hf_token is the hosts' token."
    )
    engine: EngineKind | None = Field(
        default=None, description="Engine that people prefer, to be read; a deployment's engine decides."
    )
    pull: Pull | None = Field(
        default=None, description="on_boot: models pull without names gets it, and a legacy serve: entry of it is warm."
    )


class CatalogDocument(Block):
    noun: ClassVar[str] = "a catalog"

    schema_version: Annotated[Literal[1, 2], BeforeValidator(_known_version)] = Field(
        default=1, description="2; a file without it is of version 1 and only diagnostic."
    )
    catalog_revision: Revision = Field(default="legacy-v1", description="Name of this state of the catalog.")
    models: dict[Id, CatalogModel] = Field(max_length=CATALOG_MAX_MODELS, description="Models by id.")

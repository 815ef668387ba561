"""What a repository of a model hub becomes in a catalog: which files, under which id, for which engine, with which needs. Pure.

Nothing here asks the hub: `artifacts.hub` has read it. What the hub does not tell and nobody wrote is an error that names the option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any, Final

from sbctl.artifacts.formats.shape import ModelShape
from sbctl.artifacts.hub import HubFile, HubRepository
from sbctl.artifacts.split_sets import parts_of, set_name, split_problem
from sbctl.base.display import format_bytes
from sbctl.base.errors import InputError
from sbctl.base.limits import MIB
from sbctl.base.suggest import did_you_mean

__all__ = ["Asked", "Proposal", "choose_files", "propose", "quantisation", "shape_data"]

_QUANT_RE: Final = re.compile(
    r"(?:^|[-._])((?:IQ|TQ|Q)[1-9](?:_[0-9A-Z]+)*|MXFP4(?:_MOE)?|NVFP4|BF16|F16|FP16|F32)(?=[-._]|$)", re.IGNORECASE
)
_ID_REFUSED_RE: Final = re.compile(r"[^A-Za-z0-9._-]+")
_BESIDE: Final = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", "preprocessor_config.json",
    "processor_config.json", "model.safetensors.index.json",
)  # fmt: skip
"""What engines read beside safetensors. Code is never among it."""
_ASIDE: Final = ("mmproj", "imatrix")
"""GGUF files that are no model of their own."""
_MODALITIES: Final = {
    "feature-extraction": "embedding",
    "sentence-similarity": "embedding",
    "text-ranking": "rerank",
    "automatic-speech-recognition": "speech_to_text",
    "text-to-speech": "text_to_speech",
    "text-to-image": "image",
}
_LISTED_MAX: Final = 40


@dataclass(frozen=True, slots=True)
class Asked:
    """What the operator said beyond the repository; empty and None mean: as the hub tells."""

    model_id: str = ""
    variant_id: str = ""
    license: str = ""
    context_length: int | None = None
    min_memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """A variant and the fields of its model, as plain data in the order in which a catalog shows them."""

    model_id: str
    model: dict[str, Any]
    variant: dict[str, Any]


def choose_files(found: HubRepository, wanted: Sequence[str]) -> list[str]:
    """The files of one variant. `wanted` are paths or patterns; without any the repository must leave no choice.

    A part of a split GGUF set means the whole set. Raises InputError `catalog.no_such_file`, `catalog.choose_file`, `catalog.incomplete_set`,
    `catalog.code_refused`, `catalog.nothing_servable`.
    """
    chosen = _named(found, wanted) if wanted else _only_choice(found)
    chosen = sorted({part for path in chosen for part in _whole_set(found, path)})
    code = [path for path in chosen if path.lower().endswith((".py", ".pyc", ".so"))]
    if code:
        raise InputError(
            "catalog.code_refused",
            f"{code[0]} is code, and no engine of ours runs code of a model",
            place=found.repository,
            next_step="leave it out; a model that cannot be loaded without its own code cannot be served",
        )
    return chosen


def _named(found: HubRepository, wanted: Sequence[str]) -> list[str]:
    chosen: list[str] = []
    for pattern in wanted:
        folded = pattern.lower()
        paths = (
            [pattern] if pattern in found.files else [one for one in found.files if fnmatchcase(one.lower(), folded)]
        )
        if not paths:
            close = did_you_mean(pattern, found.files)
            raise InputError(
                "catalog.no_such_file",
                f'the repository has no file "{pattern}" at {found.commit[:12]}',
                place=found.repository,
                next_step=f'did you mean "{close}"?' if close else _choices(found),
            )
        chosen += paths
    return chosen


def _only_choice(found: HubRepository) -> list[str]:
    sets = _gguf_sets(found.files.values())
    if len(sets) == 1:
        return next(iter(sets.values()))
    if sets:
        raise InputError(
            "catalog.choose_file",
            f"the repository has {len(sets)} GGUF models; name the one to add",
            place=found.repository,
            next_step=_choices(found),
        )
    weights = [path for path in found.files if path.endswith(".safetensors") and "/" not in path]
    if weights:
        return weights + [path for path in _BESIDE if path in found.files]
    raise InputError(
        "catalog.nothing_servable",
        "the repository has neither GGUF nor safetensors files",
        place=found.repository,
        next_step="name files, or another repository: pickle files are served only with an entry written by hand (allow_pickle)",
    )


def _choices(found: HubRepository) -> str:
    sets = _gguf_sets(found.files.values())
    if not sets:
        return f"it has: {', '.join(sorted(found.files)[:_LISTED_MAX])}"
    listed = [
        f"{paths[0]} ({format_bytes(sum(found.files[path].size_bytes for path in paths))})"
        for paths in sorted(sets.values())
    ]
    return f"it has: {', '.join(listed[:_LISTED_MAX])}"


def _gguf_sets(files: Iterable[HubFile]) -> dict[str, list[str]]:
    """GGUF models by what names them: a file, or a split set."""
    sets: dict[str, list[str]] = {}
    for file in files:
        name = PurePosixPath(file.path).name.lower()
        if name.endswith(".gguf") and not any(word in name for word in _ASIDE):
            sets.setdefault(set_name(file.path), []).append(file.path)
    return {key: sorted(paths) for key, paths in sets.items()}


def _whole_set(found: HubRepository, path: str) -> list[str]:
    parts = parts_of(path)
    missing = [part for part in parts if part not in found.files]
    if missing:
        raise InputError(
            "catalog.incomplete_set",
            f"{path} is one of {len(parts)} parts, and {len(missing)} of them are missing, the first {missing[0]}",
            place=found.repository,
            next_step="name another file, or another revision",
        )
    wrong = split_problem(parts)
    if wrong is not None:
        raise InputError(
            "catalog.incomplete_set",
            wrong,
            place=found.repository,
            next_step="name another file, or another revision",
        )
    return parts


def quantisation(path: str) -> str:
    """The quantisation that a file's name tells, upper case; empty when it tells none."""
    name = PurePosixPath(path).name
    told = _QUANT_RE.findall(name.removesuffix(".gguf"))
    return told[-1].upper() if told else ""


def propose(found: HubRepository, files: Sequence[HubFile], asked: Asked, shape: ModelShape | None = None) -> Proposal:
    """The entry for these files, each with its digest; `shape` is what the headers of GGUF files say.

    Raises InputError `catalog.unknown_context`, `catalog.unknown_license`.
    """
    context = asked.context_length or (shape.context_length if shape is not None else 0) or found.context_length
    if context is None:
        raise InputError(
            "catalog.unknown_context",
            "neither the hub nor the files tell how many tokens of context the model has",
            place=found.repository,
            next_step="say it: --context TOKENS",
        )
    license_text = asked.license or found.license
    if not license_text:
        raise InputError(
            "catalog.unknown_license",
            "the repository's card names no licence",
            place=found.repository,
            next_step="read its page, then say it: --license ID (an SPDX identifier, where there is one)",
        )
    model_id = asked.model_id or _id(found.repository.partition("/")[2].lower().removesuffix("-gguf"))
    model = {
        "params": _parameters(found.parameters),
        "license": license_text,
        "family": (shape.architecture if shape is not None else "")
        or found.architecture
        or re.split("[-_.0-9]", model_id)[0]
        or model_id,
        "context_length": context,
        "modality": _MODALITIES.get(found.task, "chat"),
    }
    return Proposal(model_id, model, _variant(found, files, asked, shape))


def _variant(found: HubRepository, files: Sequence[HubFile], asked: Asked, shape: ModelShape | None) -> dict[str, Any]:
    gguf = any(file.path.lower().endswith(".gguf") for file in files)
    first = next((file.path for file in files if file.path.lower().endswith((".gguf", ".safetensors"))), files[0].path)
    quant = quantisation(first) or ("F16" if gguf else "BF16")
    least_bytes = asked.min_memory_bytes or _least_memory(sum(file.size_bytes for file in files))
    return {
        "id": asked.variant_id or quant.lower(),
        "format": "gguf" if gguf else "safetensors",
        "quant": quant,
        "engines": ["llama_cpp"] if gguf else ["vllm", "sglang"],
        "source": f"hf:{found.repository}",
        "revision": found.commit,
        "files": [{"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes} for file in files],
        "requirements": {
            "accelerators": ["cpu", "metal", "cuda"] if gguf else ["cuda"],
            "min_memory_bytes": least_bytes,
        },
        **({} if shape is None else {"shape": shape_data(shape)}),
        "stability": "preview",
        "certification": "none: added from the hub's own facts",
    }


def shape_data(shape: ModelShape) -> dict[str, Any]:
    """As a catalog has it: without what is as usual."""
    return shape.model_dump(mode="json", exclude_defaults=True)


def _id(text: str) -> str:
    return _ID_REFUSED_RE.sub("-", text).strip("-.")[:128] or "model"


def _parameters(count: int | None) -> str:
    if count is None:
        return "unknown"
    scale, unit = (1e9, "B") if count >= 1e9 else (1e6, "M")
    return f"{count / scale:.3g}{unit}"


def _least_memory(total_bytes: int) -> int:
    """A first figure for people and for hosts whose engine was never seen with it: weights, and some room for a short context."""
    step = 256 * MIB
    return -(-int(total_bytes * 1.08 + 512 * MIB) // step) * step

"""`sbctl catalog add|check|update`: an operator's catalog, kept true to the hub that its entries come from.

The hub is asked with the operator's own settings (HF_ENDPOINT, HF_TOKEN). A catalog is written whole or not at all, after the guarded reader
has accepted the result; nothing is deployed, and no host is touched.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, TypeVar

from pydantic import ValidationError

from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.hub import HubFile, HubRepository, hashed_files, read_repository, read_small_file
from sbctl.artifacts.remote_header import remote_shape
from sbctl.artifacts.sources import HfSource, parse_source
from sbctl.base import strict_json
from sbctl.base.display import display_safe
from sbctl.base.errors import ConfigError, InputError, RefusedError, SbctlError
from sbctl.base.fs import read_bounded, write_atomic
from sbctl.base.limits import CATALOG_MAX_BYTES
from sbctl.base.suggest import did_you_mean
from sbctl.catalog.loader import parse_document, rule_problems
from sbctl.catalog.models import CatalogDocument, CatalogVariant, is_commit
from sbctl.catalog.proposal import Asked, Proposal, choose_files, propose, shape_data
from sbctl.config.catalog_edit import EMPTY_CATALOG, with_model, with_variant, with_variant_replaced
from sbctl.config.catalog_file import read_catalog_file
from sbctl.config.diagnose import Report
from sbctl.config.reader import parse_yaml

__all__ = ["Finding", "Updated", "add", "catalog_path", "check", "is_read", "proposed", "update"]

_DEFAULT_NAME: Final = "catalog.yml"
_BRANCH: Final = "main"
_SAY_FALSE: Final = frozenset({"hub.unknown", "hub.refused"})
"""What a hub says of an entry that cannot be had from it; whatever else goes wrong says nothing about the entry."""
T = TypeVar("T")

Verdict = Literal["true", "newer", "false", "unchecked"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One variant against its source. `newer`: true as pinned, and the branch has other bytes under the same names."""

    model: str
    variant: str
    verdict: Verdict
    detail: str


@dataclass(frozen=True, slots=True)
class Updated:
    """What `update` did to one variant; commits in full. `changed` is False where the branch has the very bytes."""

    model: str
    variant: str
    before: str
    after: str
    bytes_before: int
    bytes_after: int
    changed: bool


def catalog_path(given: Path | None, file: Path) -> Path:
    """The catalog to work on: the one given, the one that sb.yml names, or `catalog.yml` beside it."""
    if given is not None:
        return given
    directory = file.absolute().parent
    block = _written(file).get("proxy")
    host = block.get("model_host") if isinstance(block, dict) else None
    named = host.get("catalog_file") if isinstance(host, dict) else None
    if isinstance(named, str) and "${" not in named:
        return directory / Path(named).expanduser()
    return directory / _DEFAULT_NAME


def is_read(file: Path) -> bool:
    """Whether sb.yml names a catalog anywhere; without one, what is added is of no use to it. True where there is no sb.yml."""
    pending: list[Any] = [_written(file)]
    while pending:
        one = pending.pop()
        if isinstance(one, dict):
            if "catalog_file" in one:
                return True
            pending += one.values()
        elif isinstance(one, list):
            pending += one
    return not file.exists()


def _written(file: Path) -> dict[Any, Any]:
    """sb.yml as it stands, nothing put in; empty where there is none."""
    if not file.exists():
        return {}
    from sbctl.cli.workspace import Workspace

    value = Workspace(file).document.value
    return value if isinstance(value, dict) else {}


def proposed(reference: str, files: Sequence[str], asked: Asked) -> tuple[Proposal, bool]:
    """Ask the hub what `hf:Org/Repo[@revision]` is; the second value says whether its terms must be accepted first.

    Raises InputError `catalog.*`, ArtifactError `hub.*`.
    """
    repository, revision = _hub_reference(reference)

    async def ask(fetcher: Fetcher) -> tuple[Proposal, bool]:
        found = await read_repository(fetcher, repository, revision or _BRANCH)
        chosen = choose_files(found, files)
        facts = asked
        if "config.json" in chosen:
            facts = await _with_configuration(fetcher, found, asked)
        shape = await remote_shape(fetcher, found, _gguf(chosen))
        return propose(found, await hashed_files(fetcher, found, chosen), facts, shape), found.gated

    return _with_fetcher(ask)


def add(proposal: Proposal, path: Path) -> bool:
    """Put an entry into the catalog at `path`, which is made if it is not there; False when the very entry was there.

    Raises RefusedError `catalog.variant_exists`, InputError `catalog.entry_invalid`, ConfigError for a catalog with errors.
    """
    text = _text(path)
    document = _checked(path) if path.exists() else None
    model = document.models.get(proposal.model_id) if document is not None else None
    variant_id = proposal.variant["id"]
    present = next((one for one in model.variants if one.id == variant_id), None) if model is not None else None
    if present is not None:
        if _same_bytes(present, proposal.variant["files"]):
            return False
        raise RefusedError(
            "catalog.variant_exists",
            f"the catalog has {proposal.model_id}:{variant_id} already, with other files",
            place=str(path),
            next_step=f"sbctl catalog update {proposal.model_id}:{variant_id}, or give this one another id (--variant)",
        )
    if model is None:
        changed = with_model(text, proposal.model_id, proposal.model, proposal.variant)
    else:
        changed = with_variant(text, proposal.model_id, proposal.variant)
    _write(path, changed)
    return True


def check(path: Path, wanted: Sequence[str]) -> list[Finding]:
    """Each variant, or those of the models (`MODEL[:VARIANT]`) that are wanted, against its source."""
    listed = _selected(_checked(path), wanted, path)

    async def ask(fetcher: Fetcher) -> list[Finding]:
        return [await _against_source(fetcher, model, variant) for model, variant in listed]

    return _with_fetcher(ask)


def update(path: Path, wanted: str, to: str) -> list[Updated]:
    """Pin the variants of `MODEL[:VARIANT]` to what their source has at `to`. All of them are known before the first is written."""
    listed = _selected(_checked(path), [wanted], path)

    async def ask(fetcher: Fetcher) -> list[tuple[Updated, dict[str, Any]]]:
        return [await _at_revision(fetcher, model, variant, to) for model, variant in listed]

    results = _with_fetcher(ask)
    text = _text(path)
    for done, fields in results:
        if done.changed:
            text = with_variant_replaced(text, done.model, done.variant, fields)
    if any(done.changed for done, _fields in results):
        _write(path, text)
    return [done for done, _fields in results]


async def _with_configuration(fetcher: Fetcher, found: HubRepository, asked: Asked) -> Asked:
    """Safetensors: the context is in config.json, and so is whether the model wants its own code to run."""
    raw = await read_small_file(fetcher, found, "config.json")
    try:
        told = strict_json.loads(raw, max_bytes=len(raw) + 1)
    except InputError as error:
        raise InputError(
            "catalog.config_invalid",
            f"config.json of the model cannot be read: {error.message}",
            place=found.repository,
            next_step="choose another revision or repository: no engine of ours reads it either",
        ) from error
    if not isinstance(told, Mapping):
        told = {}
    if "auto_map" in told or told.get("trust_remote_code"):
        raise InputError(
            "catalog.code_refused",
            "config.json asks the engine to run the model's own code (auto_map), and no engine of ours does",
            place=found.repository,
            next_step="choose a repository in the format of the engine itself",
        )
    inner = told.get("text_config")
    for block in (told, inner if isinstance(inner, Mapping) else {}):
        tokens = block.get("max_position_embeddings")
        if asked.context_length is None and isinstance(tokens, int) and tokens > 0:
            return replace(asked, context_length=tokens)
    return asked


async def _against_source(fetcher: Fetcher, model: str, variant: CatalogVariant) -> Finding:
    source = parse_source(variant.source)
    if not isinstance(source, HfSource):
        kind = variant.source.partition(":")[0]
        return Finding(model, variant.id, "unchecked", f"only hf: sources can be asked, and this one is {kind}:")
    try:
        pinned = await read_repository(fetcher, source.repository, source.revision or variant.revision)
        wrong = await _differences(fetcher, pinned, variant)
    except SbctlError as error:
        if error.code == "hub.file_unhashed":
            return Finding(model, variant.id, "unchecked", error.message)
        if error.code not in _SAY_FALSE:
            raise
        return Finding(model, variant.id, "false", error.message)
    if wrong:
        return Finding(model, variant.id, "false", wrong[0])
    branch = await read_repository(fetcher, source.repository, _BRANCH)
    if branch.commit == pinned.commit:
        return Finding(model, variant.id, "true", f"{_BRANCH} is at this commit")
    later = await _differences(fetcher, branch, variant)
    if later:
        return Finding(model, variant.id, "newer", f"{_BRANCH} is at {branch.commit[:12]}: {later[0]}")
    how = "" if is_commit(variant.revision) else "; the revision is no commit, so it may move"
    return Finding(model, variant.id, "true", f"{_BRANCH} has the same bytes{how}")


async def _differences(fetcher: Fetcher, found: HubRepository, variant: CatalogVariant) -> list[str]:
    """How the repository differs from what the catalog says, one phrase a file."""
    wrong = []
    for file in variant.files:
        there = found.files.get(file.path)
        if there is None:
            wrong.append(f"{file.path} is not there")
        elif there.size_bytes != file.size_bytes:
            wrong.append(f"{file.path} has {there.size_bytes} bytes where the catalog says {file.size_bytes}")
        else:
            (hashed,) = await hashed_files(fetcher, found, [file.path])
            if hashed.sha256 != file.sha256:
                wrong.append(f"{file.path} has other bytes than the catalog says")
    return wrong


async def _at_revision(
    fetcher: Fetcher, model: str, variant: CatalogVariant, to: str
) -> tuple[Updated, dict[str, Any]]:
    source = parse_source(variant.source)
    if not isinstance(source, HfSource):
        raise InputError(
            "catalog.not_updatable",
            f"{model}:{variant.id} does not come from a hub, so nobody can be asked what is new",
            place=variant.source,
            next_step="change the entry by hand",
        )
    found = await read_repository(fetcher, source.repository, to)
    chosen = choose_files(found, [file.path for file in variant.files])
    files = await hashed_files(fetcher, found, chosen)
    fresh = [_file(file) for file in files]
    same = _same_bytes(variant, fresh)
    fields: dict[str, Any] = {"revision": found.commit, "files": fresh}
    shape = None if same else await remote_shape(fetcher, found, _gguf(chosen))
    if shape is not None:
        fields["shape"] = shape_data(shape)
    if source.revision is not None:
        fields["source"] = f"hf:{source.repository}"
    total = sum(file.size_bytes for file in files)
    done = Updated(model, variant.id, variant.revision, found.commit, variant.total_bytes, total, not same)
    return done, fields


def _gguf(paths: Sequence[str]) -> list[str]:
    return [path for path in paths if path.lower().endswith(".gguf")]


def _file(file: HubFile) -> dict[str, Any]:
    return {"path": file.path, "sha256": file.sha256, "size_bytes": file.size_bytes}


def _same_bytes(variant: CatalogVariant, files: Sequence[Mapping[str, Any]]) -> bool:
    return {(one.path, one.sha256) for one in variant.files} == {(one["path"], one["sha256"]) for one in files}


def _hub_reference(reference: str) -> tuple[str, str | None]:
    text = reference if reference.startswith("hf:") else f"hf:{reference}"
    try:
        source = parse_source(text)
    except InputError as error:
        raise InputError(
            "catalog.reference_invalid",
            f'"{reference[:200]}" names no repository of a model hub',
            next_step="write hf:Org/Repo or hf:Org/Repo@revision",
        ) from error
    assert isinstance(source, HfSource)
    return source.repository, source.revision


def _selected(document: CatalogDocument, wanted: Sequence[str], path: Path) -> list[tuple[str, CatalogVariant]]:
    """(model, variant) in catalog order. Raises InputError `catalog.unknown_model`, `catalog.unknown_variant`."""
    listed = [(name, variant) for name, model in document.models.items() for variant in model.variants]
    if not wanted:
        return listed
    chosen = []
    for word in wanted:
        name, _, variant_id = word.partition(":")
        if name not in document.models:
            close = did_you_mean(name, document.models)
            raise InputError(
                "catalog.unknown_model",
                f'this catalog has no model "{name}"',
                place=str(path),
                next_step=f'did you mean "{close}"?'
                if close
                else "the entries that came with the program need no care of yours",
            )
        found = [(model, one) for model, one in listed if model == name and variant_id in ("", one.id)]
        if not found:
            known = ", ".join(one.id for one in document.models[name].variants) or "none"
            raise InputError(
                "catalog.unknown_variant",
                f'"{name}" has no variant "{variant_id}" in this catalog',
                place=str(path),
                next_step=f"it has: {known}",
            )
        chosen += found
    return chosen


def _checked(path: Path) -> CatalogDocument:
    """Raises InputError `file.missing`, ConfigError with every finding."""
    if not path.exists():
        raise InputError(
            "file.missing", "there is no catalog here", place=str(path), next_step="sbctl catalog add hf:Org/Repo"
        )
    report = Report()
    document = read_catalog_file(report, path, None)
    if document is None:
        raise ConfigError(tuple(report.diagnostics))
    return document


def _text(path: Path) -> str:
    return read_bounded(path, max_bytes=CATALOG_MAX_BYTES).decode() if path.exists() else EMPTY_CATALOG


def _write(path: Path, text: str) -> None:
    """Raises InputError `catalog.entry_invalid` for what the next reader would refuse."""
    try:
        document = parse_document(parse_yaml(text.encode(), str(path), max_bytes=CATALOG_MAX_BYTES).value)
        problem = next((one.message for one in rule_problems(document)), None)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        problem = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    if problem is not None:
        raise InputError(
            "catalog.entry_invalid",
            f"the catalog would not be valid with this entry: {display_safe(problem, max_chars=300)}",
            place=str(path),
            next_step="choose another --id or --variant, or correct the catalog",
        )
    write_atomic(path, text.encode(), mode=0o644)


def _with_fetcher(ask: Callable[[Fetcher], Awaitable[T]]) -> T:
    async def run() -> T:
        async with Fetcher(FetchSettings.from_environ(os.environ)) as fetcher:
            return await ask(fetcher)

    return asyncio.run(run())

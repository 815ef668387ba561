"""Weights that other programs have are taken by digest, and their files stay as they were."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.foreign_caches import foreign_caches
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base import fs
from sbctl.base.errors import ArtifactError
from tests.simulators.artifact_samples import artifact_of

WEIGHTS = b"weights of some model"
SETTINGS = b'{"small": true}'
DIGEST = hashlib.sha256(WEIGHTS).hexdigest()
FACTS = artifact_of({"w.dat": WEIGHTS, "config.json": SETTINGS}, "hf:Some/Model")


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def ollama(home: Path, data: bytes) -> Path:
    return put(home / ".ollama/models/blobs" / f"sha256-{DIGEST}", data)


def hub(home: Path, data: bytes) -> Path:
    return put(home / ".cache/huggingface/hub/models--Some--Model/blobs" / DIGEST, data)


def lm_studio(home: Path, data: bytes) -> Path:
    return put(home / ".lmstudio/models/publisher/model/w.bin", data)


PLACES: list[tuple[str, Callable[[Path, bytes], Path]]] = [
    ("ollama", ollama),
    ("huggingface", hub),
    ("lm-studio", lm_studio),
]


async def offline(tmp_path: Path, facts: ArtifactFacts, environ: dict[str, str]) -> ArtifactCache:
    cache = ArtifactCache(tmp_path / "cache")
    await pull(cache, facts, offline=True, foreign=foreign_caches(environ))
    return cache


@pytest.mark.parametrize(("kind", "place"), PLACES, ids=[kind for kind, _ in PLACES])
async def test_what_another_program_has_is_not_fetched_again(
    tmp_path: Path, kind: str, place: Callable[[Path, bytes], Path]
) -> None:
    home = tmp_path / "home"
    theirs = place(home, WEIGHTS)
    put(home / ".cache/huggingface/hub/models--Some--Model/blobs/0123abcd", SETTINGS)
    cache = ArtifactCache(tmp_path / "cache")
    result = await pull(cache, FACTS, offline=True, foreign=foreign_caches({"HOME": str(home)}))
    assert (result.downloaded_bytes, result.imported_bytes) == (0, len(WEIGHTS) + len(SETTINGS))
    assert kind in result.imported_from
    assert cache.verify(FACTS.artifact).is_good
    assert theirs.read_bytes() == WEIGHTS
    theirs.unlink()
    assert cache.verify(FACTS.artifact).is_good


async def test_where_no_second_name_can_be_made_the_bytes_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "home"
    theirs = ollama(home, WEIGHTS)

    class NoLinks(fs.FileOps):
        def link(self, source: str, target: str) -> None:
            raise OSError(18, "another filesystem")

    facts = artifact_of({"w.dat": WEIGHTS}, "hf:Some/Model")
    monkeypatch.setattr("sbctl.artifacts.foreign_caches.reflink", lambda *_: False)
    with fs.use_ops(NoLinks()):
        cache = await offline(tmp_path, facts, {"HOME": str(home)})
    assert cache.verify(facts.artifact).is_good
    assert theirs.stat().st_mode & 0o200, "their file keeps its rights"


@pytest.mark.parametrize("spoil", ["other bytes", "other size", "a link", "unreadable name"])
async def test_a_file_that_only_looks_right_is_not_taken(tmp_path: Path, spoil: str) -> None:
    home = tmp_path / "home"
    theirs = ollama(home, {"other bytes": WEIGHTS[::-1], "other size": WEIGHTS + b"x"}.get(spoil, WEIGHTS))
    if spoil == "a link":
        real = put(tmp_path / "elsewhere", WEIGHTS)
        theirs.unlink()
        theirs.symlink_to(real)
    if spoil == "unreadable name":
        theirs.rename(theirs.with_name(f"sha256-{DIGEST}-partial"))
    with pytest.raises(ArtifactError) as caught:
        await offline(tmp_path, artifact_of({"w.dat": WEIGHTS}, "hf:Some/Model"), {"HOME": str(home)})
    assert caught.value.code == "artifact.offline_missing"
    assert caught.value.detail == {"missing": ["w.dat"]}
    assert not (tmp_path / "cache" / "blobs" / "sha256" / DIGEST).exists()


def test_places_are_those_of_the_environment_and_only_what_is_there(tmp_path: Path) -> None:
    assert foreign_caches({}) == foreign_caches({"HOME": str(tmp_path / "nobody")})
    (tmp_path / "models").mkdir()
    (tmp_path / "hf" / "hub").mkdir(parents=True)
    found = foreign_caches({"OLLAMA_MODELS": str(tmp_path / "models"), "HF_HOME": str(tmp_path / "hf")})
    assert {(one.kind, one.root) for one in found} >= {
        ("ollama", tmp_path / "models"),
        ("huggingface", tmp_path / "hf" / "hub"),
    }
    assert all(one.kind != "ollama" for one in foreign_caches({"OLLAMA_MODELS": "models"}))

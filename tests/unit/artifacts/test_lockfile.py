"""The lockfile: files decide, provenance does not; every kind of drift has its name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.artifacts.lockfile import (
    LOCK_NAME,
    WantedModel,
    compared,
    drifted,
    lock_of,
    read_lock,
    refuse_drift,
    write_lock,
)
from sbctl.artifacts.split_sets import split_problem
from sbctl.base.errors import InputError, RefusedError
from tests.simulators.artifact_samples import artifact_of

FACTS = artifact_of({"w.gguf": b"weights"}, "hf:A/B").model_copy(update={"catalog_digest": "c" * 64, "revision": "1"})
CHANGED = artifact_of({"w.gguf": b"others!"}, "hf:A/B")
WANTED = WantedModel(FACTS, "llama_cpp", "1.0", catalog_revision="r1")
LOCK = lock_of([WANTED, WANTED], now_ms=1)


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / LOCK_NAME
    write_lock(path, LOCK)
    assert read_lock(path) == LOCK
    text = path.read_text()
    assert text.endswith("}\n")
    document = json.loads(text)
    assert document["models"] == [
        {
            "name": "tiny",
            "variant_id": "q",
            "artifact_digest": "c" * 64,
            "source": "hf:A/B",
            "revision": "1",
            "files": [FACTS.files[0].model_dump()],
            "engine": {"kind": "llama_cpp", "version": "1.0"},
        }
    ]
    assert (document["schema_version"], document["generated_at_ms"], document["catalog_revision"]) == (1, 1, "r1")


MOVED = FACTS.model_copy(update={"source": "https://mirror/", "revision": "2", "catalog_digest": "d" * 64})
CASES = [
    ("ok", WANTED, "ready"),
    ("ok", replace(WANTED, facts=MOVED, catalog_revision="r2"), "ready"),
    ("missing", WANTED, None),
    ("missing", WANTED, "partial"),
    ("digest_mismatch", WANTED, "corrupt"),
    ("digest_mismatch", replace(WANTED, facts=CHANGED), "ready"),
    ("unlocked", replace(WANTED, facts=FACTS.model_copy(update={"variant": "q8"})), "ready"),
    ("engine_changed", replace(WANTED, engine_version="2.0"), "ready"),
]


@pytest.mark.parametrize(("status", "wanted", "state"), CASES)
def test_each_kind_of_drift(status: str, wanted: WantedModel, state: str | None) -> None:
    rows = compared(LOCK, [wanted], cached=lambda _facts: state)
    assert rows[-1].status == status
    assert drifted(rows) == (status != "ok")
    if status == "ok":
        refuse_drift(Path("lock"), rows)
    else:
        with pytest.raises(RefusedError) as caught:
            refuse_drift(Path("lock"), rows)
        assert caught.value.code == "models_lock.drift"
        assert status in caught.value.message


def test_what_nothing_is_configured_with_is_no_drift_and_one_model_may_have_two_builds() -> None:
    assert [row.status for row in compared(LOCK, [])] == ["unused"]
    assert not drifted(compared(LOCK, []))
    both = [WANTED, replace(WANTED, engine_version=None)]
    lock = lock_of(both, now_ms=1)
    assert len(lock.models) == 2
    assert not drifted(compared(lock, both))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "models_lock.missing"),
        ("{", "models_lock.invalid"),
        ('{"schema_version": 2, "generated_at_ms": 0, "models": []}', "models_lock.invalid"),
        ('{"schema_version": 1, "generated_at_ms": 0, "models": [{"name": ""}]}', "models_lock.invalid"),
        ('{"schema_version": 1, "schema_version": 1, "generated_at_ms": 0, "models": []}', "models_lock.invalid"),
    ],
)
def test_a_lock_that_cannot_be_read_says_so(tmp_path: Path, text: str | None, code: str) -> None:
    path = tmp_path / LOCK_NAME
    if text is not None:
        path.write_text(text)
    with pytest.raises(InputError) as caught:
        read_lock(path)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("paths", "problem"),
    [
        (["w.gguf"], None),
        (["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], None),
        (["a/m-00001-of-00002.gguf", "b/m-00002-of-00002.gguf"], "is missing"),
        (["m-00002-of-00002.gguf"], "m-00001-of-00002.gguf is missing"),
        (["m-00001-of-00001.gguf", "m-00002-of-00001.gguf"], "counts beyond"),
        (["m-00001-of-00001.gguf", "m-00001-of-00002.gguf", "m-00002-of-00002.gguf"], "count their parts differently"),
    ],
)
def test_a_split_set_is_whole_or_named(paths: list[str], problem: str | None) -> None:
    found = split_problem(paths)
    assert (found is None) if problem is None else (found is not None and problem in found)

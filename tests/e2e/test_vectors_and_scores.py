"""Embeddings and rerank with the real engine, through the gateway: small BERT models from a seed, of which shape, order and repeatability count."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from sbctl.base.digests import sha256_bytes
from tests.simulators.bert_files import EMBEDDING, bert_gguf
from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


def _entry(world: OperatorWorld, name: str, modality: str) -> dict[str, Any]:
    data = bert_gguf(ranks=modality == "rerank")
    weights = world.root / f"{name}.gguf"
    weights.write_bytes(data)
    variant = {
        "id": "f32",
        "format": "gguf",
        "quant": "F32",
        "engines": ["llama_cpp"],
        "source": f"file:{weights}",
        "revision": "1",
        "files": [{"path": weights.name, "sha256": sha256_bytes(data), "size_bytes": len(data)}],
        "requirements": {"accelerators": ["cpu"], "min_memory_bytes": 1},
        "stability": "stable",
        "certification": "tests",
    }
    return {
        "params": "1M",
        "family": "bert",
        "license": "apache-2.0",
        "context_length": 512,
        "modality": modality,
        "variants": [variant],
    }


@pytest.fixture(scope="module")
def world() -> Iterator[OperatorWorld]:
    with new_world() as made:
        models = {"vectors": _entry(made, "vectors", "embedding"), "scores": _entry(made, "scores", "rerank")}
        catalog = {"schema_version": 2, "catalog_revision": "tests-1", "models": models}
        (made.fleet / "models.yaml").write_text(json.dumps(catalog))
        host = made.config["proxy"]["model_host"]
        host["engines"] = {"llama_cpp": {"launch": "wheel"}}
        host["deployments"] = {
            name: {"model": name, "pull": "on_boot", "warm": True, "max_concurrency": 2} for name in models
        }
        made.config["origins"] = {"localhost": {"action": made.serving(vectors=["vectors"], scores=["scores"])}}
        made.config["fleet"] = {"hosts": {"machine": {"address": "local", "delivery": "push"}}}
        made.sbctl("apply", "--yes", expect=0)
        yield made


def test_vectors_come_in_the_order_of_the_texts_and_the_same_each_time(world: OperatorWorld) -> None:
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{world.port}/v1", api_key="none", timeout=120, max_retries=0)
    texts = ["the cat", "the stock market of berlin", "weather"]
    first = client.embeddings.create(model="vectors", input=texts)
    assert [one.index for one in first.data] == [0, 1, 2]
    assert first.model == "vectors"
    assert first.usage.prompt_tokens > len(texts)
    for one in first.data:
        assert len(one.embedding) == EMBEDDING
        assert math.isclose(sum(value * value for value in one.embedding), 1.0, abs_tol=1e-3)
    again = client.embeddings.create(model="vectors", input=texts[1])
    for here, there in zip(again.data[0].embedding, first.data[1].embedding, strict=True):
        assert math.isclose(here, there, abs_tol=1e-4)
    packed = client.embeddings.create(model="vectors", input=texts[0], encoding_format="base64")
    assert packed.data[0].embedding


def test_scores_are_one_for_each_document_and_belong_to_it(world: OperatorWorld) -> None:
    documents = ["paris is the capital of france", "a dog", "the weather in berlin"]
    asked = {"query": "capital of france", "documents": documents}
    status, answer = world.ask("/v1/rerank", model="scores", **asked, messages=None, max_tokens=None)
    assert status == 200, answer
    assert answer["model"] == "scores"
    scores = {row["index"]: row["relevance_score"] for row in answer["results"]}
    assert sorted(scores) == [0, 1, 2]
    turned = world.ask(
        "/v1/rerank", model="scores", query=asked["query"], documents=documents[::-1], messages=None, max_tokens=None
    )
    for row in turned[1]["results"]:
        assert math.isclose(row["relevance_score"], scores[2 - row["index"]], abs_tol=1e-3)


def test_a_model_answers_what_it_is_for_and_a_text_beyond_its_context_is_refused(world: OperatorWorld) -> None:
    assert world.ask(model="vectors")[0] == 400
    status, answer = world.ask("/v1/embeddings", model="vectors", input="cat " * 5000, messages=None, max_tokens=None)
    assert status == 400, answer
    shown = {row["id"]: row for row in world._request(world.port, "GET", "/v1/models", None, {})[1]["data"]}
    assert set(shown) == {"vectors", "scores"}

"""What a newcomer does, with the real engine and the real small model: plan, apply, ask, change, remove."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from typing import Any

import openai
import psutil
import pytest

from tests.simulators.operator_world import ROOT, OperatorWorld, new_world, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
ROWS = ("host.local", "runtime.local", "engine.local/llama_cpp", "artifact.local/smollm2-135m-instruct:q4_1", "bundle.local",
        "deployment.local/chat", "origin.local/localhost")  # fmt: skip


def _write_quickstart(world: OperatorWorld, concurrency: int = 2) -> None:
    """The file of examples/quickstart on free ports. Weights and engine come once, by way of the shared cache."""
    text = (ROOT / "examples" / "quickstart" / "sb.yml").read_text()
    for old, new in (
        ("http_bind_port: 8080", f"http_bind_port: {world.port}"),
        ("port: 9090", f"port: {world.admin_port}"),
        ("max_concurrency: 2", f"max_concurrency: {concurrency}"),
    ):
        assert old in text
        text = text.replace(old, new)
    world.file.write_text(
        f"{text}fleet: {{name: quickstart, hosts: {{local-machine: {{address: local, delivery: push}}}}}}\n"
    )


@pytest.fixture(scope="module")
def quickstart() -> Iterator[OperatorWorld]:
    """Applied, with two slots."""
    with new_world() as world:
        _write_quickstart(world)
        planned = world.sbctl("plan", save=False, expect=2)
        for row in ROWS:
            assert f"+ {row.replace('.local', '.local-machine', 1)}" in planned.text
        assert "Plan: 7 to add, 0 to change, 0 to remove. Blast radius: hitless." in planned.text
        assert "93.8 MiB" in planned.text
        world.sbctl("apply", "--yes", save=False, expect=0)
        yield world


def _client(world: OperatorWorld) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{world.port}/v1", api_key="none", timeout=120, max_retries=0)


def test_the_model_answers_the_official_client(quickstart: OperatorWorld) -> None:
    client = _client(quickstart)
    assert [model.id for model in client.models.list()] == ["smollm2"]
    answer = client.chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=24, temperature=0)  # type: ignore[arg-type]
    assert "Paris" in str(answer.choices[0].message.content)
    assert answer.model == "smollm2"
    assert answer.usage is not None
    assert answer.usage.completion_tokens > 0


def test_the_model_streams_to_the_official_client(quickstart: OperatorWorld) -> None:
    client = _client(quickstart)
    stream: Any = client.chat.completions.create(
        model="smollm2",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=24,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(chunks) > 4, "tokens come one by one"
    assert chunks[-1].usage.completion_tokens > 0


def test_a_text_completion_and_an_unknown_model(quickstart: OperatorWorld) -> None:
    client = _client(quickstart)
    answer = client.completions.create(model="smollm2", prompt="The capital of France is", max_tokens=4, temperature=0)
    assert answer.choices[0].text
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-9", messages=QUESTION)  # type: ignore[arg-type]


def test_a_client_that_leaves_stops_the_engine(quickstart: OperatorWorld) -> None:
    def busy() -> int:
        return int(quickstart.status()[0]["active_requests"])

    connection = http.client.HTTPConnection("127.0.0.1", quickstart.port, timeout=60)
    body = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "Tell a long story."}],
        "max_tokens": 4000,
        "stream": True,
    }
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = connection.getresponse()
    assert answer.readline().startswith(b"data:")
    assert busy() == 1
    answer.close()
    connection.close()
    until(lambda: busy() == 0, "the slot is free", 30)
    engine = next(process for process in quickstart.processes() if "launcher" in " ".join(process.cmdline()))

    def idle() -> bool:
        before = engine.cpu_times()
        time.sleep(0.4)
        after = engine.cpu_times()
        return (after.user - before.user) < 0.2

    until(idle, "the engine computes no more", 30)


def test_output_says_how_to_use_it(quickstart: OperatorWorld) -> None:
    (endpoint,) = quickstart.sbctl("output", "--format", "json", save=False, expect=0).json()["endpoints"]
    assert endpoint["base_url"] == f"http://127.0.0.1:{quickstart.port}/v1"
    assert endpoint["model"] == "smollm2"
    done = quickstart.sbctl("output", save=False, expect=0)
    assert f"http://127.0.0.1:{quickstart.port}/v1" in done.text


def test_a_change_is_served_and_destroy_leaves_nothing_behind(quickstart: OperatorWorld) -> None:
    assert "No changes" in quickstart.sbctl("plan", save=False, expect=0).out
    _write_quickstart(quickstart, concurrency=1)
    planned = quickstart.sbctl("plan", save=False, expect=2)
    assert "0 to add, 1 to change, 0 to remove. Blast radius: reload." in planned.text
    quickstart.sbctl("apply", "--yes", save=False, expect=0)
    answer = _client(quickstart).chat.completions.create(model="smollm2", messages=QUESTION, max_tokens=4)  # type: ignore[arg-type]
    assert answer.choices
    ours = [process.pid for process in quickstart.processes()]
    assert len(ours) >= 3
    quickstart.sbctl("destroy", "--yes", save=False, expect=0)
    assert quickstart.processes() == []
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in ours)
    assert not quickstart.listens(quickstart.port)
    assert not quickstart.listens(quickstart.admin_port)
    assert not quickstart.prefix.exists()
    left = sorted(path.name for path in quickstart.fleet.rglob("*") if path.is_file())
    assert left == sorted(["sb.yml", "models.yaml", "state.db", "fence.json", "backup.json", "lock", "seen.json"])
    assert [path.name for path in quickstart.home.rglob("*") if path.is_file()] == ["operator.key"]
    quickstart.sbctl("destroy", "--yes", save=False, expect=0)

"""The daemon through the official client, and as a program that keeps its secrets."""

from __future__ import annotations

import base64
import http.client
import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from sbctl.base.digests import sha256_bytes
from sbctl.trust.bundle import ApiKeyEntry
from tests.simulators.runtime_world import (
    LINEAGE,
    Operator,
    RuntimeProcess,
    content,
    engine_program,
    is_alive,
    member,
    prepare_node,
    running,
    weights,
)

pytestmark = pytest.mark.integration

KEY = "sk-canary-0123456789"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[RuntimeProcess]:
    operator = Operator()
    prepare_node(tmp_path, operator, admin_enabled=True)
    keys = {"app": ApiKeyEntry(sha256=sha256_bytes(KEY.encode()))}
    with running(tmp_path) as runtime:
        desired = content({"q": member(weights(tmp_path), engine_program(tmp_path))}, api_keys=keys)
        assert "result" in runtime.apply(operator.bundle(desired, 1), None)
        yield runtime


def _client(runtime: RuntimeProcess, key: str = KEY) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{runtime.status()['http_url']}/v1", api_key=key, max_retries=0)


def test_models_answers_and_streams_through_the_official_client(served: RuntimeProcess) -> None:
    with _client(served) as client:
        assert [model.id for model in client.models.list()] == ["q-model"]
        ask: Any = {"model": "q-model", "messages": [{"role": "user", "content": "one two"}], "max_tokens": 3}
        whole = client.chat.completions.create(**ask)
        assert whole.choices[0].message.content == "echo one two "
        assert (whole.model, whole.choices[0].finish_reason, whole.usage.completion_tokens) == ("q-model", "length", 3)
        stream = client.chat.completions.create(**ask, stream=True, stream_options={"include_usage": True})
        chunks = list(stream)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == whole.choices[0].message.content
        assert {chunk.model for chunk in chunks} == {"q-model"}
        assert chunks[-1].usage.total_tokens == 5
        text_completion = client.completions.create(model="q-model", prompt="a b", max_tokens=2)
        assert text_completion.choices[0].text == "echo a "


def test_refusals_become_the_client_s_own_exceptions(served: RuntimeProcess) -> None:
    ask: Any = {"model": "q-model", "messages": [{"role": "user", "content": "Hi"}]}
    with _client(served, "wrong") as stranger, pytest.raises(openai.AuthenticationError):
        stranger.chat.completions.create(**ask)
    with _client(served) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(**{**ask, "model": "gpt"})
        assert missing.value.code == "unknown_model"
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**ask, extra_body={"n_discard": -1})
        assert "n_discard" in str(refused.value)
        long = {**ask, "messages": [{"role": "user", "content": "word " * 600}]}
        with pytest.raises(openai.BadRequestError, match="context"):
            client.chat.completions.create(**long)


def test_H1_secrets_are_in_no_log_argv_status_or_state(served: RuntimeProcess) -> None:
    with _client(served) as client:
        client.chat.completions.create(
            model="q-model", messages=[{"role": "user", "content": "canary-prompt"}], max_tokens=1
        )
    (pid,) = served.engine_pids()
    process = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ"))
    files = [path for path in served.paths.state.rglob("*") if path.is_file()]
    haystack = (
        b"".join(path.read_bytes() for path in (*files, served.log)) + process + json.dumps(served.status()).encode()
    )
    for secret in (KEY.encode(), b"correct horse", b"canary-prompt"):
        assert secret not in haystack, secret


def test_H5_what_the_daemon_writes_is_its_own_alone(served: RuntimeProcess) -> None:
    for path in (served.paths.state, *served.paths.state.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0 or path.is_socket(), path
    assert served.paths.control_socket.stat().st_mode & 0o777 == 0o600


def test_a_file_by_hand_serves_and_takes_no_bundle(tmp_path: Path) -> None:
    operator = Operator()
    prepare_node(tmp_path, operator)
    desired = content({"q": member(weights(tmp_path), engine_program(tmp_path))})
    file = tmp_path / "mine.json"
    runtime = {"lineage": LINEAGE, "host": "local", "http_bind_port": 0}
    file.write_text(json.dumps({"runtime": runtime, "content": desired.model_dump(mode="json")}))
    with running(tmp_path, "--config", str(file)) as served:
        served.await_state("q", "ready")
        assert served.ask()[0] == 200
        (pid,) = served.engine_pids()
        assert served.status()["started_by_hand"] is True
        assert served.apply(operator.bundle(desired, 1), None)["error"]["code"] == "runtime.started_by_hand"
        more = content({**desired.deployments, "r": next(iter(desired.deployments.values()))})
        file.write_text(json.dumps({"runtime": runtime, "content": more.model_dump(mode="json")}))
        served.process.send_signal(signal.SIGHUP)
        served.await_state("r", "ready")
        file.write_text("{")  # taken up by the watch, and not taken
        end_s = time.monotonic() + 30
        while "the file is not taken" not in served.log.read_text() and time.monotonic() < end_s:
            time.sleep(0.1)
        assert "json.invalid" in served.log.read_text()
        assert (served.ask(model="q-model")[0], served.engine_pids()[0]) == (200, pid)
    assert not is_alive(pid)


def test_the_admin_api_owns_the_deployments_where_it_is_told_to(tmp_path: Path) -> None:
    """Over HTTP: seeded, read, compared and set, and there again after a restart."""
    operator = Operator()
    prepare_node(tmp_path, operator, admin_enabled=True, authority="admin_managed")
    desired = content({"q": member(weights(tmp_path), engine_program(tmp_path))})

    def ask(served: RuntimeProcess, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection(served.status()["admin_url"].removeprefix("http://"), timeout=60)
        credentials = base64.b64encode(b"admin:correct horse").decode()
        headers = {"Authorization": f"Basic {credentials}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    path = "/admin/model-host/deployments"
    with running(tmp_path) as served:
        assert served.apply(operator.bundle(desired, 1), None)["result"]["revision"] == 1
        status, shown = ask(served, "GET", path)
        assert (status, shown["revision"], shown["read_only"]) == (200, 1, False)
        wanted = {**shown["deployments"], "r": {**shown["deployments"]["q"], "warm": False}}
        assert ask(served, "PUT", path, {"expected_revision": None, "deployments": wanted})[0] == 409
        status, answer = ask(served, "PUT", path, {"expected_revision": 1, "deployments": wanted})
        assert (status, answer["revision"], answer["plan"]["added"]) == (200, 2, ["r"])
        assert ask(served, "POST", "/admin/reload", {})[1]["code"] == "authority_read_only"
    with running(tmp_path) as served:
        served.await_state("q", "ready")
        assert sorted(row["deployment"] for row in served.status()["deployments"]) == ["q", "r"]
        assert served.status()["bundle"]["deployments_revision"] == 2

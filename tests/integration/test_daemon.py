"""The daemon as a process, with an engine program: what it promises across bundles, crashes, restarts and kills."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.trust.bundle import ApiKeyEntry, OriginMember
from tests.simulators.runtime_world import (
    Operator,
    RuntimeProcess,
    behaves,
    content,
    engine_program,
    is_alive,
    member,
    prepare_node,
    running,
    weights,
)

pytestmark = pytest.mark.integration


def _until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.02)


@pytest.fixture
def operator() -> Operator:
    return Operator()


@pytest.fixture
def node(tmp_path: Path, operator: Operator) -> Path:
    prepare_node(tmp_path, operator)
    return tmp_path


def _stream(runtime: RuntimeProcess, tokens: int = 30) -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
    host = runtime.status()["http_url"].removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=60)
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": tokens})
    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    return connection, connection.getresponse()


def test_a_warm_bundle_serves_before_it_is_reported_and_names_map_both_ways(node: Path, operator: Operator) -> None:
    program = engine_program(node)
    with running(node) as runtime:
        outcome = runtime.apply(operator.bundle(content({"q": member(weights(node), program)}), 1), None)
        assert outcome["result"]["report"]["added"] == ["q"]
        assert outcome["result"]["report"]["deployments"][0]["state"] == "ready"
        status, answer, headers = runtime.ask()
        assert (status, answer["model"]) == (200, "q-model")
        assert headers["x-sbproxy-logical-model"] == "q-model"
        assert headers["x-sbproxy-route-class"] == "local"
        status, text, _ = runtime.ask(stream=True)
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")
        assert '"model":"q-model"' in text
        assert '"q"' not in text


def test_a_bad_candidate_changes_nothing(node: Path, operator: Operator) -> None:
    good = engine_program(node, "good")
    bad = engine_program(node, "bad", exit_at_once=3)
    artifact = weights(node)
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(artifact, good)}), 1), None)
        before = runtime.engine_pids()
        for broken, code in (
            (member(artifact, bad), "engine_early_exit"),
            (member(artifact, node / "missing"), "engine"),
            (member(weights(node, "other"), good, pull="manual"), "artifact"),
        ):
            outcome = runtime.apply(operator.bundle(content({"q": broken}), 2), 1)
            assert outcome["error"]["code"].startswith(code), outcome
            assert outcome["error"]["place"] == "deployment.local/q"
        assert runtime.engine_pids() == before
        assert runtime.status()["bundle"]["revision"] == 1
        assert runtime.ask()[0] == 200


def test_a_policy_change_keeps_the_engine_and_an_engine_change_replaces_it(node: Path, operator: Operator) -> None:
    program = engine_program(node)
    artifact = weights(node)
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(artifact, program)}), 1), None)
        first = runtime.engine_pids()
        adjusted = runtime.apply(operator.bundle(content({"q": member(artifact, program, max_queue_depth=9)}), 2), 1)
        assert adjusted["result"]["report"]["adjusted"] == ["q"]
        assert runtime.engine_pids() == first
        changed = runtime.apply(operator.bundle(content({"q": member(artifact, program, max_concurrency=3)}), 3), 2)
        assert changed["result"]["report"]["changed"] == ["q"]
        assert runtime.engine_pids() != first
        assert not is_alive(first[0])
        emptied = runtime.apply(operator.bundle(content({}), 4), 3)
        assert emptied["result"]["report"]["removed"] == ["q"]
        assert runtime.engine_pids() == []


@pytest.mark.parametrize("rollout", ["rolling", "recreate"])
def test_a_rollout_under_load_loses_no_request(node: Path, operator: Operator, rollout: str) -> None:
    program = engine_program(node, token_delay_s=0.01, slow_load_s=0.3)
    artifact = weights(node)
    answers: list[int] = []
    stop = threading.Event()
    with running(node) as runtime:
        make = lambda depth: member(artifact, program, rollout=rollout, max_concurrency=depth)  # noqa: E731
        runtime.apply(operator.bundle(content({"q": make(2)}), 1), None)

        def load() -> None:
            while not stop.is_set():
                answers.append(runtime.ask(stream=True)[0])

        threads = [threading.Thread(target=load) for _ in range(3)]
        for thread in threads:
            thread.start()
        for revision in (2, 3):
            assert "result" in runtime.apply(
                operator.bundle(content({"q": make(revision + 1)}), revision), revision - 1
            )
        stop.set()
        for thread in threads:
            thread.join()
    assert set(answers) == {200}


def test_recreate_restores_the_old_when_the_new_does_not_start(node: Path, operator: Operator) -> None:
    good, bad = engine_program(node, "good"), engine_program(node, "bad", exit_at_once=3)
    artifact = weights(node)
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(artifact, good, rollout="recreate")}), 1), None)
        outcome = runtime.apply(operator.bundle(content({"q": member(artifact, bad, rollout="recreate")}), 2), 1)
        assert outcome["error"]["code"] == "engine_early_exit"
        assert runtime.ask()[0] == 200


def test_G11_an_unexpected_revision_is_refused_with_both_numbers(node: Path, operator: Operator) -> None:
    desired = content({"q": member(weights(node), engine_program(node))})
    with running(node) as runtime:
        runtime.apply(operator.bundle(desired, 1), None)
        error = runtime.apply(operator.bundle(desired, 2), 7)["error"]
        assert error["code"] == "bundle.revision_conflict"
        assert error["detail"] == {"expected_revision": 7, "actual_revision": 1}
        assert runtime.apply(operator.bundle(desired, 1, expires_at=None), None)["result"]["revision"] == 1
        assert runtime.apply(Operator().bundle(desired, 2), 1)["error"]["code"] == "envelope.bad_signature"


def test_a_killed_engine_is_restarted_and_status_says_why(node: Path, operator: Operator) -> None:
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(weights(node), engine_program(node))}), 1), None)
        (pid,) = runtime.engine_pids()
        os.kill(pid, signal.SIGKILL)
        row = runtime.await_state("q", "failed")
        assert row["replicas"][0]["reason_code"] == "engine_exited"
        assert "SIGKILL" in row["last_error"]
        assert runtime.ask()[0] == 200, "a request waits for the restart"
        row = runtime.await_state("q", "ready")
        assert row["replicas"][0]["restarts"] == 1
        assert row["replicas"][0]["pid"] != pid


@pytest.mark.parametrize("behave", [{}, {"fork_child": True, "fork_session": True}, {"ignore_sigterm": True}])
def test_F24_a_killed_daemon_leaves_no_engine_and_the_next_serves_again(
    node: Path, operator: Operator, behave: dict[str, bool]
) -> None:
    runtime = RuntimeProcess(node)
    runtime.await_healthy()
    runtime.apply(operator.bundle(content({"q": member(weights(node), engine_program(node, **behave))}), 1), None)
    (pid,) = runtime.engine_pids()
    family = [int(name) for name in os.listdir("/proc") if name.isdigit() and _has_token_of(int(name), pid)]
    assert runtime.stop(signal.SIGKILL) == -signal.SIGKILL
    _until(lambda: not is_alive(pid))
    with running(node) as again:
        assert not any(is_alive(member_pid) for member_pid in family), (
            "what outlived the daemon is reaped before it serves"
        )
        again.await_state("q", "ready")
        behaves(node / "llama-server")
        assert again.ask()[0] == 200
        assert again.status()["bundle"]["revision"] == 1
        assert len(list((node / "state" / "engines").glob("*.json"))) == 1


def _token(pid: int) -> bytes | None:
    try:
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return None
    return next((entry for entry in entries if entry.startswith(b"SBCTL_ENGINE_TOKEN=")), None)


def _has_token_of(pid: int, engine: int) -> bool:
    return _token(pid) is not None and _token(pid) == _token(engine)


def test_a_restarted_runtime_is_not_healthy_before_it_has_its_bundle_again(node: Path, operator: Operator) -> None:
    bundle = operator.bundle(content({"q": member(weights(node), engine_program(node))}), 1)
    with running(node) as runtime:
        runtime.apply(bundle, None)
        runtime.process.kill()
        runtime.process.wait()
    for _ in range(3):
        runtime = RuntimeProcess(node)
        try:
            status: dict[str, Any] = {}
            _until(lambda runtime=runtime: runtime.paths.control_socket.exists() or runtime.process.poll() is not None)
            while not status.get("healthy"):
                try:
                    status = runtime.status()
                except OSError:
                    status = {}
            assert status["bundle"]["revision"] == 1
        finally:
            runtime.process.kill()
            runtime.process.wait()


def test_an_explicit_stop_holds_across_a_restart_until_the_next_bundle(node: Path, operator: Operator) -> None:
    desired = content({"q": member(weights(node), engine_program(node))})
    with running(node) as runtime:
        runtime.apply(operator.bundle(desired, 1), None)
        assert runtime.act("q", "stop")[1]["stopped_by"] == "operator"
        assert runtime.engine_pids() == []
        status, answer, headers = runtime.ask()
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "stopped", "1")
        assert runtime.act("nothing", "stop")[0] == 404
    with running(node) as runtime:
        assert runtime.status()["deployments"][0]["stopped_by"] == "operator"
        assert runtime.ask()[0] == 503
        runtime.apply(operator.bundle(desired, 1), 1)
        assert runtime.ask()[0] == 200
        runtime.act("q", "stop")
        assert runtime.act("q", "load")[1]["state"] == "ready"


def test_a_cleared_bundle_stops_everything_and_the_fence_stays(node: Path, operator: Operator) -> None:
    desired = content({"q": member(weights(node), engine_program(node))})
    with running(node) as runtime:
        runtime.apply(operator.bundle(desired, 5), None)
        (pid,) = runtime.engine_pids()
        assert runtime.call("DELETE", "/control/v1/bundle") == (200, b"{}")
        assert not is_alive(pid)
        assert runtime.status()["bundle"] is None
        assert runtime.http("GET", "/v1/models")[0] == 404
        assert runtime.apply(operator.bundle(desired, 4), None)["error"]["code"] == "bundle.stale_revision"
    with running(node) as runtime:
        assert runtime.status()["bundle"] is None
        assert runtime.apply(operator.bundle(desired, 5), None)["result"]["revision"] == 5


def test_only_one_daemon_serves_a_state_directory(node: Path) -> None:
    with running(node):
        second = RuntimeProcess(node)
        assert second.process.wait(20) == 6
        assert "runtime.already_running" in second.log.read_text()


def test_a_taken_port_is_a_sentence_not_a_traceback(tmp_path: Path, operator: Operator) -> None:
    with socket.socket() as squatter:
        squatter.bind(("127.0.0.1", 0))
        squatter.listen()
        prepare_node(tmp_path, operator, http_bind_port=squatter.getsockname()[1])
        runtime = RuntimeProcess(tmp_path)
        assert runtime.process.wait(60) == 1
        log = runtime.log.read_text()
        assert "runtime.port_in_use" in log
        assert "Traceback" not in log


@pytest.mark.parametrize("stream", [True, False])
def test_G19_a_client_that_leaves_frees_engine_and_permit(node: Path, operator: Operator, stream: bool) -> None:
    program = engine_program(node, token_delay_s=0.02, endless=True, tokens=10**6)
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(weights(node), program)}), 1), None)
        host, port = runtime.status()["http_url"].removeprefix("http://").split(":")
        body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "stream": stream}).encode()
        with socket.create_connection((host, int(port))) as client:
            head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
            client.sendall(head.encode() + b"\r\n\r\n" + body)
            _until(lambda: runtime.engine_gauge("requests_processing") == 1)
            assert _active(runtime) == 1
        _until(lambda: _active(runtime) == 0)
        _until(lambda: runtime.engine_gauge("requests_processing") == 0)


def _active(runtime: RuntimeProcess) -> int:
    return int(runtime.status()["deployments"][0]["replicas"][0]["active_requests"])


def test_G20_an_engine_that_dies_mid_stream_ends_it_with_an_error_and_no_done(node: Path, operator: Operator) -> None:
    program = engine_program(node, die_after_tokens=2)
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": member(weights(node), program)}), 1), None)
        _, response = _stream(runtime)
        events = [line for line in response.read().decode().split("\n\n") if line]
        assert len(events) == 3
        error = json.loads(events[-1].removeprefix("data: "))["error"]
        assert error["code"] == "upstream_failed"
        assert "[DONE]" not in events[-1]


def test_G25_a_stop_lets_streams_finish_then_exits_0(node: Path, operator: Operator) -> None:
    program = engine_program(node, token_delay_s=0.02)
    runtime = RuntimeProcess(node)
    runtime.await_healthy()
    runtime.apply(operator.bundle(content({"q": member(weights(node), program)}), 1), None)
    (pid,) = runtime.engine_pids()
    _, response = _stream(runtime)
    assert response.readline().startswith(b"data:")
    assert runtime.stop() == 0
    assert response.read().endswith(b"data: [DONE]\n\n")
    assert not is_alive(pid)
    assert not (node / "state" / "control.sock").exists()
    assert list((node / "state" / "engines").glob("*.json")) == []


def test_G25_streams_beyond_the_deadline_are_cut(tmp_path: Path, operator: Operator) -> None:
    prepare_node(tmp_path, operator, shutdown_deadline_ms=300)
    program = engine_program(tmp_path, token_delay_s=0.02)
    runtime = RuntimeProcess(tmp_path)
    runtime.await_healthy()
    runtime.apply(operator.bundle(content({"q": member(weights(tmp_path), program)}), 1), None)
    _, response = _stream(runtime, 500)
    response.readline()
    assert runtime.stop() == 0
    assert b"[DONE]" not in response.read()


def test_a_cold_deployment_starts_once_for_many_and_unloads_when_idle(node: Path, operator: Operator) -> None:
    program = engine_program(node, slow_load_s=0.3)
    cold = member(weights(node), program, warm=False, pull="on_demand", keep_alive_secs=1)
    with running(node) as runtime:
        assert (
            runtime.apply(operator.bundle(content({"q": cold}), 1), None)["result"]["report"]["deployments"][0]["state"]
            == "configured"
        )
        results: list[int] = []
        threads = [threading.Thread(target=lambda: results.append(runtime.ask()[0])) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [200] * 4
        row = runtime.status()["deployments"][0]
        assert row["replicas"][0]["restarts"] == 0
        (pid,) = runtime.engine_pids()
        row = runtime.await_state("q", "stopped")
        assert row["stopped_by"] == "idle"
        _until(lambda: not is_alive(pid))
        assert runtime.ask()[0] == 200, "the next request starts it again"


def test_cold_start_reject_starts_nothing(node: Path, operator: Operator) -> None:
    cold = member(weights(node), engine_program(node), warm=False, pull="on_demand", cold_start="reject")
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": cold}), 1), None)
        status, answer, headers = runtime.ask()
        assert (status, answer["error"]["code"], headers["Retry-After"]) == (503, "no_ready_replica", "1")
        assert runtime.engine_pids() == []


def test_a_full_queue_is_503_and_a_key_decides_model_and_rate(node: Path, operator: Operator) -> None:
    import hashlib

    program = engine_program(node, token_delay_s=0.02)
    keys = {
        "app": ApiKeyEntry(sha256=hashlib.sha256(b"one").hexdigest(), models=("q-model",)),
        "slow": ApiKeyEntry(sha256=hashlib.sha256(b"two").hexdigest(), requests_per_minute=1),
        "none": ApiKeyEntry(sha256=hashlib.sha256(b"three").hexdigest(), models=()),
    }
    busy = member(weights(node), program, max_concurrency=1, max_queue_depth=0)
    origins = {"ai.internal": OriginMember(models={"q-model": "q"}, default_model="q-model")}
    with running(node) as runtime:
        runtime.apply(operator.bundle(content({"q": busy}, origins=origins, api_keys=keys), 1), None)

        def ask(key: str | None, **more: Any) -> tuple[int, str]:
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2, **more}
            status, answer, _ = runtime.http("POST", "/v1/chat/completions", body, headers)
            return status, answer["error"]["code"] if isinstance(answer, dict) and "error" in answer else "ok"

        assert ask(None) == (401, "unauthorized")
        assert ask("wrong") == (401, "unauthorized")
        assert ask("three") == (403, "model_not_allowed")
        assert ask("two") == (200, "ok")
        assert ask("two") == (429, "rate_limited")
        held = threading.Thread(target=lambda: ask("one", stream=True, max_tokens=100))
        held.start()
        _until(lambda: _active(runtime) == 1)
        assert ask("one") == (503, "queue_full")
        held.join()
        assert ask("one", model="other") == (404, "unknown_model")


def test_a_supervised_runtime_comes_back_and_stops_when_told(node: Path) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(node), "SBCTL_NODE_PREFIX": str(node)}
    home = Path(sys.executable).parents[1]
    script = (
        "import os, pathlib, sys; from sbctl.node.paths import node_paths; from sbctl.runtime.supervise import *;"
        "paths = node_paths(os.getuid(), os.environ);"
        f"print(start_supervised(paths, pathlib.Path({str(home)!r}) / 'bin' / 'python') if sys.argv[1] == 'start' else stop_supervised(paths))"
    )

    def supervise(what: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", script, what], env=env, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    pid = int(supervise("start"))
    try:
        assert int(supervise("start")) == pid, "a second start finds the first"
        runtime = RuntimeProcess.__new__(RuntimeProcess)
        runtime.paths = prepare_paths(node)
        first = _await_status(runtime)
        os.kill(first, signal.SIGKILL)
        _until(lambda: _status_pid(runtime) not in (None, first))
        second = _status_pid(runtime)
        os.kill(pid, signal.SIGKILL)
        _until(lambda: not is_alive(int(second or 0)))
        pid = int(supervise("start"))
        third = _await_status(runtime)
        assert "ready" in (node / "state" / "logs" / "runtime.log").read_text()
    finally:
        assert supervise("stop") == "True"
    assert not is_alive(pid)
    assert not is_alive(third)
    assert supervise("stop") == "False"


def prepare_paths(prefix: Path) -> Any:
    from sbctl.node.paths import NodePaths

    return NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")


def _status_pid(runtime: RuntimeProcess) -> int | None:
    try:
        return int(runtime.status()["pid"])
    except (OSError, http.client.HTTPException):
        return None


def _await_status(runtime: RuntimeProcess) -> int:
    _until(lambda: _status_pid(runtime) is not None)
    return int(_status_pid(runtime) or 0)

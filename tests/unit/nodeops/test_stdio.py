"""The node interface on its two streams: hello, one answer for each request, errors with names, nothing else on standard output."""

from __future__ import annotations

import base64
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import HostError, UsageError
from sbctl.node.frames import read_frame, write_frame
from sbctl.node.messages import PARAMS, PROTOCOL_VERSION, Method
from sbctl.runtime.nodeops import stdio
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.stdio import Dispatcher, run_stdio

ROOT = Path(__file__).parents[3]


class Channel:
    def __init__(self, context: NodeContext) -> None:
        self._stream = io.BytesIO()
        self.dispatcher = Dispatcher(context, self._stream.write)

    def ask(self, **message: Any) -> list[dict[str, Any]]:
        self._stream.seek(0)
        self._stream.truncate()
        self.dispatcher.answer({"id": 7, **message})
        self._stream.seek(0)
        frames = []
        while (frame := read_frame(self._stream.read)) is not None:
            assert frame["id"] == 7
            frames.append(frame)
        return frames


@pytest.fixture
def channel(context: NodeContext) -> Channel:
    return Channel(context)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({}, "node.unknown_method"),
        ({"method": "shell"}, "node.unknown_method"),
        ({"method": "host.mark", "params": {}}, "node.not_here"),
        ({"method": "runtime.install", "params": {}}, "node.not_here"),
        ({"method": "snapshot", "params": {"x": 1}}, "node.invalid_params"),
        ({"method": "artifact.remove", "params": {}}, "node.invalid_params"),
        ({"method": "artifact.remove", "params": []}, "node.invalid_params"),
        ({"method": "artifact.remove", "params": {"artifact": "../x"}}, "node.invalid_params"),
        ({"method": "artifact.remove", "params": {"artifact": "a" * 64, "more": 1}}, "node.invalid_params"),
        ({"method": "snapshot", "secrets": {"a": "not base64!"}}, "node.invalid_params"),
        ({"method": "snapshot", "secrets": []}, "node.invalid_params"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(channel: Channel, message: dict[str, Any], code: str) -> None:
    [frame] = channel.ask(**message)
    assert frame["error"]["code"] == code


def test_every_method_is_answered_here_or_by_the_bootstrap() -> None:
    bootstrap = {Method.HOST_MARK, Method.HOST_UNMARK, Method.RUNTIME_INSTALL}
    assert set(stdio._HANDLERS) == set(Method) - bootstrap
    assert set(PARAMS) == set(Method) - {Method.SNAPSHOT, Method.BUNDLE_CLEAR, Method.CLUSTER_STATUS}
    for method in stdio._HANDLERS:
        assert callable(stdio._handler(method))


def test_a_result_follows_its_progress(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def remove(context: NodeContext, params: Any) -> dict[str, Any]:
        seen.update(artifact=params.artifact, secret=context.secrets["s"].reveal())
        for done in range(1000):
            context.report(done, 1000, "moving")
        context.report(1000, 1000, "moving")
        return {"removed": True}

    monkeypatch.setattr(stdio, "_handler", lambda _method: remove)
    frames = channel.ask(
        method="artifact.remove", params={"artifact": "a" * 64}, secrets={"s": base64.b64encode(b"x\0y").decode()}
    )
    assert seen == {"artifact": "a" * 64, "secret": b"x\0y"}
    assert frames[-1]["result"] == {"removed": True}
    steps = [frame["progress"] for frame in frames[:-1]]
    assert steps[0]["done"] == 0
    assert steps[-1] == {"done": 1000, "total": 1000, "note": "moving"}
    assert len(steps) < 50


def test_a_failure_is_an_answer_and_names_no_secret(channel: Channel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(error: Exception) -> Any:
        def handler(_context: NodeContext, _params: Any) -> dict[str, Any]:
            raise error

        return lambda _method: handler

    for error, code in (
        (HostError("a.b", "known"), "a.b"),
        (PermissionError(13, "no", "/x"), "disk.permission"),
        (RuntimeError("canary"), "node.internal"),
    ):
        monkeypatch.setattr(stdio, "_handler", fail(error))
        [frame] = channel.ask(method="snapshot")
        assert frame["error"]["code"] == code
        assert "canary" not in str(frame)


def test_only_stdio_is_spoken() -> None:
    for argv in ([], ["--tcp"], ["--stdio", "x"]):
        with pytest.raises(UsageError):
            run_stdio(argv)


@pytest.fixture
def process(prefix: Path) -> Iterator[subprocess.Popen[bytes]]:
    env = {"SBCTL_NODE_PREFIX": str(prefix), "HOME": str(prefix), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)}
    program = "import sys; from sbctl.runtime.nodeops.stdio import run_stdio; sys.exit(run_stdio(['--stdio']))"
    running = subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        env=env, bufsize=0, cwd="/",
    )  # fmt: skip
    yield running
    running.kill()
    running.wait()
    for stream in (running.stdin, running.stdout, running.stderr):
        assert stream is not None
        stream.close()


@pytest.mark.flow
def test_a_channel_from_hello_to_its_end(process: subprocess.Popen[bytes], prefix: Path) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    hello = read_frame(process.stdout.read)
    assert hello is not None
    assert hello["hello"]["protocol"] == PROTOCOL_VERSION
    write_frame(process.stdin.write, {"id": 1, "method": "snapshot", "params": {}})
    write_frame(process.stdin.write, {"id": 2, "method": "artifact.remove", "params": {"artifact": "a" * 64}})
    first, second = read_frame(process.stdout.read), read_frame(process.stdout.read)
    assert first is not None
    assert second is not None
    assert first["result"]["marker"] == {"lineage": "L", "host": "h"}
    assert first["result"]["paths"]["state"] == f"{prefix}/state"
    assert second == {"id": 2, "result": {"removed": False, "reclaimed_bytes": 0}}
    process.stdin.close()
    assert process.wait(20) == 0
    assert process.stdout.read() == b""


@pytest.mark.flow
def test_what_is_no_frame_ends_the_channel(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.write(b"GET / HTTP/1.1\r\n\r\n")
    process.stdin.close()
    assert process.wait(20) != 0

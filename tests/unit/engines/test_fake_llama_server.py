"""The stand-in keeps the shapes that the runtime reads, and misbehaves when told."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulators import fake_llama_server

pytestmark = pytest.mark.flow


class Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=60)
        self.socket_path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.socket_path))


class Fake:
    def __init__(self, directory: Path, **control: object) -> None:
        program = directory / "llama-server"
        shutil.copy(fake_llama_server.__file__, program)
        program.chmod(0o755)
        (directory / "llama-server.control.json").write_text(json.dumps(control))
        (directory / "m").write_bytes(b"m")
        self.socket = directory / "s"
        argv = [str(program), "--model", str(directory / "m"), "--host", str(self.socket), "--alias", "chat"]
        self.process = subprocess.Popen(
            [*argv, "--parallel", "2", "--ctx-size", "64", "--metrics"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )

    def ask(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        for _ in range(200):
            try:
                connection = Connection(self.socket)
                connection.request(method, path, json.dumps(body) if body is not None else None)
                reply = connection.getresponse()
                return reply.status, reply.read().decode()
            except (FileNotFoundError, ConnectionRefusedError):
                time.sleep(0.02)
        raise AssertionError("the fake engine does not listen")


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Fake]]:
    running: list[Fake] = []

    def begin(**control: object) -> Fake:
        running.append(Fake(tmp_path, **control))
        return running[-1]

    yield begin
    for fake in running:
        fake.process.kill()
        fake.process.communicate()


CHAT = {"model": "any", "messages": [{"role": "user", "content": "hello there"}], "max_tokens": 4}


def test_it_answers_as_llama_server_does(start: Callable[..., Fake]) -> None:
    fake = start()
    assert fake.ask("GET", "/health") == (200, '{"status": "ok"}')
    assert json.loads(fake.ask("GET", "/v1/models")[1])["data"][0]["id"] == "chat"
    props = json.loads(fake.ask("GET", "/props")[1])
    assert (props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (2, 32)
    reply = json.loads(fake.ask("POST", "/v1/chat/completions", CHAT)[1])
    assert reply["choices"][0]["message"]["content"] == "echo hello there echo "
    assert (reply["model"], reply["usage"]["completion_tokens"]) == ("any", 4)
    stream = fake.ask(
        "POST", "/v1/chat/completions", {**CHAT, "stream": True, "stream_options": {"include_usage": True}}
    )[1]
    assert stream.count("data: ") == 7
    assert stream.endswith("data: [DONE]\n\n")
    assert "llamacpp:tokens_predicted_total 8" in fake.ask("GET", "/metrics")[1]
    long = {**CHAT, "messages": [{"role": "user", "content": "x " * 40}]}
    assert "exceed_context_size_error" in fake.ask("POST", "/v1/chat/completions", long)[1]
    fake.process.send_signal(signal.SIGTERM)
    assert fake.process.wait(10) == 0


@pytest.mark.parametrize(("control", "code"), [({"exit_at_once": 3}, 3), ({"crash_after_s": 0.05}, 9)])
def test_it_ends_when_told(start: Callable[..., Fake], control: dict[str, object], code: int) -> None:
    assert start(**control).process.wait(20) == code


def test_it_loads_for_ever_when_told(start: Callable[..., Fake]) -> None:
    assert start(never_ready=True).ask("GET", "/health")[0] == 503


def test_it_dies_in_mid_stream_when_told(start: Callable[..., Fake]) -> None:
    fake = start(die_after_tokens=2)
    with pytest.raises((http.client.IncompleteRead, ConnectionError)):
        fake.ask("POST", "/v1/chat/completions", {**CHAT, "stream": True})
    assert fake.process.wait(10) == 9


@pytest.mark.parametrize("flag", ["--li", "--api-key", "--nope", "x"])
def test_it_refuses_flags_that_llama_server_does_not_have(flag: str) -> None:
    with pytest.raises(SystemExit):
        fake_llama_server.parse([flag, "x"])

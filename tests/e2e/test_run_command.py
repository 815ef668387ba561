"""`sbctl run MODEL`: one command to an endpoint, and nothing left but the cache when it ends, however it ends."""

from __future__ import annotations

import http.client
import json
import os
import re
import shutil
import signal
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.simulators.operator_world import SHARED_CACHE, OperatorWorld, Running, until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

CACHE = SHARED_CACHE / "run-models"
READY_S = 240.0
"""A runtime and an engine are installed, and a real model is loaded."""


@pytest.fixture
def place(world: OperatorWorld) -> Iterator[Path]:
    """Where a run keeps its private directory, emptied of every process afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="sbr", dir="/tmp"))
    world.env = {"TMPDIR": str(directory)}
    yield directory
    for process in _processes(directory):
        process.kill()
    shutil.rmtree(directory, ignore_errors=True)


def _processes(place: Path) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if str(place) in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def _start(world: OperatorWorld) -> tuple[Running, int]:
    running = world.start(
        "run",
        "smollm2-135m-instruct",
        "--name",
        "small",
        "--port",
        str(world.port),
        "--cache-dir",
        str(CACHE),
        save=False,
    )
    running.until_said("is ready on", READY_S)
    return running, world.port


def _ask(port: int) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
    body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    status = connection.getresponse().status
    connection.close()
    return status


def test_it_serves_until_it_is_interrupted_and_cleans_up(world: OperatorWorld, place: Path) -> None:
    running, port = _start(world)
    assert _ask(port) == 200
    running.signal(signal.SIGINT)
    done = running.finish()
    assert done.code == 0, done
    assert re.search(r"OPENAI_BASE_URL=http://127\.0\.0\.1:\d+/v1\n", done.out)
    assert list(place.iterdir()) == []
    assert _processes(place) == []
    assert not world.listens(port)
    assert not list(world.home.rglob("*.key"))
    assert any(CACHE.rglob("*.gguf")), "the weights stay"
    again, port = _start(world)
    again.signal(signal.SIGTERM)
    assert again.finish().code in (0, 143)
    assert list(place.iterdir()) == []


def test_killed_it_takes_its_runtime_with_it_and_the_next_run_removes_what_was_left(
    world: OperatorWorld, place: Path
) -> None:
    running, port = _start(world)
    (left,) = place.iterdir()
    running.signal(signal.SIGKILL)
    running.finish()
    until(lambda: not _processes(place), "no process of the run", 30)
    assert not world.listens(port)
    again, port = _start(world)
    assert _ask(port) == 200
    assert not left.exists()
    again.signal(signal.SIGINT)
    assert again.finish().code == 0
    assert list(place.iterdir()) == []


def test_a_model_that_is_not_there_is_3_and_a_port_in_use_is_4(world: OperatorWorld, place: Path) -> None:
    done = world.sbctl("run", "smollm3", save=False, expect=3)
    assert "smollm2-135m-instruct" in done.err
    assert "sbctl-run-" not in done.err, "no path of a file that the user never wrote"
    assert list(place.iterdir()) == []
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", world.port))
        taken.listen()
        done = world.sbctl(
            "run", "smollm2-135m-instruct", "--port", str(world.port), "--cache-dir", str(CACHE), save=False, expect=4
        )
    assert f"127.0.0.1:{world.port} is held by" in " ".join(done.err.split())
    assert "--accept-blockers" not in done.err, "run has no such option"
    assert os.listdir(place) == []
    assert _processes(place) == []

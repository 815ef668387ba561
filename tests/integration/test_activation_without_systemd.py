"""An activation where no systemd runs: what does not come up is taken back, and a guard of its own heals what a killed node process leaves."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sbctl import __version__
from sbctl.base.errors import HostError
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.supervise import stop_supervised
from tests.simulators.node_channel import NodeChannelProcess, lay_out_node
from tests.simulators.runtime_world import LINEAGE, Operator

pytestmark = pytest.mark.integration

OTHER = "0.9.9"
DEADLINE_S = 90.0


@pytest.fixture
def paths() -> Iterator[NodePaths]:
    with tempfile.TemporaryDirectory(prefix="sbn", dir="/tmp") as name:
        laid_out = lay_out_node(Path(name), LINEAGE)
        yield laid_out
        stop_supervised(laid_out)


def install_broken(paths: NodePaths, does: str) -> None:
    """Another version, whose supervisor does this instead of starting."""
    program = paths.version(OTHER) / "bin" / "python"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{does}\n")
    program.chmod(0o755)
    (program.parent / "sbctl-runtime").write_text("")


def activation(operator: Operator, version: str = __version__) -> dict[str, Any]:
    config = RuntimeConfig(lineage=LINEAGE, host="local", http_bind_port=0, shutdown_deadline_ms=3000)
    return {
        "version": version,
        "config": config.model_dump(mode="json"),
        "trust_envelope": operator.trust_envelope(),
    }


def wait_until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def test_a_version_that_does_not_start_is_taken_back(paths: NodePaths) -> None:
    operator = Operator()
    install_broken(paths, "echo broken on purpose >&2; exit 1")
    with NodeChannelProcess(paths) as node:
        node.call("runtime.activate", activation(operator))
        with pytest.raises(HostError) as caught:
            node.call("runtime.activate", activation(operator, OTHER))
        assert caught.value.code == "runtime.rolled_back"
        assert "broken on purpose" in caught.value.message
        state = node.call("snapshot")["runtime"]
    assert (state["healthy"], state["version_running"], state["current_version"]) == (True, __version__, __version__)
    assert not state["changing"]
    assert not paths.activation.exists()


def test_a_node_process_that_is_killed_in_an_activation_leaves_a_host_that_heals_itself(paths: NodePaths) -> None:
    operator = Operator()
    install_broken(paths, 'echo $$ >"$(dirname "$0")/pid"; exec sleep 600')
    pid_file = paths.version(OTHER) / "bin" / "pid"
    with NodeChannelProcess(paths) as node:
        node.call("runtime.activate", activation(operator))
        node.send("runtime.activate", activation(operator, OTHER))
        wait_until(lambda: pid_file.exists() and bool(pid_file.read_text()))
        node.process.kill()
        node.process.wait()
    psutil.Process(int(pid_file.read_text())).kill()
    wait_until(lambda: not paths.activation.exists())
    assert os.readlink(paths.current) == __version__
    with NodeChannelProcess(paths) as again:
        state = again.call("snapshot")["runtime"]
        assert (state["healthy"], state["version_running"]) == (True, __version__)
        assert again.call("runtime.activate", activation(operator))["pid"] == state["pid"]

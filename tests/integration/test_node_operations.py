"""The node interface against real processes: activate, hand over a bundle, change, remove; what is done twice is done once."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from sbctl import __version__
from sbctl.base.digests import canonical_json
from sbctl.base.errors import HostError, RefusedError, SbctlError
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.supervise import stop_supervised, supervisor_of
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet
from sbctl.trust.envelope import sign_envelope
from tests.simulators.node_channel import NodeChannelProcess, lay_out_node
from tests.simulators.runtime_world import LINEAGE, Operator, content, engine_program, member, weights

pytestmark = pytest.mark.integration


@pytest.fixture
def paths() -> Iterator[NodePaths]:
    with tempfile.TemporaryDirectory(prefix="sbn", dir="/tmp") as name:
        laid_out = lay_out_node(Path(name), LINEAGE)
        yield laid_out
        if laid_out.state.is_dir():
            stop_supervised(laid_out)


@pytest.fixture
def node(paths: NodePaths) -> Iterator[NodeChannelProcess]:
    with NodeChannelProcess(paths) as channel:
        yield channel


@pytest.fixture
def operator() -> Operator:
    return Operator()


def activation(operator: Operator, **config: Any) -> dict[str, Any]:
    values = {"lineage": LINEAGE, "host": "local", "http_bind_port": 0, "shutdown_deadline_ms": 3000, **config}
    return {
        "version": __version__,
        "config": RuntimeConfig(**values).model_dump(mode="json"),
        "trust_envelope": operator.trust_envelope(),
    }


def processes_of(paths: NodePaths) -> list[str]:
    prefix = str(paths.etc.parent)
    return [
        " ".join(process.info["cmdline"])
        for process in psutil.process_iter(["cmdline"])
        if any(part.startswith(prefix) for part in process.info["cmdline"] or [])
    ]


def test_activation_starts_once_and_restarts_only_for_what_decides(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator
) -> None:
    first = node.call("runtime.activate", activation(operator))
    assert first["supervision"] == "parent"
    assert first["unit_sha256"] is None
    assert (paths.secrets / "admin_password").stat().st_mode & 0o777 == 0o600
    assert os.readlink(paths.current) == __version__
    assert node.call("runtime.activate", activation(operator)) == first

    changed = node.call("runtime.activate", activation(operator, max_parallel_prepares=3))
    assert changed["pid"] != first["pid"]
    state = node.call("snapshot")["runtime"]
    assert (state["config_sha256"], state["trust_digest"]) == (changed["config_sha256"], changed["trust_digest"])
    assert (state["healthy"], state["supervision"], state["pid"]) == (True, "parent", changed["pid"])

    secret = node.call("runtime.activate", activation(operator, max_parallel_prepares=3), {"admin_password": b"sent"})
    assert secret["pid"] != changed["pid"]
    assert (paths.secrets / "admin_password").read_bytes() == b"sent"
    assert node.call("runtime.activate", activation(operator, max_parallel_prepares=3)) == secret


def test_a_killed_runtime_is_started_by_the_next_activation(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator
) -> None:
    node.call("runtime.activate", activation(operator))
    stop_supervised(paths)
    assert not node.call("snapshot")["runtime"]["running"]
    assert node.call("runtime.activate", activation(operator))["pid"]


def test_only_a_member_of_the_set_changes_the_set(node: NodeChannelProcess, operator: Operator) -> None:
    node.call("runtime.activate", activation(operator))
    stranger = Operator()
    with pytest.raises(RefusedError) as caught:
        node.call("runtime.activate", activation(stranger))
    assert caught.value.code == "envelope.bad_signature"
    successor = TrustSet(lineage=LINEAGE, key_epoch=1, signers={"new": stranger.key.public_text})
    payload = canonical_json(successor.model_dump(mode="json"))
    handed_over = sign_envelope(TRUST_PAYLOAD_TYPE, payload, operator.key, "ops")
    node.call("runtime.activate", {**activation(operator), "trust_envelope": handed_over})
    with pytest.raises(RefusedError):
        node.call("runtime.activate", activation(operator))


def test_a_host_of_another_fleet_is_left_alone(node: NodeChannelProcess, paths: NodePaths, operator: Operator) -> None:
    paths.marker.write_text('{"lineage": "other", "host": "x"}\n')
    for method, params in (
        ("runtime.activate", activation(operator)),
        ("runtime.remove", {"lineage": LINEAGE}),
    ):
        with pytest.raises(RefusedError) as caught:
            node.call(method, params)
        assert caught.value.code == "host.other_lineage"
    assert not paths.runtime_config.exists()


def test_a_runtime_that_cannot_bind_says_so(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(HostError) as caught:
        node.call("runtime.activate", {**activation(operator), "version": "9.9.9"})
    assert caught.value.code == "runtime.not_installed"


def test_a_supervisor_that_dies_in_an_activation_is_told_at_once_and_the_next_activation_repairs_it(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator
) -> None:
    def kill_when_there() -> None:
        while (found := supervisor_of(paths)) is None:
            time.sleep(0.01)
        os.kill(found.pid, signal.SIGKILL)

    killer = threading.Thread(target=kill_when_there)
    killer.start()
    with pytest.raises(HostError, match="supervisor"):
        node.call("runtime.activate", activation(operator))
    killer.join()
    node.call("runtime.activate", activation(operator))
    assert node.call("snapshot")["runtime"]["healthy"]


def test_from_activation_to_nothing(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator, tmp_path: Path
) -> None:
    program = engine_program(tmp_path)
    facts = weights(tmp_path)
    node.call("runtime.activate", activation(operator))
    assert node.call("artifact.pull", {"artifact": facts.model_dump(mode="json")})["artifact"] == facts.artifact
    desired = content({"chat": member(facts, program)})
    answer = node.call("bundle.apply", {"envelope": operator.bundle(desired, 1), "expected_revision": None})
    assert answer["revision"] == 1
    with pytest.raises(SbctlError) as caught:
        node.call("bundle.apply", {"envelope": operator.bundle(desired, 3), "expected_revision": 2})
    assert "revision" in caught.value.code

    snapshot = node.call("snapshot")
    assert [state["state"] for state in snapshot["deployments"]] == ["ready"]
    assert [(state["artifact"], state["state"]) for state in snapshot["artifacts"]] == [(facts.artifact, "ready")]
    port = int(snapshot["runtime"]["http_url"].rpartition(":")[2])
    with pytest.raises(RefusedError) as caught:
        node.call("artifact.remove", {"artifact": facts.artifact})
    assert caught.value.code == "artifact.in_use"
    assert node.call("deployment.action", {"deployment": "chat", "action": "stop"})["stopped_by"] == "operator"
    node.call("deployment.action", {"deployment": "chat", "action": "load"})

    node.call("bundle.clear")
    assert node.call("artifact.remove", {"artifact": facts.artifact})["removed"]
    node.call("runtime.remove", {"lineage": LINEAGE})
    node.call("runtime.remove", {"lineage": LINEAGE})
    left = sorted(str(path.relative_to(paths.etc.parent)) for path in paths.etc.parent.rglob("*") if path.is_file())
    assert left == ["etc/marker.json"]
    assert not paths.models.exists()
    node.__exit__(None, None, None)
    assert processes_of(paths) == []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", port))


def test_removal_ends_engines_of_a_runtime_that_was_killed(
    node: NodeChannelProcess, paths: NodePaths, operator: Operator, tmp_path: Path
) -> None:
    program, facts = engine_program(tmp_path), weights(tmp_path)
    pid = node.call("runtime.activate", activation(operator))["pid"]
    node.call("bundle.apply", {"envelope": operator.bundle(content({"chat": member(facts, program)}), 1)})
    [engine] = [replica["pid"] for state in node.call("snapshot")["deployments"] for replica in state["replicas"]]
    psutil.Process(pid).kill()
    node.call("runtime.remove", {"lineage": LINEAGE})
    assert not psutil.pid_exists(engine) or psutil.Process(engine).status() == psutil.STATUS_ZOMBIE


def test_closing_the_channel_cancels_the_call_and_keeps_what_was_fetched(
    paths: NodePaths, operator: Operator, tmp_path: Path
) -> None:
    fifo = tmp_path / "w.gguf"
    facts = weights(tmp_path, "w").model_copy(update={"source": "http://127.0.0.1:9/never"})
    fifo.unlink()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        slow = facts.model_copy(update={"source": f"http://127.0.0.1:{silent.getsockname()[1]}/w"})
        channel = NodeChannelProcess(paths)
        channel.send("artifact.pull", {"artifact": slow.model_dump(mode="json")})
        accepted, _ = silent.accept()
        channel.stdin.close()
        try:
            assert channel.process.wait(20) == 0
        except subprocess.TimeoutExpired:
            channel.process.kill()
            raise
        finally:
            accepted.close()
            channel.stdout.close()

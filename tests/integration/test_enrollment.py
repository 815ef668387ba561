"""Enrollment with real processes: the authority's runtime, `sbctl` on both sides, kills at the worst line, and no token anywhere after it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from sbctl.runtime.main import main as runtime_main
from sbctl.trust.certificates import certificate_facts
from tests.simulators.enrollment_world import ask, authority_in, token_of
from tests.simulators.ports import free_port

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parents[2]
_WAIT_S = 120
_REDEEM = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from sbctl.base.errors import RefusedError
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_messages import parse_request
try:
    answer = Enrollment.open(Path(sys.argv[1])).enroll(parse_request(sys.stdin.buffer.read()), source="", now=datetime.now(UTC))
    print(answer.certificate)
except RefusedError:
    print("refused")
"""


def sbctl(*words: str, token: str | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, **({} if token is None else {"SBCTL_CLUSTER_TOKEN": token})}
    return subprocess.run(
        [sys.executable, "-m", "sbctl.cli.main", *words],
        capture_output=True, text=True, input=stdin, env=environ, cwd=ROOT, timeout=_WAIT_S, check=False,
    )  # fmt: skip


class Server:
    """A server process whose log lines are kept."""

    def __init__(self, *argv: str) -> None:
        self.process = subprocess.Popen([sys.executable, "-m", *argv], stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.lines: list[str] = []
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        assert self._ready.wait(_WAIT_S), self.lines
        assert self.process.poll() is None, self.lines

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if '"event": "ready"' in line:
                self._ready.set()
        self._ready.set()

    def stop(self) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(_WAIT_S)
        self._reader.join(_WAIT_S)
        return code


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    made = sbctl("cluster", "init", "--cluster-id", "prod", "--dir", str(tmp_path / "cluster"))
    assert made.returncode == 0, made.stderr
    return tmp_path / "cluster"


@contextlib.contextmanager
def authority(cluster: Path, port: int, *more: str) -> Iterator[Server]:
    server = Server("sbctl.runtime.main", "authority", "--dir", str(cluster), "--listen", f"127.0.0.1:{port}", *more)
    try:
        yield server
    finally:
        server.stop()


def files_below(*directories: Path) -> Iterator[tuple[Path, bytes]]:
    for directory in directories:
        for path in sorted(directory.rglob("*")):
            if path.is_file():
                yield path, path.read_bytes()


def test_D6_a_host_enrolls_and_its_token_is_nowhere_afterwards(
    cluster: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_home: Path
) -> None:
    port, out = free_port(), tmp_path / "node"
    url = f"https://127.0.0.1:{port}/whatever?x=1"
    with authority(cluster, port) as server:
        made = sbctl("cluster", "token", "create", "--dir", str(cluster), "--label", "zone=a", "--format", "json")
        created: dict[str, Any] = json.loads(made.stdout)
        token = created["token"]
        secret = token.rpartition(".")[2]
        words = (
            "cluster",
            "enroll",
            "--url",
            url,
            "--node-id",
            "gpu-a",
            "--server-name",
            "sbproxy-mesh",
            "--label",
            "zone=a",
        )
        in_argv = sbctl(*words, "--out", str(out), "--token", "sbj1.x.y.z")
        assert (in_argv.returncode, "enroll.token_in_arguments" in in_argv.stderr) == (64, True)
        enrolled = sbctl(*words, "--out", str(out), "--format", "json", token=token)
        assert enrolled.returncode == 0, enrolled.stderr
        document = json.loads(enrolled.stdout)
        again = sbctl(*words, "--out", str(tmp_path / "other"), stdin=f"{token}\n")
        assert (again.returncode, "enroll.denied" in again.stderr) == (4, True)
        arguments = Path(f"/proc/{server.process.pid}/cmdline").read_bytes()
        listed = sbctl("cluster", "token", "list", "--dir", str(cluster), "--format", "json")
        code = server.stop()
    assert code == 0
    assert json.loads(listed.stdout)["tokens"][0]["used_by"] == "gpu-a"
    assert (document["node_id"], document["cluster_id"], document["identity_epoch"]) == ("gpu-a", "prod", 1)
    assert sorted(path.name for path in out.iterdir()) == [
        "authority-verifying.key", "ca.pem", "enrollment-server.json", "identity.json", "node-key.pem", "node.pem",
        "revocations.json",
    ]  # fmt: skip
    assert {path.stat().st_mode & 0o777 for path in out.iterdir()} == {0o600}
    assert not (tmp_path / ".node.enrolling").exists()

    said = "".join([enrolled.stdout, enrolled.stderr, again.stdout, again.stderr, listed.stdout, *server.lines])
    assert secret not in said
    assert secret.encode() not in arguments
    for path, content in files_below(tmp_path, own_home):
        assert secret.encode() not in content, path

    monkeypatch.setenv("SBCTL_NODE_PREFIX", str(tmp_path / "prefix"))
    assert runtime_main(["identity", str(out)]) == 0
    installed = (tmp_path / "prefix" / "etc" / "identity" / "node.pem").read_text()
    assert certificate_facts(installed).fingerprint == document["fingerprint"]
    assert runtime_main(["identity", str(out)]) == 0


def test_D2_of_many_processes_with_one_token_one_gets_a_certificate(tmp_path: Path) -> None:
    enrollment = authority_in(tmp_path / "cluster")
    token = token_of(enrollment)

    def one(number: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", _REDEEM, str(tmp_path / "cluster")],
            input=ask(token, node_id=f"gpu-{number}").to_json(), capture_output=True, cwd=ROOT, timeout=_WAIT_S, check=True,
        )  # fmt: skip
        return done.stdout.decode().strip()

    with ThreadPoolExecutor(6) as processes:
        given = list(processes.map(one, range(6)))
    assert sorted(text == "refused" for text in given) == [False, *[True] * 5]
    assert [row.node is not None for row in enrollment.tokens()] == [True]


@pytest.mark.parametrize("line", ["before-issue", "after-issue"])
def test_D3_a_server_killed_after_the_token_was_burnt_answers_the_same_key_only(
    cluster: Path, tmp_path: Path, line: str
) -> None:
    port = free_port()
    words = ("cluster", "enroll", "--url", f"https://127.0.0.1:{port}", "--node-id", "gpu-a")
    token = sbctl("cluster", "token", "create", "--dir", str(cluster)).stdout.strip()
    victim = Server("tests.simulators.enrollment_victim", line, str(cluster), str(port))
    lost = sbctl(*words, "--out", str(tmp_path / "node"), token=token)
    assert victim.process.wait(_WAIT_S) == -signal.SIGKILL
    assert lost.returncode in (3, 7), lost.stderr
    with authority(cluster, port):
        thief = sbctl(*words, "--out", str(tmp_path / "thief"), token=token)
        assert thief.returncode == 4, thief.stderr
        again = sbctl(*words, "--out", str(tmp_path / "node"), token=token)
        assert again.returncode == 0, again.stderr
    record = json.loads((cluster / "nodes" / "gpu-a.json").read_text())
    assert record["certificate"] == (tmp_path / "node" / "node.pem").read_text()
    assert record["identity_epoch"] == 1

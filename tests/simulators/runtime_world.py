"""A node in a directory: configuration, trust, weights, an engine program with faults on order, signed bundles, and a client of its daemon."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import HTTP_STATUS
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.trust.bundle import (
    BUNDLE_PAYLOAD_TYPE,
    TRUST_PAYLOAD_TYPE,
    ApiKeyEntry,
    BundleContent,
    BundlePayload,
    DeploymentMember,
    EnginePolicy,
    OriginMember,
    TrustSet,
    content_digest,
)
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.gguf_files import tiny_gguf

FAKE = Path(__file__).with_name("fake_llama_server.py")
ROOT = Path(__file__).resolve().parents[2]
LINEAGE = "11111111-2222-3333-4444-555555555555"
SCOPE = "local"


def weights(folder: Path, name: str = "tiny") -> ArtifactFacts:
    """A small file that is GGUF by its header, and the artifact it is."""
    data = tiny_gguf(note=name)
    source = folder / f"{name}.gguf"
    source.write_bytes(data)
    files = (ArtifactFile(path=source.name, sha256=sha256_bytes(data), size_bytes=len(data)),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source=f"file:{source}",
        model=name,
        variant="q4",
        context_length=2048,
    )


def engine_program(folder: Path, name: str = "llama-server", **behave: Any) -> Path:
    """A stand-in for llama-server of its own, doing wrong what `behave` says (see `fake_llama_server`)."""
    program = folder / name
    program.write_bytes(FAKE.read_bytes())
    program.chmod(0o755)
    behaves(program, **behave)
    return program


def behaves(program: Path, **behave: Any) -> None:
    """Change what it does wrong, from its next request on."""
    Path(f"{program}.control.json").write_text(json.dumps(behave), encoding="utf-8")


def member(artifact: ArtifactFacts, program: Path | str, **changes: Any) -> DeploymentMember:
    values: dict[str, Any] = {
        "model": artifact.model,
        "variant": artifact.variant,
        "artifact": artifact,
        "engine": EnginePolicy(engine="llama_cpp", launch="binary", path=str(program)),
        "replicas": 1,
        "pull": "on_boot",
        "warm": True,
        "cold_start": "wait",
        "max_concurrency": 2,
        "max_queue_depth": 4,
        "queue_timeout_ms": 10_000,
        "rollout": "rolling",
        "context_length": 512,
        "threads": 1,
    }
    return DeploymentMember(**{**values, **changes})


def content(
    deployments: Mapping[str, DeploymentMember],
    *,
    origins: Mapping[str, OriginMember] | None = None,
    api_keys: Mapping[str, ApiKeyEntry] | None = None,
    public: bool = False,
) -> BundleContent:
    """Without `origins`: one origin that serves each deployment under `<id>-model`."""
    names = {f"{name}-model": name for name in deployments}
    sole = {"ai.internal": OriginMember(models=names, default_model=next(iter(names), None))}
    return BundleContent(
        deployments=dict(deployments),
        origins=dict(sole if origins is None else origins),
        api_keys=dict(api_keys or {}),
        public=public,
    )


class Operator:
    """Holds a key and signs. `now`: when bundles are issued."""

    def __init__(self, now: Callable[[], datetime] = SYSTEM_CLOCK.now) -> None:
        self._now = now
        self.key = SigningKey.generate()
        self.trust = TrustSet(lineage=LINEAGE, key_epoch=0, signers={"ops": self.key.public_text})

    def trust_envelope(self) -> str:
        return sign_envelope(TRUST_PAYLOAD_TYPE, canonical_json(self.trust.model_dump(mode="json")), self.key, "ops")

    def bundle(self, desired: BundleContent, revision: int, **changes: Any) -> str:
        values: dict[str, Any] = {
            "lineage": LINEAGE,
            "scope": SCOPE,
            "key_epoch": 0,
            "revision": revision,
            "issued_at": rfc3339(self._now()),
            "content": desired,
            "content_digest": content_digest(desired),
        }
        payload = BundlePayload(**{**values, **changes})
        return sign_envelope(BUNDLE_PAYLOAD_TYPE, canonical_json(payload.model_dump(mode="json")), self.key, "ops")


def prepare_node(prefix: Path, operator: Operator, **config: Any) -> NodePaths:
    """Write what `runtime.activate` would."""
    paths = NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")
    for folder in (paths.etc, paths.secrets, paths.state):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    values = {"lineage": LINEAGE, "host": SCOPE, "http_bind_port": 0, "admin_port": 0, "shutdown_deadline_ms": 5000}
    written = RuntimeConfig(**{**values, **config})
    paths.runtime_config.write_bytes(canonical_json(written.model_dump(mode="json")))
    paths.trust.write_text(operator.trust_envelope(), encoding="utf-8")
    (paths.secrets / "admin_password").write_text("correct horse", encoding="utf-8")
    return paths


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class RuntimeProcess:
    """A daemon as a process of its own, asked through its control socket."""

    def __init__(self, prefix: Path, *argv: str, program: str = "sbctl.runtime.main") -> None:
        """`program` is the module that runs: another one may change what the daemon does to the system."""
        self.paths = NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")
        env = {"PATH": os.environ["PATH"], "HOME": str(prefix), "SBCTL_NODE_PREFIX": str(prefix)}
        for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
            if name in os.environ:
                env[name] = os.environ[name]
        self.log = prefix / "runtime.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", program, "serve", *argv],
                env={**env, "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def await_healthy(self, deadline_s: float = 60.0) -> dict[str, Any]:
        end_s = time.monotonic() + deadline_s
        while time.monotonic() < end_s:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the runtime ended with {self.process.returncode}: {self.log.read_text()[-2000:]}"
                )
            with contextlib.suppress(OSError, http.client.HTTPException):
                status = self.status()
                if status["healthy"]:
                    return status
            time.sleep(0.05)
        raise AssertionError(f"the runtime is not healthy: {self.log.read_text()[-2000:]}")

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 60.0) -> tuple[int, bytes]:
        connection = _UnixConnection(self.paths.control_socket, timeout_s)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.call("GET", "/control/v1/status")[1])
        return document

    def apply(self, envelope: str, expected_revision: int | None) -> dict[str, Any]:
        """The last line: `{"result": …}` or `{"error": …}`."""
        body = {"envelope": envelope, "expected_revision": expected_revision}
        _, data = self.call("POST", "/control/v1/bundle", body)
        last: dict[str, Any] = json.loads(data.splitlines()[-1])
        return last

    def act(self, deployment: str, action: str) -> tuple[int, dict[str, Any]]:
        """The last line as a status and its body."""
        _, data = self.call("POST", f"/control/v1/deployments/{deployment}/{action}", {})
        last: dict[str, Any] = json.loads(data.splitlines()[-1])
        if "error" in last:
            return HTTP_STATUS.status(last["error"]["code"]), last
        return 200, last["result"]

    def admin(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """The admin API as its administrator: status and parsed body."""
        credentials = base64.b64encode(b"admin:correct horse").decode()
        headers = {"Authorization": f"Basic {credentials}"}
        return self.http(method, path, body, headers, url=self.status()["admin_url"])[:2]

    def http(
        self,
        method: str,
        path: str,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        *,
        url: str | None = None,
    ) -> tuple[int, Any, Any]:
        """Through the public listener, or that of `url`: status, parsed body, headers."""
        host = (url or self.status()["http_url"]).removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=60)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            raw = response.read()
            return response.status, json.loads(raw) if raw[:1] in (b"{", b"[") else raw.decode(), response.headers
        finally:
            connection.close()

    def ask(self, text: str = "Hi", **more: Any) -> tuple[int, Any, Any]:
        body = {"messages": [{"role": "user", "content": text}], "max_tokens": 3, **more}
        return self.http("POST", "/v1/chat/completions", body)

    def engine_gauge(self, name: str) -> int:
        """A number of the only engine's own metrics, asked for at its address."""
        (record,) = self.paths.engine_records.glob("*.json")
        connection = http.client.HTTPConnection(json.loads(record.read_text())["address"], timeout=30)
        try:
            connection.request("GET", "/metrics")
            rows = dict(line.rsplit(" ", 1) for line in connection.getresponse().read().decode().splitlines())
            return int(rows[f"llamacpp:{name}"])
        finally:
            connection.close()

    def engine_pids(self) -> list[int]:
        return [
            replica["pid"]
            for deployment in self.status()["deployments"]
            for replica in deployment["replicas"]
            if replica["pid"] is not None
        ]

    def await_state(self, deployment: str, state: str, deadline_s: float = 20.0) -> dict[str, Any]:
        end_s = time.monotonic() + deadline_s
        row: dict[str, Any] = {}
        while time.monotonic() < end_s:
            row = next((entry for entry in self.status()["deployments"] if entry["deployment"] == deployment), {})
            if row.get("state") == state:
                return row
            time.sleep(0.05)
        raise AssertionError(f"{deployment} is {row.get('state')}, not {state}: {row}")

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30.0) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(timeout_s)


@contextlib.contextmanager
def running(prefix: Path, *argv: str) -> Iterator[RuntimeProcess]:
    """A healthy daemon for the length of the block; nothing of it is left behind."""
    runtime = RuntimeProcess(prefix, *argv)
    try:
        runtime.await_healthy()
        yield runtime
    finally:
        if runtime.process.poll() is None:
            runtime.process.terminate()
            try:
                runtime.process.wait(20)
            except subprocess.TimeoutExpired:
                runtime.process.kill()
                runtime.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False

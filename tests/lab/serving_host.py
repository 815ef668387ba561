"""A lab host that serves one deployment by a stand-in for the engine, as a unit of its own."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.remote.session import HostSession
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, BundlePayload, EnginePolicy, content_digest
from sbctl.trust.envelope import sign_envelope
from tests.lab.fixture import LabHost
from tests.lab.runtime_host import DEADLINE_S, KEY, LINEAGE, call, no_progress
from tests.simulators.runtime_world import FAKE, content, member

__all__ = ["HOME", "PROGRAM", "WAIT_S", "WHEEL", "Host"]

HOME = "/opt/sbctl/engines/llama_cpp/9.9.9"
PROGRAM = "/usr/local/bin/llama-server"
WAIT_S = 60.0
WHEEL = EnginePolicy(engine="llama_cpp", launch="wheel", version="9.9.9")


class Host:
    """A lab host with a runtime that serves the deployment `chat` by a stand-in for the engine."""

    def __init__(self, host: LabHost, session: HostSession, facts: ArtifactFacts) -> None:
        self.host = host
        self.session = session
        self.facts = facts
        self.revision = 0

    def write(self, path: str, data: bytes, mode: str = "644") -> None:
        text = base64.b64encode(data).decode()
        self.host.ssh(f"mkdir -p $(dirname {path}); echo {text} | base64 -d > {path}; chmod {mode} {path}")

    def apply(self, *, policy: EnginePolicy, **changes: Any) -> None:
        desired = content({"chat": member(self.facts, "", engine=policy, **changes)}, public=True)
        expected, self.revision = self.revision or None, self.revision + 1
        payload = BundlePayload(
            lineage=LINEAGE,
            scope="h",
            key_epoch=0,
            revision=self.revision,
            issued_at=rfc3339(SYSTEM_CLOCK.now()),
            content=desired,
            content_digest=content_digest(desired),
        )
        envelope = sign_envelope(BUNDLE_PAYLOAD_TYPE, canonical_json(payload.model_dump(mode="json")), KEY, "ops")
        call(self.session, "bundle.apply", {"envelope": envelope, "expected_revision": expected})

    def engine_pid(self) -> int | None:
        """Of the only replica, as the runtime reports it."""
        for row in self.session.snapshot(DEADLINE_S).deployments:
            for replica in row.replicas:
                if replica.state == "ready":
                    return replica.pid
        return None

    def await_engine(self) -> int:
        end_s = SYSTEM_CLOCK.monotonic_s() + WAIT_S
        while (pid := self.engine_pid()) is None:
            assert SYSTEM_CLOCK.monotonic_s() < end_s, self.host.ssh("journalctl -n 60 --no-pager", check=False)
            SYSTEM_CLOCK.sleep_s(0.2)
        return pid

    def units(self) -> list[str]:
        listed = self.host.ssh("systemctl list-units --all --plain --no-legend 'sbctl-engine-*'", check=False)
        return [line.split()[0] for line in listed.splitlines() if line.strip()]

    def complete(self) -> str:
        body = json.dumps({"model": "chat-model", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
        asked = f"curl -s -m 30 -H 'Content-Type: application/json' -d {json.dumps(body)} http://127.0.0.1:8080/v1/chat/completions"
        answer: dict[str, Any] = json.loads(self.host.ssh(asked))
        return str(answer["choices"][0]["message"]["content"])

    def until_no_unit(self) -> None:
        end_s = SYSTEM_CLOCK.monotonic_s() + WAIT_S
        while self.units():
            assert SYSTEM_CLOCK.monotonic_s() < end_s, self.host.ssh("journalctl -n 60 --no-pager", check=False)
            SYSTEM_CLOCK.sleep_s(0.2)

    def install_engine(self) -> None:
        """The stand-in, as an installed wheel and as a program of the user's."""
        record = {"schema_version": 1, "engine": "llama_cpp", "launch": "wheel", "version": "9.9.9", "wheel": "x.whl",
                  "sha256": "a" * 64, "launcher_sha256": "b" * 64, "python": "python3"}  # fmt: skip
        self.write(f"{HOME}/llama_wheel_launcher.py", FAKE.read_bytes())
        self.write(f"{HOME}/engine.json", json.dumps(record).encode())
        self.write(PROGRAM, FAKE.read_bytes(), "755")
        self.host.ssh(f"mkdir -p {HOME}/bin; ln -s /usr/bin/python3.11 {HOME}/bin/python")

    def bring_weights(self, folder: Path) -> None:
        """Into the cache; the runtime was activated before."""
        file = folder / self.facts.files[0].path
        self.session.put(sha256_bytes(file.read_bytes()), file, deadline_s=DEADLINE_S, progress=no_progress)
        call(self.session, "artifact.import", {"artifact": self.facts.model_dump(mode="json")})

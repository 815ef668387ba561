"""A lab host with runtimes of several versions on it, without a plan: the calls that an apply would make, one by one."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.digests import canonical_json, sha256_file
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.remote.session import HostSession
from sbctl.remote.wheelhouse import Wheelhouse
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey

__all__ = ["DEADLINE_S", "KEY", "LINEAGE", "activation", "await_healthy", "call", "install", "no_progress"]

LINEAGE = "22222222-3333-4444-5555-666666666666"
KEY = SigningKey.generate()
DEADLINE_S = 300.0
SETTLE_S = 180.0


def no_progress(_done: int, _total: int | None) -> None:
    return None


def call(session: HostSession, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    secrets: dict[str, Secret] = {}
    return session.call(method, params, secrets=secrets, deadline_s=DEADLINE_S, progress=no_progress)


def activation(version: str = __version__, **config: Any) -> dict[str, Any]:
    trust = TrustSet(lineage=LINEAGE, key_epoch=0, signers={"ops": KEY.public_text})
    wanted = RuntimeConfig(**{"lineage": LINEAGE, "host": "h", "shutdown_deadline_ms": 3000, **config})
    payload = canonical_json(trust.model_dump(mode="json"))
    return {
        "version": version,
        "config": wanted.model_dump(mode="json"),
        "trust_envelope": sign_envelope(TRUST_PAYLOAD_TYPE, payload, KEY, "ops"),
    }


def install(
    session: HostSession,
    directory: Path,
    *,
    own: tuple[str, bytes] | None = None,
    standalone: Mapping[str, str] | None = None,
) -> None:
    """Claim the host and install this version, or the one whose wheel is `own`; `directory` is the operator's cache. `standalone` is a Python
    of the same minor version as the host's that was put there."""
    call(session, "host.mark", {"lineage": LINEAGE, "host": "h"})
    facts = session.snapshot(DEADLINE_S).host
    python = facts.pythons[-1]
    cache = Path(os.environ.get("SBCTL_TEST_CACHE") or directory)
    wheels = Wheelhouse(cache, os.environ).ensure(facts.arch, facts.libc, python.version, no_progress)
    version = __version__
    if own is not None:
        name, content = own
        version = name.split("-")[1]
        wheels = {key: path for key, path in wheels.items() if not key.startswith("sbctl_fleet-")}
        wheels[name] = Path(tempfile.mkdtemp(dir=directory)) / name
        wheels[name].write_bytes(content)
    listed = {name: {"filename": name, "sha256": sha256_file(path)} for name, path in wheels.items()}
    for name, path in wheels.items():
        session.put(listed[name]["sha256"], path, deadline_s=DEADLINE_S, progress=no_progress)
    uv = next(wheel for name, wheel in listed.items() if name.startswith("uv-"))
    call(
        session,
        "runtime.install",
        {
            "version": version,
            "python": "" if standalone else python.path,
            "standalone": standalone,
            "uv": uv,
            "wheels": list(listed.values()),
        },
    )


def await_healthy(session: HostSession, version: str) -> None:
    """Until this version serves and no activation is open any more; an assertion says what is there instead."""
    end_s = SYSTEM_CLOCK.monotonic_s() + SETTLE_S
    while True:
        state = session.snapshot(DEADLINE_S).runtime
        if state.healthy and state.version_running == version == state.current_version and not state.changing:
            return
        assert SYSTEM_CLOCK.monotonic_s() < end_s, state
        SYSTEM_CLOCK.sleep_s(0.5)

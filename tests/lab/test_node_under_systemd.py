"""The runtime as a systemd service on a plain host: activated, edited behind our back, killed, rebooted, removed. No internet there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.digests import canonical_json, sha256_bytes, sha256_file
from sbctl.base.errors import HostError
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.wheelhouse import Wheelhouse
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.lab.fixture import Lab, LabHost

pytestmark = pytest.mark.lab

LINEAGE = "22222222-3333-4444-5555-666666666666"
KEY = SigningKey.generate()
UNIT = "/etc/systemd/system/sbctl-runtime.service"
DEADLINE_S = 300.0


def call(session: HostSession, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    secrets: dict[str, Secret] = {}
    return session.call(method, params, secrets=secrets, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)


def activation(**config: Any) -> dict[str, Any]:
    trust = TrustSet(lineage=LINEAGE, key_epoch=0, signers={"ops": KEY.public_text})
    wanted = RuntimeConfig(**{"lineage": LINEAGE, "host": "h", "shutdown_deadline_ms": 3000, **config})
    payload = canonical_json(trust.model_dump(mode="json"))
    return {
        "version": __version__,
        "config": wanted.model_dump(mode="json"),
        "trust_envelope": sign_envelope(TRUST_PAYLOAD_TYPE, payload, KEY, "ops"),
    }


@pytest.fixture(scope="module")
def host(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """Claimed, with a runtime installed and not yet activated."""
    chosen = lab.hosts[-1]
    lab.pristine(chosen)
    session = open_session("h", chosen.connection(), clock=SYSTEM_CLOCK)
    call(session, "host.mark", {"lineage": LINEAGE, "host": "h"})
    facts = session.snapshot(DEADLINE_S).host
    python = facts.pythons[-1]
    cache = Path(os.environ.get("SBCTL_TEST_CACHE") or tmp_path_factory.mktemp("operator"))
    wheels = Wheelhouse(cache, os.environ).ensure(facts.arch, facts.libc, python.version, lambda _done, _total: None)
    listed = {name: {"filename": name, "sha256": sha256_file(path)} for name, path in wheels.items()}
    for name, path in wheels.items():
        session.put(listed[name]["sha256"], path, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)
    uv = next(wheel for name, wheel in listed.items() if name.startswith("uv-"))
    request = {"version": __version__, "python": python.path, "uv": uv, "wheels": list(listed.values())}
    call(session, "runtime.install", request)
    session.close()
    yield chosen
    lab.pristine(chosen)


@pytest.fixture
def session(host: LabHost) -> Iterator[HostSession]:
    opened = open_session("h", host.connection(), clock=SYSTEM_CLOCK)
    yield opened
    opened.close()


def test_a_runtime_is_a_service_that_is_drift_when_edited(session: HostSession, host: LabHost) -> None:
    answer = call(session, "runtime.activate", activation())
    assert answer["supervision"] == "system"
    state = session.snapshot(DEADLINE_S).runtime
    assert (state.supervision, state.unit_path, state.running, state.healthy) == ("system", UNIT, True, True)
    assert state.unit_sha256 == answer["unit_sha256"] == sha256_bytes(host.ssh(f"cat {UNIT}").encode())
    assert call(session, "runtime.activate", activation()) == answer

    host.ssh(f"sed -i s/RestartSec=2/RestartSec=3/ {UNIT}")
    assert session.snapshot(DEADLINE_S).runtime.unit_sha256 != answer["unit_sha256"]
    repaired = call(session, "runtime.activate", activation())
    assert repaired["unit_sha256"] == answer["unit_sha256"]
    assert "RestartSec=2" in host.ssh(f"cat {UNIT}")


def test_systemd_confines_it(session: HostSession, host: LabHost) -> None:
    answer = call(session, "runtime.activate", activation())
    status = host.ssh(f"cat /proc/{answer['pid']}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


def test_a_killed_runtime_and_a_rebooted_host_come_back(session: HostSession, host: LabHost, lab: Lab) -> None:
    before = call(session, "runtime.activate", activation())
    host.ssh(f"kill -9 {before['pid']}")
    assert call(session, "runtime.activate", activation())["pid"] != before["pid"]
    session.close()
    lab.kill(host)
    lab.start(host)
    again = open_session("h", host.connection(), clock=SYSTEM_CLOCK)
    try:
        end = SYSTEM_CLOCK.monotonic_s() + 60
        while not (state := again.snapshot(DEADLINE_S).runtime).healthy:
            assert SYSTEM_CLOCK.monotonic_s() < end, "the service did not come up after the reboot"
            SYSTEM_CLOCK.sleep_s(0.5)
        assert state.supervision == "system"
    finally:
        again.close()


def test_a_taken_port_is_said_before_the_running_runtime_is_touched(session: HostSession, host: LabHost) -> None:
    before = call(session, "runtime.activate", activation())["pid"]
    with pytest.raises(HostError) as caught:
        call(session, "runtime.activate", activation(http_bind_port=22))
    assert caught.value.code == "runtime.port_in_use"
    assert "22" in caught.value.message
    assert call(session, "runtime.activate", activation())["pid"] == before


def test_removal_leaves_nothing(session: HostSession, host: LabHost) -> None:
    call(session, "runtime.activate", activation())
    call(session, "runtime.remove", {"lineage": LINEAGE})
    call(session, "host.unmark", {"lineage": LINEAGE})
    left = host.ssh(
        "ls -d /etc/sbctl /var/lib/sbctl /var/cache/sbctl /opt/sbctl /etc/systemd/system/sbctl-runtime*"
        " /etc/systemd/system/*.wants/sbctl-runtime* 2>/dev/null; pgrep -fa '^/opt/sbctl';"
        " systemctl list-units --all --no-legend 'sbctl-runtime*'",
        check=False,
    )
    assert left.strip() == ""

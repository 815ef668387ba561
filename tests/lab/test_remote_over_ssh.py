"""SSH to real hosts: claimed, delivered to, installed on, cut off, switched off, found again."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.digests import sha256_file
from sbctl.base.errors import HostError, RefusedError, SbctlError, UnreachableError
from sbctl.remote.observe import observe_fleet
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.wheelhouse import Wheelhouse
from tests.lab.fixture import Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

DEADLINE_S = 60.0
MIB = 1024 * 1024


@pytest.fixture
def host(lab: Lab) -> Iterator[LabHost]:
    """h1 with nothing of ours on it, before and after."""
    lab.pristine(lab.hosts[0])
    yield lab.hosts[0]
    lab.pristine(lab.hosts[0])


@pytest.fixture
def session(host: LabHost) -> Iterator[HostSession]:
    opened = open_session(host.name, host.connection(), clock=SYSTEM_CLOCK)
    yield opened
    opened.close()


def _call(session: HostSession, method: str, params: dict[str, Any]) -> Any:
    return session.call(method, params, secrets={}, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)


def _put(session: HostSession, source: Path) -> list[int]:
    seen: list[int] = []
    session.put(sha256_file(source), source, deadline_s=DEADLINE_S, progress=lambda done, _total: seen.append(done))
    return seen


@pytest.fixture(scope="session")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "weights"
    path.write_bytes(os.urandom(MIB) * 40)
    return path


def test_a_fresh_host_tells_what_it_is(session: HostSession, host: LabHost) -> None:
    snapshot = session.snapshot(DEADLINE_S)
    assert not snapshot.bootstrapped
    assert snapshot.host.hostname == host.name
    assert snapshot.host.init == "systemd_system"
    assert snapshot.host.pythons[0].path.startswith("/usr/bin/python3")
    assert snapshot.marker is None
    assert snapshot.paths is not None
    assert snapshot.paths.staging == "/var/lib/sbctl/staging"
    assert host.ssh("command -v gcc cc g++ make pip pip3 uv", check=False) == "", "it needs none of them"


def test_a_user_without_rights_has_paths_of_its_own(host: LabHost) -> None:
    session = open_session(host.name, host.connection("ops"), clock=SYSTEM_CLOCK)
    snapshot = session.snapshot(DEADLINE_S)
    session.close()
    assert snapshot.host.uid == 1990
    assert snapshot.host.init == "none"
    assert snapshot.paths is not None
    assert snapshot.paths.opt == "/home/ops/.local/share/sbctl"


@pytest.mark.parametrize("form", ["fingerprint", "public key"])
def test_both_forms_of_a_pin_let_us_in(host: LabHost, form: str) -> None:
    pin = host.fingerprint if form == "fingerprint" else host.host_key
    session = open_session(host.name, replace(host.connection(), host_keys=(pin,)), clock=SYSTEM_CLOCK)
    assert session.snapshot(DEADLINE_S).host.hostname == host.name
    session.close()


def test_a_host_is_claimed_for_one_fleet_and_given_up_whole(session: HostSession, host: LabHost) -> None:
    _call(session, "host.mark", {"lineage": "l-1", "host": "h1"})
    assert session.snapshot(DEADLINE_S).marker is not None
    with pytest.raises(RefusedError) as caught:
        _call(session, "host.mark", {"lineage": "l-2", "host": "h1"})
    assert caught.value.code == "host.other_lineage"
    _call(session, "host.unmark", {"lineage": "l-1"})
    assert host.ssh("ls -d /etc/sbctl /var/lib/sbctl /var/cache/sbctl /opt/sbctl 2>/dev/null; true") == ""


def test_a_file_arrives_whole_and_is_not_sent_twice(session: HostSession, host: LabHost, large: Path) -> None:
    digest = sha256_file(large)
    assert _put(session, large)[-1] == large.stat().st_size
    assert host.ssh(f"sha256sum < /var/lib/sbctl/staging/blobs/{digest}").split()[0] == digest
    assert len(_put(session, large)) == 1


def test_an_upload_goes_on_where_a_cut_ended_it(lab: Lab, host: LabHost, large: Path) -> None:
    digest, sent = sha256_file(large), large.stat().st_size // 2
    session = open_session(host.name, host.connection(), clock=SYSTEM_CLOCK)

    def power_loss(done: int, _total: int | None) -> None:
        if done >= sent:
            lab.kill(host)

    with pytest.raises(SbctlError) as caught:
        session.put(digest, large, deadline_s=DEADLINE_S, progress=power_loss)
    assert caught.value.retryable
    lab.start(host)
    there = int(host.ssh(f"stat -c %s /var/lib/sbctl/staging/blobs/{digest}.part"))
    assert 0 < there < large.stat().st_size
    seen = _put(session, large)
    session.close()
    assert seen[0] > there - 1
    assert host.ssh(f"sha256sum < /var/lib/sbctl/staging/blobs/{digest}").split()[0] == digest


def test_a_beginning_with_other_bytes_is_thrown_away_and_sent_again(
    session: HostSession, host: LabHost, large: Path
) -> None:
    digest = sha256_file(large)
    host.ssh("mkdir -p /var/lib/sbctl/staging/blobs")
    host.ssh(f"head -c 1000000 /dev/zero > /var/lib/sbctl/staging/blobs/{digest}.part")
    _put(session, large)
    assert host.ssh(f"sha256sum < /var/lib/sbctl/staging/blobs/{digest}").split()[0] == digest


def test_E10_a_full_disk_is_named_and_leaves_the_host_usable(session: HostSession, host: LabHost, large: Path) -> None:
    host.ssh("mkdir -p /var/lib/sbctl && mount -t tmpfs -o size=8m small /var/lib/sbctl")
    try:
        with pytest.raises(SbctlError) as caught:
            _put(session, large)
        assert caught.value.code == "disk.full"
        assert not session.snapshot(DEADLINE_S).bootstrapped
    finally:
        host.ssh("umount /var/lib/sbctl")


def test_E10_a_read_only_disk_is_named(session: HostSession, host: LabHost) -> None:
    host.ssh("mkdir -p /etc/sbctl && mount -t tmpfs -o ro none /etc/sbctl")
    try:
        with pytest.raises(SbctlError) as caught:
            _call(session, "host.mark", {"lineage": "l-1", "host": "h1"})
        assert caught.value.code == "disk.read_only"
    finally:
        host.ssh("umount /etc/sbctl")


def test_a_cut_cable_is_a_host_that_cannot_be_reached_and_healing_needs_nothing(lab: Lab, host: LabHost) -> None:
    session = open_session(host.name, host.connection(), clock=SYSTEM_CLOCK)
    session.snapshot(DEADLINE_S)
    lab.cut(host)
    try:
        with pytest.raises(UnreachableError) as caught:
            session.snapshot(2.0)
        assert caught.value.retryable
    finally:
        lab.heal(host)
    assert session.snapshot(DEADLINE_S).host.hostname == host.name
    session.close()


def test_every_host_is_in_the_observation_whatever_happens_to_others(lab: Lab, host: LabHost) -> None:
    gone, silent = lab.hosts[1], lab.hosts[2]
    stranger = replace(host.connection(), user="nobody-there")
    lab.kill(gone)
    lab.cut(silent)
    try:
        connections = {
            "h1": host.connection(),
            "gone": gone.connection(),
            "silent": silent.connection(),
            "stranger": stranger,
        }
        with observe_fleet(connections, clock=SYSTEM_CLOCK, deadline_s=15) as observed:
            assert set(observed.snapshots) == {"h1"}
            assert {name: error.code for name, error in observed.unreachable.items() if name == "stranger"} == {
                "stranger": "ssh.authentication_failed"
            }
            assert observed.unreachable["gone"].code in {"ssh.no_route", "ssh.no_answer"}
            assert observed.unreachable["silent"].code in {"ssh.no_route", "ssh.no_answer"}
            assert list(observed.unreachable) == ["gone", "silent", "stranger"]
    finally:
        lab.heal(silent)
        lab.start(gone)


def test_E4_a_login_shell_that_talks_does_not_disturb(session: HostSession, host: LabHost) -> None:
    host.ssh("printf 'echo Welcome; echo warning >&2\\n' > /root/.bashrc")
    try:
        assert session.snapshot(DEADLINE_S).host.hostname == host.name
    finally:
        host.ssh("rm /root/.bashrc")


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory, lab: Lab) -> dict[str, Path]:
    """The real wheelhouse for the lab's hosts; from the cache named by SBCTL_TEST_CACHE when there is one."""
    session = open_session("h1", lab.hosts[0].connection(), clock=SYSTEM_CLOCK)
    facts = session.snapshot(DEADLINE_S).host
    session.close()
    cache = os.environ.get("SBCTL_TEST_CACHE")
    directory = Path(cache) if cache else tmp_path_factory.mktemp("operator")
    oldest = facts.pythons[-1]
    return Wheelhouse(directory, os.environ).ensure(facts.arch, facts.libc, oldest.version, lambda _done, _total: None)


def _deliver(session: HostSession, wheels: dict[str, Path]) -> dict[str, Any]:
    listed = {name: {"filename": name, "sha256": sha256_file(path)} for name, path in wheels.items()}
    for path in wheels.values():
        _put(session, path)
    uv = next(wheel for name, wheel in listed.items() if name.startswith("uv-"))
    python = session.snapshot(DEADLINE_S).host.pythons[-1].path
    return {"version": __version__, "python": python, "uv": uv, "wheels": list(listed.values())}


def test_a_runtime_is_installed_from_the_wheelhouse_without_internet(
    session: HostSession, host: LabHost, wheels: dict[str, Path]
) -> None:
    request = _deliver(session, wheels)
    assert _call(session, "runtime.install", request) == {"path": f"/opt/sbctl/{__version__}", "installed": True}
    program = f"/opt/sbctl/{__version__}/bin"
    assert host.ssh(f"{program}/python -I {program}/sbctl-runtime --version").split()[-1] == __version__
    assert host.ssh("ls -A /opt/sbctl /var/lib/sbctl/staging/blobs").split() == [
        "/opt/sbctl:",
        __version__,
        "/var/lib/sbctl/staging/blobs:",
    ]


def test_after_a_power_loss_in_an_installation_the_next_one_converges(
    lab: Lab, host: LabHost, wheels: dict[str, Path]
) -> None:
    session = open_session(host.name, host.connection(), clock=SYSTEM_CLOCK)
    request = _deliver(session, wheels)
    # The interpreter of the bootstrap ends the whole machine once the environment is being filled.
    host.ssh(
        "nohup sh -c 'while ! ls -d /opt/sbctl/.sbctl-tmp-*/environment/lib/python*/site-packages/pydantic; do sleep 0.02; done;"
        " kill -9 -1' >/dev/null 2>&1 &"
    )
    with pytest.raises(HostError) as caught:
        _call(session, "runtime.install", request)
    assert caught.value.code == "host.outcome_unknown"
    lab.kill(host)
    lab.start(host)
    assert not session.snapshot(DEADLINE_S).bootstrapped
    _call(session, "runtime.install", _deliver(session, wheels))
    session.close()
    assert hashlib.sha256(b"").hexdigest() not in host.ssh("ls /opt/sbctl")


def test_the_node_interface_answers_once_a_runtime_is_installed(
    session: HostSession, host: LabHost, wheels: dict[str, Path]
) -> None:
    _call(session, "runtime.install", _deliver(session, wheels))
    snapshot = session.snapshot(DEADLINE_S)
    assert snapshot.bootstrapped
    assert snapshot.host.hostname == host.name
    assert snapshot.runtime.installed_versions == (__version__,)
    assert _call(session, "artifact.remove", {"artifact": "0" * 64})["removed"] is False
    with pytest.raises(SbctlError) as caught:
        _call(session, "bundle.apply", {"envelope": "{}", "expected_revision": None})
    assert (caught.value.place or "").startswith(host.name)
    assert session.snapshot(DEADLINE_S).bootstrapped


def test_a_host_is_taken_in_and_given_up_again_without_a_trace(
    session: HostSession, host: LabHost, wheels: dict[str, Path]
) -> None:
    _call(session, "host.mark", {"lineage": "l-1", "host": host.name})
    _call(session, "runtime.install", _deliver(session, wheels))
    assert session.snapshot(DEADLINE_S).marker is not None
    with pytest.raises(RefusedError) as caught:
        _call(session, "host.unmark", {"lineage": "l-1"})
    assert caught.value.code == "host.not_empty"
    _call(session, "runtime.remove", {"lineage": "l-1"})
    snapshot = session.snapshot(DEADLINE_S)
    assert not snapshot.bootstrapped
    assert snapshot.runtime.installed_versions == ()
    assert snapshot.marker is not None
    _call(session, "host.unmark", {"lineage": "l-1"})
    assert host.ssh("ls -d /etc/sbctl /var/lib/sbctl /var/cache/sbctl /opt/sbctl 2>/dev/null; true") == ""
    assert host.ssh("pgrep -f [s]bctl-runtime; true") == ""

"""The systemd unit: what is in it, what may not get into it, and that systemd itself accepts it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base.errors import HostError
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import node_paths
from sbctl.runtime.nodeops.programs import Finished
from sbctl.runtime.nodeops.units import (
    GUARD_NAME,
    SOCKET_NAME,
    UNIT_NAME,
    Systemd,
    render_units,
    socket_addresses,
    systemd_of,
    unit_value,
    units_digest,
)

PATHS = node_paths(0, {})
VERSION = Path("/opt/sbctl/0.1.0")


def units(kind: str = "system", **config: object) -> dict[str, bytes]:
    made = RuntimeConfig(lineage="L", host="h", **config)  # type: ignore[arg-type]
    return dict(render_units(kind, PATHS, VERSION, made))  # type: ignore[arg-type]


def unit(kind: str = "system", **config: object) -> str:
    return units(kind, **config)[UNIT_NAME].decode()


def runnable(rendered: dict[str, bytes]) -> dict[str, bytes]:
    """With a program that is on this machine, which systemd-analyze looks for."""
    real = sys.executable.encode()
    return {
        name: text.replace(b"/opt/sbctl/0.1.0/bin/python", real).replace(b"/opt/sbctl/proven/bin/python", real)
        for name, text in rendered.items()
    }


@pytest.mark.flow
@settings(deadline=None, max_examples=30)
@given(
    st.integers(0, 65535),
    st.sampled_from(["127.0.0.1", "::1", "0.0.0.0", "::", "10.1.2.3"]),
    st.booleans(),
    st.integers(0, 65535),
    st.integers(1, 10**7),
)
def test_E15_what_is_rendered_depends_on_nothing_but_the_input(
    port: int, address: str, admin: bool, admin_port: int, deadline_ms: int
) -> None:
    config = {
        "http_bind_port": port,
        "http_bind_address": address,
        "admin_enabled": admin,
        "admin_port": admin_port,
        "shutdown_deadline_ms": deadline_ms,
    }
    first = units(**config)
    assert first == units(**config)
    listens = {line for line in first.get(SOCKET_NAME, b"").decode().splitlines() if line.startswith("ListenStream=")}
    assert {line.removeprefix("ListenStream=") for line in listens} == socket_addresses(first)
    wanted = [(address, port)] if port else []
    wanted += [("127.0.0.1", admin_port)] if admin and admin_port else []
    assert len(socket_addresses(first)) == len(set(wanted))


@pytest.mark.flow
@settings(deadline=None, max_examples=30)
@given(st.text(max_size=30))
def test_E15_an_address_gets_into_a_socket_unit_as_it_is_or_not_at_all(address: str) -> None:
    try:
        rendered = units(http_bind_address=address)
    except HostError as error:
        assert error.code == "runtime.unit_value_refused"
        return
    shown = f"[{address}]:8080" if ":" in address else f"{address}:8080"
    assert f"ListenStream={shown}" in rendered[SOCKET_NAME].decode().split("\n")
    assert socket_addresses(rendered) == {shown}
    assert rendered[SOCKET_NAME].count(b"=") == units()[SOCKET_NAME].count(b"=") + address.count("=")


def test_ports_belong_to_a_socket_unit_unless_the_kernel_chooses_them() -> None:
    assert socket_addresses(units(http_bind_port=80, admin_enabled=True)) == {"127.0.0.1:80", "127.0.0.1:9090"}
    assert "Sockets=sbctl-runtime.socket" in unit().splitlines()
    chosen = units(http_bind_port=0)
    assert SOCKET_NAME not in chosen
    assert b"Sockets=" not in chosen[UNIT_NAME]


def test_a_digest_stands_for_all_units() -> None:
    assert units_digest({}) is None
    assert units_digest(units()) == units_digest(dict(reversed(units().items())))
    digests = {units_digest({**units(), name: b"edited"}) for name in units()}
    assert len(digests | {units_digest(units())}) == 4


def test_a_unit_names_its_version_and_may_write_only_its_own_directories() -> None:
    lines = unit(cache_directory="/data/models").splitlines()
    assert "ExecStart=/opt/sbctl/0.1.0/bin/python -I -m sbctl.runtime.main serve" in lines
    assert "ReadWritePaths=/var/lib/sbctl /data/models" in lines
    assert "ProtectSystem=strict" in lines
    assert "NoNewPrivileges=yes" in lines


def test_the_daemon_has_no_privilege_since_systemd_opens_its_ports() -> None:
    lines = unit(http_bind_port=80, admin_port=90, admin_enabled=True).splitlines()
    assert "CapabilityBoundingSet=" in lines
    assert not any(line.startswith("AmbientCapabilities") for line in lines)


def test_stopping_has_more_time_than_the_runtime_takes() -> None:
    assert "TimeoutStopSec=80" in unit(shutdown_deadline_ms=60_000)


@pytest.mark.parametrize(
    "value",
    ["/a\nExecStartPre=/evil", "/a%n", "/a$HOME", "/a b", "/a\\x", '/a"', "/a'", "/a;b", "", "/ä", "/a\0", "/a\r"],
)
def test_what_systemd_reads_otherwise_never_gets_into_a_unit(value: str) -> None:
    with pytest.raises(HostError) as caught:
        unit(cache_directory=value) if value else unit_value(value)
    assert caught.value.code == "runtime.unit_value_refused"


@given(st.text(max_size=40))
def test_a_value_stands_in_a_unit_as_it_is_or_not_at_all(value: str) -> None:
    try:
        assert unit_value(value) == value
    except HostError:
        return
    assert not set(value) & set("\n\r%$\\\"' ;#")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
@pytest.mark.parametrize("kind", ["system", "user"])
def test_systemd_accepts_the_units(tmp_path: Path, kind: str) -> None:
    files = runnable(units(kind, admin_enabled=True))
    for name, text in files.items():
        (tmp_path / name).write_bytes(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *(str(tmp_path / name) for name in files)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


class Scripted(Systemd):
    """systemctl that fails where it is told to."""

    failing = ""

    def ctl(self, *arguments: str, deadline_s: float = 30.0) -> Finished:
        return Finished(1 if arguments[0] == self.failing else 0, "no")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_E11_units_are_installed_once_and_only_when_systemd_accepts_all_of_them(tmp_path: Path) -> None:
    manager = Scripted("system", tmp_path, {})
    good = runnable(units())
    assert manager.install(good)
    assert not manager.install(good)
    assert manager.installed() == good
    for name, broken in ((UNIT_NAME, b"ExecStart=relative/"), (GUARD_NAME, b"ExecStart=relative/")):
        with pytest.raises(HostError) as caught:
            manager.install({**good, name: good[name].replace(b"ExecStart=", broken)})
        assert caught.value.code == "runtime.unit_invalid"
        assert manager.installed() == good
    assert {path.name for path in tmp_path.iterdir()} == set(good)


def test_E11_units_that_systemd_does_not_read_are_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Systemd, "verify", lambda _self, _units: None)
    manager = Scripted("system", tmp_path, {})
    monkeypatch.setattr(Scripted, "failing", "daemon-reload")
    with pytest.raises(HostError) as caught:
        manager.install(units())
    assert caught.value.code == "host.systemctl_failed"
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(Scripted, "failing", "")
    manager.install(units())
    monkeypatch.setattr(Scripted, "failing", "daemon-reload")
    with pytest.raises(HostError):
        manager.install(units(http_bind_port=0))
    assert manager.installed() == units()


def test_a_socket_that_is_not_wanted_any_more_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Systemd, "verify", lambda _self, _units: None)
    manager = Scripted("system", tmp_path, {})
    manager.install(units())
    manager.install(units(http_bind_port=0))
    assert sorted(path.name for path in tmp_path.iterdir()) == [GUARD_NAME, UNIT_NAME]


def test_the_manager_follows_from_the_facts() -> None:
    system = systemd_of("systemd_system", {}, 0)
    assert system is not None
    assert system.unit_path == Path("/etc/systemd/system/sbctl-runtime.service")
    user = systemd_of("systemd_user", {"HOME": "/home/u"}, 1000)
    assert user is not None
    assert user.unit_path == Path("/home/u/.config/systemd/user/sbctl-runtime.service")
    assert user.environ["XDG_RUNTIME_DIR"] == "/run/user/1000"
    assert systemd_of("none", {}, 0) is None

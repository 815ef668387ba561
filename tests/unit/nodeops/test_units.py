"""The systemd unit: what is in it, what may not get into it, and that systemd itself accepts it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import HostError
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import node_paths
from sbctl.runtime.nodeops.units import UNIT_NAME, Systemd, render_unit, systemd_of, unit_value

PATHS = node_paths(0, {})
VERSION = Path("/opt/sbctl/0.1.0")


def unit(kind: str = "system", **config: object) -> str:
    made = RuntimeConfig(lineage="L", host="h", **config)  # type: ignore[arg-type]
    return render_unit(kind, PATHS, VERSION, made).decode()  # type: ignore[arg-type]


def test_the_same_input_gives_the_same_bytes() -> None:
    assert unit() == unit()
    assert "20" not in [line for line in unit().splitlines() if line.startswith("#")]


def test_a_unit_names_its_version_and_may_write_only_its_own_directories() -> None:
    lines = unit(cache_directory="/data/models").splitlines()
    assert "ExecStart=/opt/sbctl/0.1.0/bin/python -I -m sbctl.runtime.main serve" in lines
    assert "ReadWritePaths=/var/lib/sbctl /data/models" in lines
    assert "ProtectSystem=strict" in lines
    assert "NoNewPrivileges=yes" in lines


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "CapabilityBoundingSet="),
        ({"http_bind_port": 80}, "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"),
        ({"admin_port": 90}, "CapabilityBoundingSet="),
        ({"admin_port": 90, "admin_enabled": True}, "CapabilityBoundingSet=CAP_NET_BIND_SERVICE"),
    ],
)
def test_a_privilege_is_given_only_for_a_port_that_needs_it(config: dict[str, object], expected: str) -> None:
    assert expected in unit(**config).splitlines()


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
def test_systemd_accepts_the_unit(tmp_path: Path, kind: str) -> None:
    text = unit(kind).replace("/opt/sbctl/0.1.0/bin/python", sys.executable)
    (tmp_path / UNIT_NAME).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(tmp_path / UNIT_NAME)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_a_unit_is_installed_once_and_only_when_systemd_accepts_it(tmp_path: Path) -> None:
    manager = Systemd("system", tmp_path / UNIT_NAME, {})
    good = unit().replace("/opt/sbctl/0.1.0/bin/python", sys.executable).encode()
    assert manager.install(good)
    assert not manager.install(good)
    assert manager.installed() == good
    with pytest.raises(HostError) as caught:
        manager.install(good.replace(b"ExecStart=", b"ExecStart=relative/"))
    assert caught.value.code == "runtime.unit_invalid"
    assert manager.installed() == good
    assert [path.name for path in tmp_path.iterdir()] == [UNIT_NAME]


def test_the_manager_follows_from_the_facts() -> None:
    system = systemd_of("systemd_system", {}, 0)
    assert system is not None
    assert system.unit_path == Path("/etc/systemd/system/sbctl-runtime.service")
    user = systemd_of("systemd_user", {"HOME": "/home/u"}, 1000)
    assert user is not None
    assert user.unit_path == Path("/home/u/.config/systemd/user/sbctl-runtime.service")
    assert user.environ["XDG_RUNTIME_DIR"] == "/run/user/1000"
    assert systemd_of("none", {}, 0) is None

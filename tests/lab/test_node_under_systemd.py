"""The runtime as a systemd service on a plain host: activated, edited behind our back, killed, rebooted, removed. No internet there."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError
from sbctl.remote.session import HostSession, open_session
from tests.lab.fixture import Lab, LabHost
from tests.lab.runtime_host import DEADLINE_S, LINEAGE, activation, call, install

pytestmark = pytest.mark.lab

UNIT = "/etc/systemd/system/sbctl-runtime.service"


@pytest.fixture(scope="module")
def host(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """Claimed, with a runtime installed and not yet activated."""
    chosen = lab.hosts[-1]
    lab.pristine(chosen)
    session = open_session("h", chosen.connection(), clock=SYSTEM_CLOCK)
    install(session, tmp_path_factory.mktemp("operator"))
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
    assert state.unit_sha256 == answer["unit_sha256"] is not None
    assert call(session, "runtime.activate", activation()) == answer

    host.ssh(f"sed -i s/RestartSec=2/RestartSec=3/ {UNIT}")
    assert session.snapshot(DEADLINE_S).runtime.unit_sha256 != answer["unit_sha256"]
    repaired = call(session, "runtime.activate", activation())
    assert repaired["unit_sha256"] == answer["unit_sha256"]
    assert "RestartSec=2" in host.ssh(f"cat {UNIT}")


def test_systemd_confines_it(session: HostSession, host: LabHost) -> None:
    answer = call(session, "runtime.activate", activation(admin_enabled=True))
    status = host.ssh(f"cat /proc/{answer['pid']}/status")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert int(fields["CapEff"], 16) == 0
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"
    assert fields["Uid"].split()[0] == host.ssh("id -u sbctl").strip() != "0"
    assert fields["Groups"].split() in ([], [host.ssh("id -g sbctl").strip()])


def test_its_exposure_is_at_most_two(session: HostSession, host: LabHost) -> None:
    call(session, "runtime.activate", activation())
    shown = host.ssh("systemd-analyze security --no-pager sbctl-runtime.service | tail -2")
    score = re.search(r"exposure level for sbctl-runtime.service: ([0-9.]+)", shown)
    assert score is not None, shown
    assert float(score[1]) <= 2.0


def test_the_admin_password_is_a_credential_that_the_account_cannot_read_from_the_file(
    session: HostSession, host: LabHost
) -> None:
    call(session, "runtime.activate", activation(admin_enabled=True))
    password = host.ssh("cat /etc/sbctl/secrets/admin_password")
    answered = host.ssh(
        f"curl -s -o /dev/null -w '%{{http_code}}' -u admin:{password} http://127.0.0.1:9090/admin/model-host/status"
    )
    assert answered == "200"


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
    assert "sshd (pid" in caught.value.message
    assert call(session, "runtime.activate", activation())["pid"] == before


def test_removal_leaves_nothing(session: HostSession, host: LabHost) -> None:
    call(session, "runtime.activate", activation())
    call(session, "runtime.remove", {"lineage": LINEAGE})
    call(session, "host.unmark", {"lineage": LINEAGE})
    left = host.ssh(
        "ls -d /etc/sbctl /var/lib/sbctl /var/cache/sbctl /opt/sbctl /run/sbctl /etc/systemd/system/sbctl-*.s*"
        " /etc/systemd/system/*.wants/sbctl-*.s* 2>/dev/null; pgrep -fa '^/opt/sbctl';"
        " systemctl list-units --all --no-legend 'sbctl-*.s*'; getent passwd sbctl sbctl-engine",
        check=False,
    )
    assert left.strip() == ""

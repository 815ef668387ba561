"""Engines on a host of the lab: units of their own, started by root's launcher, that outlive the runtime but not for long."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.remote.session import open_session
from sbctl.trust.bundle import EnginePolicy
from tests.lab.fixture import Lab
from tests.lab.runtime_host import DEADLINE_S, LINEAGE, activation, call, install
from tests.lab.serving_host import PROGRAM, WAIT_S, WHEEL, Host
from tests.simulators.runtime_world import weights

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def host(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    chosen = lab.hosts[1]
    lab.pristine(chosen)
    folder = tmp_path_factory.mktemp("operator")
    session = open_session("h", chosen.connection(), clock=SYSTEM_CLOCK)
    install(session, folder)
    made = Host(chosen, session, weights(folder))
    made.install_engine()
    call(session, "runtime.activate", activation())
    made.bring_weights(folder)
    yield made
    made.session.close()
    lab.pristine(chosen)


@pytest.fixture
def serving(host: Host) -> Host:
    """With `chat` ready, its engine behind a UNIX socket."""
    call(host.session, "runtime.activate", activation())
    host.apply(policy=WHEEL)
    host.await_engine()
    return host


def test_an_engine_is_a_unit_of_its_own_with_nothing_it_does_not_need(serving: Host) -> None:
    pid = serving.await_engine()
    (unit,) = serving.units()
    assert serving.host.ssh(f"systemctl show --property MainPID --value {unit}").strip() == str(pid)
    assert serving.host.ssh(f"ps -o user:20= -p {pid}").strip() == "sbctl-engine"
    assert serving.host.ssh(f"nsenter -t {pid} -n ip -br link").split()[0] == "lo"
    status = dict(
        line.split(":\t", 1) for line in serving.host.ssh(f"cat /proc/{pid}/status").splitlines() if ":\t" in line
    )
    assert (int(status["CapEff"], 16), int(status["CapBnd"], 16), status["NoNewPrivs"]) == (0, 0, "1")
    for denied in (
        "cat /etc/sbctl/runtime.json",
        "ls /etc/sbctl/secrets",
        "ls /var/lib/sbctl",
        "touch /var/cache/sbctl/models/x",
        "touch /opt/x",
    ):
        inside = (
            f"nsenter -t {pid} -m -S $(id -u sbctl-engine) -G $(id -g sbctl-engine) {denied} 2>&1 && echo ALLOWED; true"
        )
        assert "ALLOWED" not in serving.host.ssh(inside), denied
    analysis = serving.host.ssh(f"systemd-analyze security --no-pager {unit}")
    exposure = float(analysis.rstrip().splitlines()[-1].split(":")[1].split()[0])
    print(analysis.rstrip().splitlines()[-1])
    assert exposure <= 2.0
    shown = serving.host.ssh(f"systemctl show --property MemoryMax,MemorySwapMax {unit}")
    limits = dict(line.split("=") for line in shown.splitlines())
    memory = int(serving.host.ssh("grep MemTotal /proc/meminfo").split()[1]) * 1024
    assert 2**26 <= int(limits["MemoryMax"]) < memory, "a ceiling of its own, below the machine's memory"
    assert limits["MemorySwapMax"] == "0"
    assert serving.complete()


def test_the_runtime_is_not_root_and_its_secrets_are_not_for_engines(serving: Host) -> None:
    runtime = serving.session.snapshot(DEADLINE_S).runtime
    assert serving.host.ssh(f"ps -o user:20= -p {runtime.pid}").strip() == "sbctl"
    as_engine = "setpriv --reuid=sbctl-engine --regid=sbctl-engine --clear-groups"
    for path in ("/etc/sbctl/secrets", "/var/lib/sbctl"):
        assert "Permission denied" in serving.host.ssh(f"{as_engine} ls {path} 2>&1; true")
    socket = serving.host.ssh("ls /run/sbctl/engines/*/engine.sock").strip()
    for stranger in ("ops", "nobody"):
        reach = f"setpriv --reuid={stranger} --regid=nogroup --clear-groups curl -s -m 5 --unix-socket {socket} http://x/health && echo REACHED; true"
        assert "REACHED" not in serving.host.ssh(reach)


def test_the_launcher_hears_the_runtime_and_root_alone(serving: Host) -> None:
    ask = (
        "import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect('/run/sbctl/launcher.sock');"
        " s.sendall(sys.argv[1].encode()+b'\\n'); print(s.makefile().readline())"
    )
    for stranger in ("ops", "sbctl-engine"):
        asked = f"""setpriv --reuid={stranger} --regid=nogroup --clear-groups python3 -c "{ask}" '{{"op":"list"}}' 2>&1; true"""
        assert "Permission denied" in serving.host.ssh(asked)
    hostile = json.dumps({"op": "start", "spec": {"argv": ["/bin/sh"]}})
    assert "launcher.refused" in serving.host.ssh(f"""python3 -c "{ask}" '{hostile}'""")
    assert "launcher.refused" in serving.host.ssh(
        f"""python3 -c "{ask}" '{{"op":"stop","unit":"ssh.service","grace_s":0}}'"""
    )


def test_a_restart_of_the_runtime_keeps_the_engine(serving: Host) -> None:
    before = serving.await_engine()
    runtime = serving.session.snapshot(DEADLINE_S).runtime.pid
    for _ in range(3):
        serving.host.ssh("systemctl restart sbctl-runtime.service")
        assert serving.complete()
        assert serving.await_engine() == before
    assert serving.session.snapshot(DEADLINE_S).runtime.pid != runtime


def test_F24_a_killed_runtime_finds_its_engine_again(serving: Host) -> None:
    before = serving.await_engine()
    killed = serving.session.snapshot(DEADLINE_S).runtime.pid
    serving.host.ssh(f"kill -9 {killed}")
    end_s = SYSTEM_CLOCK.monotonic_s() + WAIT_S
    while serving.session.snapshot(DEADLINE_S).runtime.pid in (killed, None):
        assert SYSTEM_CLOCK.monotonic_s() < end_s
        SYSTEM_CLOCK.sleep_s(0.2)
    assert serving.await_engine() == before
    assert serving.complete()


def test_a_killed_launcher_leaves_engines_alone(serving: Host) -> None:
    before = serving.await_engine()
    serving.host.ssh("systemctl kill --signal=SIGKILL sbctl-launcher.service")
    serving.host.ssh("systemctl restart sbctl-runtime.service")
    assert serving.await_engine() == before
    assert serving.complete()


def test_an_engine_that_ends_is_seen_and_started_again(serving: Host) -> None:
    before = serving.await_engine()
    serving.host.ssh(f"kill -9 {before}")
    end_s = SYSTEM_CLOCK.monotonic_s() + WAIT_S
    while serving.engine_pid() in (before, None):
        assert SYSTEM_CLOCK.monotonic_s() < end_s
        SYSTEM_CLOCK.sleep_s(0.2)
    assert len(serving.units()) == 1
    assert serving.complete()


def test_another_way_to_start_it_is_another_engine(serving: Host) -> None:
    before = serving.await_engine()
    serving.apply(policy=WHEEL, context_length=640)
    assert serving.await_engine() != before
    assert len(serving.units()) == 1


def test_a_program_of_the_users_is_listed_by_its_bundle_and_listens_on_loopback(serving: Host) -> None:
    serving.apply(policy=EnginePolicy(engine="llama_cpp", launch="binary", path=PROGRAM))
    pid = serving.await_engine()
    assert PROGRAM in serving.host.ssh("cat /etc/sbctl/launcher.json")
    assert serving.host.ssh(f"ps -o user:20= -p {pid}").strip() == "sbctl-engine"
    assert serving.complete()
    serving.apply(policy=WHEEL)
    assert PROGRAM not in serving.host.ssh("cat /etc/sbctl/launcher.json")


def test_engines_are_stopped_when_the_runtime_stays_away(serving: Host) -> None:
    serving.await_engine()
    listed = json.loads(serving.host.ssh("cat /etc/sbctl/launcher.json"))
    assert listed["away_s"] == 60
    serving.write("/etc/sbctl/launcher.json", json.dumps({**listed, "away_s": 2}).encode())
    serving.host.ssh("systemctl stop sbctl-runtime.service")
    serving.until_no_unit()
    serving.write("/etc/sbctl/launcher.json", json.dumps(listed).encode())


def test_a_rebooted_host_serves_again(serving: Host, lab: Lab) -> None:
    serving.await_engine()
    serving.session.close()
    lab.kill(serving.host)
    lab.start(serving.host)
    serving.session = open_session("h", serving.host.connection(), clock=SYSTEM_CLOCK)
    assert serving.await_engine()
    assert len(serving.units()) == 1
    assert serving.complete()


def test_removal_leaves_nothing(serving: Host) -> None:
    serving.await_engine()
    call(serving.session, "runtime.remove", {"lineage": LINEAGE})
    assert serving.units() == []
    left = serving.host.ssh(
        "ls -d /run/sbctl /etc/systemd/system/sbctl-[!l]* /etc/systemd/system/sbctl-launcher* /etc/systemd/system/*.wants/sbctl-* /var/lib/sbctl /opt/sbctl 2>/dev/null;"
        " grep sbctl /etc/passwd /etc/group; pgrep -u sbctl-engine; systemctl list-units --all --no-legend 'sbctl-*.service' 'sbctl-*.socket'",
        check=False,
    )
    assert left.strip() == ""

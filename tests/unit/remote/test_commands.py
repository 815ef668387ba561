"""One command of the operator's on a host."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import paramiko
import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, InputError, SbctlError, UnreachableError
from sbctl.remote.commands import run_here, run_on_host
from sbctl.remote.ssh_links import SshLinks
from sbctl.remote.transport import Completed
from tests.simulators.hostile_ssh import HostileSsh, endless, never_ends, prints

pytestmark = pytest.mark.waits

ENVIRONMENT = {"PATH": os.environ["PATH"]}


def here(*argv: str, deadline_s: float = 60) -> Completed:
    return run_here("me", argv, environ=ENVIRONMENT, deadline_s=deadline_s)


def test_streams_and_status_are_told_apart() -> None:
    done = here("sh", "-c", "cat; echo out; echo err >&2; exit 3")
    assert done == Completed(3, b"out\n", b"err\n")


def test_a_command_that_a_signal_ended_has_the_status_of_a_shell() -> None:
    assert here("sh", "-c", "kill -9 $$").status == 137


@pytest.mark.parametrize(
    ("argv", "code"),
    [
        (("/no/such/program",), "exec.not_started"),
        (("/",), "exec.not_started"),
        (("a\0b",), "exec.not_started"),
        (("sh", "-c", "yes | head -c 2000000"), "remote.output_too_large"),
        (("sh", "-c", "yes | head -c 2000000 >&2"), "remote.output_too_large"),
    ],
)
def test_what_does_not_run_or_says_too_much(argv: tuple[str, ...], code: str) -> None:
    with pytest.raises(HostError) as caught:
        here(*argv)
    assert caught.value.code == code


def test_the_deadline_ends_the_command_and_all_that_it_started(tmp_path: Path) -> None:
    mark = tmp_path / "child"
    with pytest.raises(UnreachableError) as caught:
        here("sh", "-c", f"sleep 600 & echo $! > {mark}; wait", deadline_s=1.0)
    assert caught.value.code == "remote.timeout"
    status = Path(f"/proc/{mark.read_text().strip()}/stat")
    assert not status.exists() or status.read_text().split(") ")[1].startswith("Z")


@pytest.mark.parametrize(
    ("behaviour", "code"),
    [(endless, "remote.output_too_large"), (never_ends, "remote.timeout"), (None, "ssh.host_key_unknown")],
)
def test_E4_a_host_that_floods_hangs_or_is_not_pinned(tmp_path: Path, behaviour: object, code: str) -> None:
    with HostileSsh(tmp_path, behaviour or prints(b"")) as hostile:  # type: ignore[arg-type]
        connection = (
            hostile.connection
            if behaviour
            else Connection("ssh", "127.0.0.1", hostile.port, "ops", (), str(hostile.identity_file))
        )
        links = SshLinks(SYSTEM_CLOCK)
        with pytest.raises(SbctlError) as caught:
            run_on_host(
                "bad",
                connection,
                ["x"],
                clock=SYSTEM_CLOCK,
                links=links,
                environ={},
                deadline_s=3 if behaviour is never_ends else 60,
            )
        assert caught.value.code == code
        assert hostile.seen.auth_attempts == [] or behaviour is not None


def test_E7_the_words_of_a_command_arrive_as_they_are(tmp_path: Path) -> None:
    with HostileSsh(tmp_path, prints(b"out", b"err", 4)) as hostile:
        links = SshLinks(SYSTEM_CLOCK)
        argv = ["printf", "%s", "$(id) 'x' \"y\" ; -n é"]
        done = run_on_host("h", hostile.connection, argv, clock=SYSTEM_CLOCK, links=links, environ={}, deadline_s=60)
        assert done == Completed(4, b"out", b"err")
        assert hostile.seen.commands == ["exec printf %s '$(id) '\"'\"'x'\"'\"' \"y\" ; -n é'"]
        with pytest.raises(InputError):
            run_on_host("h", hostile.connection, ["a\nb"], clock=SYSTEM_CLOCK, links=links, environ={}, deadline_s=60)


def test_a_command_can_be_ended_early() -> None:
    done = run_here("me", ["sleep", "600"], environ=ENVIRONMENT, deadline_s=300, begun=lambda end: end())
    assert done.status == 137


def test_a_command_over_ssh_can_be_ended_early(tmp_path: Path) -> None:
    running = threading.Event()

    def runs(channel: paramiko.Channel, command: str, ended: threading.Event) -> None:
        running.set()
        never_ends(channel, command, ended)

    with HostileSsh(tmp_path, runs) as hostile:
        ends: list[Callable[[], None]] = []
        links = SshLinks(SYSTEM_CLOCK)
        ender = threading.Thread(target=lambda: (running.wait(60), ends[0]()))
        ender.start()
        with pytest.raises(UnreachableError) as caught:
            run_on_host(
                "h",
                hostile.connection,
                ["x"],
                clock=SYSTEM_CLOCK,
                links=links,
                environ={},
                deadline_s=300,
                begun=ends.append,
            )
        ender.join()
        assert caught.value.code == "remote.lost"

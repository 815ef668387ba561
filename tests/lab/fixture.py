"""The lab as a fixture: real hosts with systemd and sshd on this machine, booted once a session and always ended again.

`lab` skips, with the reason, where hosts cannot be booted. One test run at a time uses the lab; another one waits for it. Tests that need
more hosts have a second lab beside it, by `booted`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from sbctl.base.connection import Connection

__all__ = ["LARGE_LAB_NUMBER", "Lab", "LabHost", "booted", "lab", "why_not"]

SCRIPT = Path(__file__).with_name("hosts.sh")
LAB_NUMBER = int(os.environ.get("SBCTL_LAB", "0"))
"""Several labs can run on one machine; a test run uses this one, and LARGE_LAB_NUMBER where a test needs more hosts."""
LARGE_LAB_NUMBER = (LAB_NUMBER + 50) % 100
ROOT = Path(f"/run/sbctl-lab-{LAB_NUMBER}")
HOST_COUNT = 3
SUDO_PASSWORD = "correct horse"
WAIT_FOR_OTHER_RUN_S = 600
COMMANDS = ("ip", "unshare", "nsenter", "setpriv", "ssh-keygen", "sshd", "mountpoint")


@dataclass(frozen=True)
class LabHost:
    """One host: log in as `root`, `ops` (no rights), `deploy` or `pw` (sudo, with the password SUDO_PASSWORD) with `identity_file`."""

    number: int
    lab: int = LAB_NUMBER

    @property
    def root(self) -> Path:
        """Where the lab keeps its files on this machine."""
        return Path(f"/run/sbctl-lab-{self.lab}")

    @property
    def name(self) -> str:
        return f"h{self.number}"

    @property
    def address(self) -> str:
        return f"10.78.{self.lab}.{self.number}"

    @property
    def host_key(self) -> str:
        """The public key line, without its comment."""
        kind, blob, *_ = (self.root / self.name / "host_key.pub").read_text().split()
        return f"{kind} {blob}"

    @property
    def fingerprint(self) -> str:
        shown = _output(["ssh-keygen", "-lf", str(self.root / self.name / "host_key.pub")])
        return shown.split()[1]

    @property
    def identity_file(self) -> str:
        return str(self.root / "operator_key")

    def connection(self, user: str = "root") -> Connection:
        """How sbctl reaches it, pinned by fingerprint."""
        return Connection("ssh", self.address, 22, user, (self.fingerprint,), self.identity_file)

    def ssh(
        self, *argv: str, user: str = "root", timeout_s: float = 60, check: bool = True, sibling: LabHost | None = None
    ) -> str:
        """The output of a command on the host, run by OpenSSH's own client; for looking from outside at what sbctl did.

        `sibling`: from where that host stands in the network, for a host that is hidden.
        """
        start = sibling.network() if sibling is not None else ()
        return _output([*start, *self.command(user), *argv], timeout_s=timeout_s, check=check)

    def command(self, user: str = "root") -> list[str]:
        """OpenSSH's client on the way to this host; what runs there is to be appended."""
        known = self.root / "known_hosts"
        hosts = (LabHost(number, self.lab) for number in _numbers(self.root))
        text = "".join(f"{host.address} {host.host_key}\n" for host in hosts)
        # Not written anew for each call: another thread's ssh may be reading it.
        if not known.exists() or known.read_text() != text:
            known.write_text(text)
        options = [f"UserKnownHostsFile={known}", "BatchMode=yes", "ConnectTimeout=10"]
        return [
            "ssh",
            "-i",
            self.identity_file,
            *(part for each in options for part in ("-o", each)),
            f"{user}@{self.address}",
        ]

    def network(self) -> tuple[str, ...]:
        """What begins a command line of this machine that shall run where the host stands in the network."""
        return ("ip", "netns", "exec", f"sbctl-{self.lab}-{self.name}")


class Lab:
    """All hosts. What one test does to a host, it undoes: `heal` after `cut`, `start` after `kill`, files by `pristine`.

    `bastion` is one more, that only those use who need a jump beside all of `hosts`.
    """

    def __init__(self, hosts: Sequence[LabHost]) -> None:
        self.hosts = tuple(hosts)
        self.number = hosts[0].lab
        self.bastion = LabHost(len(self.hosts) + 1, self.number)

    def kill(self, host: LabHost) -> None:
        """Power loss."""
        _hosts(self.number, "kill", str(host.number))

    def start(self, host: LabHost) -> None:
        """Boot from the disk as the power loss left it; returns when sshd answers."""
        _hosts(self.number, "start", str(host.number))

    def cut(self, host: LabHost) -> None:
        """No packet passes; connections stay as they are."""
        _hosts(self.number, "cut", str(host.number))

    def heal(self, host: LabHost) -> None:
        _hosts(self.number, "heal", str(host.number))

    def hide(self, host: LabHost) -> None:
        """Only its siblings reach it: one of them must be the jump."""
        _hosts(self.number, "hide", str(host.number))

    def show(self, host: LabHost) -> None:
        _hosts(self.number, "show", str(host.number))

    def pristine(self, host: LabHost) -> None:
        """Remove whatever sbctl left on the host, programs included."""
        host.ssh(
            "systemctl stop sbctl-runtime.socket sbctl-launcher.socket 'sbctl*.service' 2>/dev/null;"
            "pkill -KILL -f [/]opt/sbctl/;"
            "rm -rf /etc/sbctl /var/lib/sbctl /var/cache/sbctl /opt/sbctl /run/sbctl"
            " /var/lib/sbctl-store /var/lib/private/sbctl-store"
            " /etc/systemd/system/sbctl-*.service /etc/systemd/system/sbctl-*.socket /etc/systemd/system/*.wants/sbctl-*.s*"
            " /home/ops/.config/sbctl-runtime /home/ops/.local /home/ops/.cache; systemctl daemon-reload;"
            " userdel sbctl-engine 2>/dev/null; userdel sbctl 2>/dev/null; true"
        )


def _numbers(root: Path) -> list[int]:
    return sorted(int(path.name[1:]) for path in root.glob("h[0-9]*"))


def _output(argv: Sequence[str], *, timeout_s: float = 60, check: bool = True) -> str:
    done = subprocess.run(list(argv), capture_output=True, text=True, timeout=timeout_s, check=False)
    if check and done.returncode != 0:
        raise AssertionError(f"{argv} ended with {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def _hosts(number: int, *arguments: str, disk: str | None = None) -> None:
    # Not captured: the hosts' own processes would hold a pipe open for as long as they live.
    environment = {**os.environ, "SBCTL_LAB": str(number)}
    if disk is not None:
        environment["SBCTL_LAB_DISK"] = disk
    subprocess.run([str(SCRIPT), *arguments], check=True, timeout=120, stdin=subprocess.DEVNULL, env=environment)


def why_not() -> str | None:
    """Why no host can be booted here, or None."""
    if os.geteuid() != 0:
        return "the lab needs root"
    missing = [name for name in COMMANDS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None]
    if missing:
        return f"the lab needs {', '.join(missing)}"
    if not Path("/lib/systemd/systemd").exists():
        return "the lab needs systemd as a program"
    if not Path("/usr/bin/python3").exists():
        return "the lab's hosts need the system's Python at /usr/bin/python3"
    if "overlay" not in Path("/proc/filesystems").read_text():
        return "the lab needs overlayfs"
    if subprocess.run(
        ["unshare", "--mount", "--net", "--pid", "--fork", "true"], capture_output=True, check=False
    ).returncode:
        return "the lab needs the right to create namespaces"
    return None


@contextlib.contextmanager
def booted(count: int, *, number: int = LAB_NUMBER, disk: str | None = None) -> Iterator[Lab]:
    """Hosts for the length of the block. `disk`: the size of each host's own, as mount takes it."""
    with Path(f"/run/sbctl-lab-{number}.lock").open("w") as lock:
        deadline = time.monotonic() + WAIT_FOR_OTHER_RUN_S
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    pytest.skip("another test run uses the lab")
                time.sleep(0.5)
        _hosts(number, "down")
        try:
            _hosts(number, "up", str(count), disk=disk)
            yield Lab([LabHost(each, number) for each in range(1, count + 1)])
        finally:
            _hosts(number, "down")


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Three hosts, h1 to h3, and a bastion, h4."""
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with booted(HOST_COUNT + 1) as running:
        yield Lab(running.hosts[:HOST_COUNT])

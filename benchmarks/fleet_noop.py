"""What it costs to find that a fleet needs nothing: `sbctl apply` and `plan` over SSH, beside `pyinfra --dry` and `ansible --check`.

    .venv/bin/python benchmarks/fleet_noop.py [--hosts N] [--runs N]

N lab hosts, each with its own sshd and systemd, are given a runtime that serves one deployment. Then every tool looks at the same hosts over
the same connections, as root with the same key and pinned host keys, ten hosts at a time, and finds nothing to do. pyinfra and ansible check
four things that `sbctl` put there, a fraction of what it checks itself: the user `sbctl`, the directory /etc/sbctl with owner and mode, the
file of the unit by its content, the running and enabled service. CPU seconds are user and system of the client with its children, not
of the hosts; the least of the runs counts. The tools take turns, so that other work on the machine meets all alike.

pyinfra and ansible-core are installed into a temporary environment, and left out, with the reason, where that is not possible.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lab_fleet import Cost, LabFleet, lab_fleet, least, measured, require_lab  # noqa: E402
from tests.lab.fixture import LabHost  # noqa: E402
from tests.simulators.operator_world import SBCTL  # noqa: E402

UV = Path(sys.executable).with_name("uv")
AT_ONCE = 10
UNIT = Path("/etc/systemd/system/sbctl-runtime.service")
MARKS = {"pyinfra --dry": 0.7, "ansible --check": 0.25}
"""How much of the other's CPU seconds `sbctl apply` may take, of the project's own design."""


@dataclass(frozen=True)
class Tool:
    """A command that finds nothing to do."""

    name: str
    argv: tuple[str, ...]
    directory: Path
    environ: dict[str, str]
    changes: tuple[str, ...]
    """What its output holds when there is something to do."""

    def run(self) -> Cost:
        """Ends the program when it found something to do."""
        cost, said = measured(self.name, self.argv, self.directory, self.environ)
        if any(sign in said for sign in self.changes):
            raise SystemExit(f"{self.name} found something to do:\n{said[-4000:]}")
        return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=20)
    parser.add_argument("--runs", type=int, default=5, help="the least of so many runs counts")
    arguments = parser.parse_args()
    require_lab(arguments.hosts)
    with others_installed() as programs, lab_fleet(arguments.hosts) as fleet:
        fleet.world.sbctl("apply", "--yes", expect=0)
        tools = [*ours(fleet), *theirs(fleet, programs)]
        for tool in tools:
            tool.run()
        costs: dict[str, list[Cost]] = {tool.name: [] for tool in tools}
        for _ in range(arguments.runs):
            for tool in tools:
                costs[tool.name].append(tool.run())
        report(arguments.hosts, [least(each) for each in costs.values()])


def ours(fleet: LabFleet) -> Iterator[Tool]:
    environ = fleet.world.environ()
    for name, words in (("sbctl apply", ("apply", "--yes")), ("sbctl plan", ("plan",))):
        yield Tool(name, (SBCTL, *words, "--parallelism", str(AT_ONCE)), fleet.world.fleet, environ, ("~ ", "+ "))


def theirs(fleet: LabFleet, programs: Path | None) -> Iterator[Tool]:
    """The same four questions in the language of either tool; the first run of each must already find nothing."""
    if programs is None:
        return
    directory = fleet.world.root / "others"
    directory.mkdir()
    host = fleet.hosts[0]
    (directory / UNIT.name).write_text(host.ssh("cat", str(UNIT)))
    (directory / "known_hosts").write_text("".join(f"{each.address} {each.host_key}\n" for each in fleet.hosts))
    rights = rights_of(host, "/etc/sbctl")
    home = host.ssh("getent", "passwd", "sbctl").split(":")[5]
    environ = {
        "HOME": str(fleet.world.home),
        "PATH": f"{programs}:{os.environ['PATH']}",
        "LANG": "C.UTF-8",
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_SSH_ARGS": f"-o ControlMaster=auto -o ControlPersist=60s -o UserKnownHostsFile={directory / 'known_hosts'}",
        "ANSIBLE_LOCALHOST_WARNING": "0",
    }
    write_pyinfra(directory, fleet, rights, home)
    write_ansible(directory, fleet, rights, home)
    yield Tool(
        "pyinfra --dry",
        (str(programs / "pyinfra"), "--dry", "--parallel", str(AT_ONCE), "inventory.py", "deploy.py"),
        directory,
        environ,
        tuple(f" ({host.address}" for host in fleet.hosts),
    )
    yield Tool(
        "ansible --check",
        (str(programs / "ansible-playbook"), "--check", "-f", str(AT_ONCE), "-i", "inventory.json", "play.json"),
        directory,
        environ,
        ("changed: ",),
    )


def rights_of(host: LabHost, path: str) -> tuple[str, str, str]:
    """Owner, group and mode."""
    owner, group, mode = host.ssh("stat", "-c", "'%U %G %a'", path).split()
    return owner, group, mode


def write_pyinfra(directory: Path, fleet: LabFleet, rights: tuple[str, str, str], home: str) -> None:
    data = {
        "ssh_user": "root",
        "ssh_key": fleet.hosts[0].identity_file,
        "ssh_known_hosts_file": str(directory / "known_hosts"),
        "ssh_strict_host_key_checking": "yes",
    }
    hosts = [(host.address, data) for host in fleet.hosts]
    (directory / "inventory.py").write_text(f"hosts = {hosts!r}\n")
    owner, group, mode = rights
    (directory / "deploy.py").write_text(
        "from pyinfra.operations import files, server, systemd\n"
        f"server.user(user='sbctl', present=True, home={home!r}, ensure_home=False)\n"
        f"files.directory(path='/etc/sbctl', user={owner!r}, group={group!r}, mode={mode!r})\n"
        f"files.put(src={UNIT.name!r}, dest={str(UNIT)!r}, user='root', group='root', mode='644')\n"
        f"systemd.service(service={UNIT.name!r}, running=True, enabled=True)\n"
    )


def write_ansible(directory: Path, fleet: LabFleet, rights: tuple[str, str, str], home: str) -> None:
    common = {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": fleet.hosts[0].identity_file,
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    hosts: dict[str, dict[str, str]] = {host.address: {} for host in fleet.hosts}
    (directory / "inventory.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": common}}))
    unit = {"src": str(directory / UNIT.name), "dest": str(UNIT), "owner": "root", "group": "root", "mode": "644"}
    folder = {"path": "/etc/sbctl", "state": "directory", **dict(zip(("owner", "group", "mode"), rights, strict=True))}
    tasks = [
        {"user": {"name": "sbctl", "state": "present", "home": home, "create_home": False}},
        {"file": folder},
        {"copy": unit},
        {"systemd": {"name": UNIT.name, "state": "started", "enabled": True}},
    ]
    (directory / "play.json").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))


@contextmanager
def others_installed() -> Iterator[Path | None]:
    """The directory with the programs of pyinfra and ansible-core, or None."""
    with tempfile.TemporaryDirectory(prefix="sbctl-bench-") as name:
        directory = Path(name) / "venv"
        commands = (
            [str(UV), "venv", "--quiet", str(directory)],
            [str(UV), "pip", "install", "--quiet", "--compile-bytecode", "--python", str(directory / "bin" / "python"), "pyinfra", "ansible-core"],
        )  # fmt: skip
        for command in commands:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                print(f"pyinfra and ansible are left out, they cannot be installed: {done.stderr.strip()[-500:]}")
                yield None
                return
        for program in ("pyinfra", "ansible"):
            told = subprocess.run(
                [str(directory / "bin" / program), "--version"], capture_output=True, text=True, check=True
            )
            print(told.stdout.splitlines()[0])
        yield directory / "bin"


def report(hosts: int, costs: list[Cost]) -> None:
    own = costs[0]
    print(
        f"{hosts} hosts, {AT_ONCE} at once{'':4}{'CPU s':>8}{'ms each':>9}{'wall s':>8}{'sbctl apply /':>15}{'mark':>7}"
    )
    for cost in costs:
        ratio = f"{own.cpu_s / cost.cpu_s:15.2f}" if cost.name in MARKS else ""
        mark = f"{MARKS[cost.name]:7.2f}" if cost.name in MARKS else ""
        each_ms = 1000 * cost.cpu_s / hosts
        print(f"{cost.name:22}{cost.cpu_s:8.2f}{each_ms:9.0f}{cost.wall_s:8.1f}{ratio}{mark}".rstrip())


if __name__ == "__main__":
    main()

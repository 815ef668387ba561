"""What each node's runtime says of its cluster, and which engines its host's systemd runs, read about once a second for `cluster_recorder`.

On each host one shell asks the runtime over its control socket and tells over one SSH connection; a host that is gone is tried again until it is
back.
"""

from __future__ import annotations

import base64
import json
import subprocess
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, Self

from tests.lab.fixture import LabHost
from tests.simulators.cluster_events import Engines, Slot

__all__ = ["ADMIN_PORT", "HostSight"]

ADMIN_PORT: Final = 9090
_AGAIN_S: Final = 1.0
_FRESH_S: Final = 5.0
_SCRIPT: Final = rf"""
while :; do
  echo "status $(curl -s -m 3 --unix-socket /var/lib/sbctl/control.sock http://localhost/control/v1/cluster/status)"
  echo "engines $(ls /sys/fs/cgroup/system.slice 2>/dev/null | grep '^sbctl-engine-.*service$' | tr '\n' ' ')"
  password=$(cat /etc/sbctl/secrets/admin_password 2>/dev/null)
  metrics=$(curl -s -m 3 -u "admin:$password" http://127.0.0.1:{ADMIN_PORT}/metrics | grep '^sbproxy_managed_replica_failovers_total')
  echo "failovers $(echo "$metrics" | awk '{{sum += $NF}} END {{print sum + 0}}')"
  sleep 1
done
"""


class HostSight:
    """While its block lasts."""

    def __init__(self, hosts: Sequence[LabHost]) -> None:
        self._stop = threading.Event()
        self._running: dict[str, subprocess.Popen[str]] = {}
        self._documents: dict[str, tuple[float, dict[str, Any]]] = {}
        self._engines: dict[str, tuple[Slot, ...]] = {}
        self._failovers: dict[str, int] = {}
        self._threads = [threading.Thread(target=self._watch, args=(host,)) for host in hosts]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        while any(thread.is_alive() for thread in self._threads):
            for process in list(self._running.values()):
                process.kill()
            time.sleep(0.05)

    def document(self, name: str) -> dict[str, Any]:
        """GET /admin/cluster/status of a node. Raises OSError when it was silent for some seconds."""
        heard_s, found = self._documents.get(name, (0.0, {}))
        if time.monotonic() > heard_s + _FRESH_S:
            raise OSError(f"{name} is silent")
        return found

    def failovers(self, name: str) -> int:
        """Times that a gateway asked another replica instead."""
        return self._failovers.get(name, 0)

    def engines(self, at_s: float, name: str) -> Engines:
        """Units of the host's systemd."""
        return Engines(at_s, name, self._engines.get(name, ()))

    def _watch(self, host: LabHost) -> None:
        ssh, *rest = host.command()
        quickly = ["ServerAliveInterval=1", "ServerAliveCountMax=3", "ConnectTimeout=2"]
        encoded = base64.b64encode(_SCRIPT.encode()).decode()
        argv = [ssh, *(part for each in quickly for part in ("-o", each)), *rest, f"echo {encoded} | base64 -d | sh"]
        while not self._stop.is_set():
            with subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            ) as running:
                self._running[host.name] = running
                assert running.stdout is not None
                for line in running.stdout:
                    self._take(host.name, line)
            self._engines.pop(host.name, None)
            self._stop.wait(_AGAIN_S)

    def _take(self, name: str, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "engines":
            self._engines[name] = tuple(_slot(unit) for unit in rest.split())
        elif word == "failovers":
            self._failovers[name] = int(float(rest))
        elif word == "status" and rest.startswith("{"):
            self._documents[name] = (time.monotonic(), json.loads(rest))


def _slot(unit: str) -> Slot:
    """Of sbctl-engine-<deployment>-g<generation>-r<replica>-<hash>.service."""
    deployment, generation, replica, _ = unit.removeprefix("sbctl-engine-").rsplit("-", 3)
    return deployment, int(generation[1:]), int(replica[1:])

"""A fleet over SSH becomes a cluster while it is asked all the time, on three hosts with systemd and the real engine; a worker of it dies, it is
updated, and it is taken away as one. Six hosts and many more faults are in `test_lab_six_hosts`.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.lab.cluster_faults import kill_processes
from tests.lab.cluster_lab import ClusterLab
from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import new_world

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(900)]

BODY = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}).encode()
ROLES = {"h1": ("gateway", "worker", "authority"), "h2": ("gateway", "worker"), "h3": ("gateway", "worker")}


def asked(host: LabHost) -> tuple[int, str]:
    """Status, and where it was answered."""
    headers = {"content-type": "application/json", "host": "localhost"}
    request = urllib.request.Request(f"http://{host.address}:8080/v1/chat/completions", BODY, headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, answer.headers.get("x-sbproxy-route-class") or ""
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode("utf-8", "replace")[:200]
    except OSError as error:
        return 0, repr(error)


@contextmanager
def load(*hosts: LabHost) -> Iterator[Counter[tuple[int, str]]]:
    """One caller at each, one request after another."""
    seen: Counter[tuple[int, str]] = Counter()
    stop = threading.Event()

    def ask(host: LabHost) -> None:
        while not stop.wait(0.1):
            seen[asked(host)] += 1

    threads = [threading.Thread(target=ask, args=(host,)) for host in hosts]
    for thread in threads:
        thread.start()
    try:
        yield seen
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def test_a_fleet_becomes_a_cluster_without_a_failed_request_outlives_a_worker_and_an_update_and_goes_as_one(
    lab: Lab,
) -> None:
    for host in lab.hosts:
        lab.pristine(host)
    with new_world() as world:
        cluster = ClusterLab(lab, world, ROLES)
        becomes = world.config["proxy"].pop("cluster")
        cluster.chat["replicas"] = 1
        cluster.sbctl("cluster", "init", "--cluster-id", "lab")
        cluster.sbctl("apply", "--yes")
        with load(*lab.hosts[:2]) as seen:
            world.config["proxy"]["cluster"] = becomes
            cluster.chat["replicas"] = 2
            said = cluster.sbctl("apply", "--yes")
            time.sleep(2)
        assert "placement in lab, 3 workers" in said
        assert {status for status, _ in seen} == {200}, seen
        assert "No changes" in cluster.sbctl("plan")

        with cluster.recorded() as recording:
            worker = cluster.running()[0]
            with recording.fault("runtime and engines of a worker die", worker):
                kill_processes(worker)
            cluster.chat["max_concurrency"] += 1
            with recording.fault("rolling update", refuses=False):
                recording.apply()
            recording.holds()
        cluster.sbctl("destroy", "--yes")
    for host in lab.hosts:
        assert host.ssh("ls /etc/sbctl /opt/sbctl /var/lib/sbctl 2>/dev/null || true").strip() == ""

"""A fleet over SSH becomes a cluster while it is asked all the time, on three hosts with systemd and the real engine; and is taken away as one."""

from __future__ import annotations

import json
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(900)]

BODY = json.dumps({"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": "hi"}]}).encode()


def sbctl(world: OperatorWorld, *arguments: str) -> str:
    world.save()
    done = subprocess.run(
        [SBCTL, *arguments],
        cwd=world.fleet, env=world.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, (
        f"{arguments} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done.stdout


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


def config_of(lab: Lab) -> dict[str, Any]:
    provider = {"name": "p", "provider_type": "managed_model", "deployment": "chat", "models": ["m"]}
    chat = {"model": "smollm2-135m-instruct", "variant": "q4_1", "replicas": 1, "warm": True}
    return {
        "fleet": {
            "name": "lab",
            "public": True,
            "identity": {"directory": "./cluster"},
            "ssh": {"user": "root", "identity_file": lab.hosts[0].identity_file},
            "defaults": {"delivery": "push", "roles": ["gateway", "worker"]},
            "hosts": {
                host.name: {
                    "address": host.address,
                    "host_key": host.fingerprint,
                    **({"roles": roles} if roles else {}),
                }
                for host, roles in zip(lab.hosts, (["gateway", "worker", "authority"], None, None), strict=True)
            },
        },
        "proxy": {"http_bind_port": 8080, "bind_address": "0.0.0.0", "model_host": {"deployments": {"chat": chat}}},
        "origins": {"localhost": {"action": {"type": "ai_proxy", "providers": [provider]}}},
    }


def test_a_fleet_becomes_a_cluster_under_load_without_a_failed_request_and_goes_as_one(lab: Lab) -> None:
    for host in lab.hosts:
        lab.pristine(host)
    with new_world() as world:
        world.config = config_of(lab)
        sbctl(world, "cluster", "init", "--cluster-id", "lab")
        sbctl(world, "apply", "--yes")
        with load(*lab.hosts[:2]) as seen:
            world.config["proxy"]["cluster"] = {"cluster_id": "lab"}
            world.config["proxy"]["model_host"]["deployments"]["chat"]["replicas"] = 2
            said = sbctl(world, "apply", "--yes")
            time.sleep(2)
        assert "placement in lab, 3 workers" in said
        assert {status for status, _ in seen} == {200}, seen
        assert "No changes" in sbctl(world, "plan")
        assert {asked(host)[0] for host in lab.hosts} == {200}
        sbctl(world, "destroy", "--yes")
    for host in lab.hosts:
        assert host.ssh("ls /etc/sbctl /opt/sbctl /var/lib/sbctl 2>/dev/null || true").strip() == ""

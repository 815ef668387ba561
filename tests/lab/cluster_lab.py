"""A cluster on lab hosts, as its operator has it: sb.yml, the real `sbctl`, and a recording of what callers and nodes saw meanwhile."""

from __future__ import annotations

import json
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from tests.lab.cluster_sight import ADMIN_PORT, HostSight
from tests.lab.fixture import LARGE_LAB_NUMBER, Lab, LabHost, booted
from tests.simulators.cluster_events import Asked, Limits
from tests.simulators.cluster_recorder import Gateway, Recorder
from tests.simulators.operator_world import SBCTL, OperatorWorld, new_world

__all__ = ["QUORUM", "SPLIT", "ClusterLab", "Recording", "cluster_on_six_hosts"]

Roles = Mapping[str, tuple[str, ...]]

SPLIT: Final[Roles] = {
    "h1": ("authority",),
    "h2": ("gateway",),
    "h3": ("gateway",),
    "h4": ("worker",),
    "h5": ("worker",),
    "h6": ("worker",),
}
"""Every host one thing."""
QUORUM: Final[Roles] = {
    "h1": ("authority", "gateway"),
    "h2": ("authority", "gateway"),
    "h3": ("authority", "worker"),
    "h4": ("worker",),
    "h5": ("worker",),
    "h6": ("worker",),
}
"""Three members of the store, which have other work, too."""

DISK: Final = "1500m"
"""A host's own: small enough to be filled in a moment."""
APPLY_S: Final = 600.0
SETTLE_S: Final = 300.0
CONVERGE_S: Final = 240.0
NOTICE_S: Final = 8.0
"""What a node says of itself is heard by everybody within that."""
LOOK_S: Final = 1.0
HTTP_PORT: Final = 8080
CALLERS: Final = 2
PAUSE_S: Final = 0.2
PROMPT: Final = "Tell me a long story about a lighthouse."
TOKENS: Final = 24


class ClusterLab:
    """`world.config` is written as sb.yml before each command."""

    def __init__(self, lab: Lab, world: OperatorWorld, roles: Roles) -> None:
        self.lab = lab
        self.world = world
        self.hosts = {host.name: host for host in lab.hosts}
        self.roles = roles
        world.config = self._config()

    def with_role(self, role: str) -> list[LabHost]:
        return [self.hosts[name] for name, roles in self.roles.items() if role in roles]

    def _config(self) -> dict[str, Any]:
        provider = {"name": "p", "provider_type": "managed_model", "deployment": "chat", "models": ["m"]}
        chat = {
            "model": "smollm2-135m-instruct",
            "variant": "q4_1",
            "engine": "llama_cpp",
            # The hosts share one machine's processors.
            "extra_args": ["--threads", "1"],
            "replicas": 2,
            "warm": True,
            "max_concurrency": 4,
        }
        return {
            "fleet": {
                "name": "lab",
                "public": True,
                "identity": {"directory": "./cluster"},
                "ssh": {"user": "root", "identity_file": self.lab.hosts[0].identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {
                    name: {"address": host.address, "host_key": host.fingerprint, "roles": list(self.roles[name])}
                    for name, host in self.hosts.items()
                },
            },
            "proxy": {
                "http_bind_port": HTTP_PORT,
                "bind_address": "0.0.0.0",
                "admin": {"enabled": True, "port": ADMIN_PORT},
                "cluster": {"cluster_id": "lab"},
                "model_host": {"deployments": {"chat": chat}},
            },
            "origins": {"localhost": {"action": {"type": "ai_proxy", "providers": [provider]}}},
        }

    @property
    def chat(self) -> dict[str, Any]:
        """The deployment in sb.yml."""
        found: dict[str, Any] = self.world.config["proxy"]["model_host"]["deployments"]["chat"]
        return found

    def sbctl(self, *arguments: str, expect: Iterable[int] = (0,)) -> str:
        """What a command said on stdout."""
        self.world.save()
        done = subprocess.run(
            [SBCTL, *arguments],
            cwd=self.world.fleet, env=self.world.environ(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=APPLY_S, check=False,
        )  # fmt: skip
        told = f"{arguments} ended with {done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        assert done.returncode in expect, told
        return done.stdout

    def status(self) -> dict[str, Any]:
        """`cluster status` as JSON; alerts are no failure here."""
        document: dict[str, Any] = json.loads(self.sbctl("cluster", "status", "--format", "json", expect=(0, 7, 8)))
        return document

    def running(self) -> list[LabHost]:
        """The workers on which the newest plan has replicas; those that are workers alone first."""
        (chat,) = self.status()["status"]["deployments"]
        names = {one["node_id"] for one in chat["assignments"]}
        return [self.hosts[name] for name in sorted(names, key=lambda name: (len(self.roles[name]), name))]

    def is_moved(self, host: LabHost) -> bool:
        """Whether all replicas are ready, none of them on `host`."""
        (chat,) = self.status()["status"]["deployments"]
        names = {one["node_id"] for one in chat["assignments"]}
        return host.name not in names and chat["ready_replicas"] == chat["desired_replicas"]

    def lease_holder(self) -> LabHost:
        return self.hosts[self.status()["status"]["deployment_authority"]["signer_node_id"]]

    def store_leader(self) -> LabHost:
        """Of the store's members, as one of them says."""
        for host in self.with_role("authority"):
            said = json.loads(host.ssh("curl -s -m 5 http://127.0.0.1:8222/jsz"))
            if name := said.get("meta_cluster", {}).get("leader"):
                return self.hosts[name]
        raise AssertionError("the store has no leader")

    def store_is_whole(self, host: LabHost) -> bool:
        said = host.ssh("curl -s -m 5 http://127.0.0.1:8222/healthz", check=False)
        return said.startswith("{") and json.loads(said).get("status") == "ok"

    @contextmanager
    def recorded(self) -> Iterator[Recording]:
        """Under load at every gateway."""
        with HostSight(self.lab.hosts) as sight:
            recording = Recording(self, sight)
            with recording.recorder:
                recording.settle()
                recording.published()
                recording.recorder.load(*recording.gateways, callers=CALLERS, pause_s=PAUSE_S)
                recording.await_answers()
                yield recording


class Recording:
    """What happens from now on, and what faults are put to it."""

    def __init__(self, cluster: ClusterLab, sight: HostSight) -> None:
        self._cluster = cluster
        looks = {host.name: partial(sight.document, host.name) for host in cluster.lab.hosts}
        self.recorder = Recorder(
            looks,
            looks,
            engines=sight.engines,
            failovers={host.name: partial(sight.failovers, host.name) for host in cluster.with_role("gateway")},
            every_s=LOOK_S,
        )
        self.gateways = [_gateway(host) for host in cluster.with_role("gateway")]
        self._observers = [host.name for host in cluster.lab.hosts if set(cluster.roles[host.name]) - {"worker"}]

    @contextmanager
    def fault(self, name: str, *nodes: LabHost, refuses: bool = True) -> Iterator[None]:
        """For the length of the block something is wrong; then until everything is as it should be again."""
        with self.recorder.fault(name, *(host.name for host in nodes), refuses=refuses):
            yield
        time.sleep(NOTICE_S)
        self.settle()
        self.await_answers()

    def apply(self) -> None:
        """sb.yml as it is now."""
        self._cluster.sbctl("apply", "--yes")
        self.published()

    def published(self) -> None:
        """What authorities have was acknowledged."""
        held = self._cluster.status()["status"]["deployment_authority"]
        for host in self._cluster.with_role("authority"):
            self.recorder.published(host.name, held["active_revision"], held["active_content_digest"])

    def settle(self) -> None:
        """Until gateways and authorities see nothing that is to be done."""
        self.recorder.settles(self._observers, SETTLE_S)

    def await_answers(self, count: int = 2, *, at: Sequence[LabHost] = ()) -> None:
        """So many whole answers at each of these gateways, or at every one, of requests that begin now."""
        began_s, end_s = self.recorder.now_s(), time.monotonic() + SETTLE_S
        names = [host.name for host in at] or [gateway.name for gateway in self.gateways]
        while True:
            asked = [each for each in self.recorder.history().of(Asked) if each.at_s >= began_s]
            answered = Counter(each.gateway for each in asked if each.outcome == "ok")
            if all(answered[name] >= count for name in names):
                return
            assert time.monotonic() < end_s, f"too few are answered: {answered}, {asked[-4:]}"
            time.sleep(0.2)

    def holds(self, *, exclusive: Iterable[str] = ()) -> None:
        """Every rule of the history. Prints the figures."""
        self.recorder.holds(exclusive=exclusive, limits=Limits(converge_s=CONVERGE_S))


def _gateway(host: LabHost) -> Gateway:
    address = (host.address, HTTP_PORT)
    return Gateway(host.name, lambda: address, "m", "localhost", tokens=TOKENS, whole_every=2, least=1, prompt=PROMPT)


@contextmanager
def cluster_on_six_hosts(roles: Roles) -> Iterator[ClusterLab]:
    """Six hosts with nothing on them, and their operator."""
    with booted(len(roles), number=LARGE_LAB_NUMBER, disk=DISK) as lab, new_world() as world:
        cluster = ClusterLab(lab, world, roles)
        cluster.sbctl("cluster", "init", "--cluster-id", "lab")
        yield cluster

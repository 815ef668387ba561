"""A cluster of real processes on loopback: one store, runtimes with identities of one authority, engines that are programs, signed bundles."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import re
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.base.digests import canonical_json
from sbctl.base.fs import write_atomic
from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer, PeerPort
from sbctl.node.cluster_documents import ClusterRole
from sbctl.trust.bundle import ApiKeyEntry, DeploymentMember, OriginMember, content_digest
from sbctl.trust.cluster_bundle import (
    CLUSTER_BUNDLE_PAYLOAD_TYPE,
    ClusterBundlePayload,
    ClusterContent,
    ClusterDeployment,
)
from sbctl.trust.envelope import sign_envelope
from tests.simulators.cluster_events import Engines
from tests.simulators.cluster_recorder import Gateway, Recorder, engines_of
from tests.simulators.cluster_trust import ClusterAuthority, NodeKit
from tests.simulators.nats_cluster import NatsCluster
from tests.simulators.ports import free_port
from tests.simulators.runtime_world import LINEAGE, Operator, RuntimeProcess, engine_program, prepare_node

__all__ = ["CLUSTER", "IDENTITY_NAMES", "ClusterLab", "clustered", "until"]

CLUSTER = "test"
IDENTITY_NAMES = {
    "certificate": "node.pem",
    "ca": "ca.pem",
    "identity": "identity.json",
    "authority_key": "authority-verifying.key",
    "revocations": "revocations.json",
}
_HEALTHY_S = 180.0
QUICK: Mapping[str, int] = {
    "publish_interval_ms": 500,
    "snapshot_ttl_ms": 10_000,
    "lease_ttl_ms": 3_000,
    "unreachable_after_ms": 3_000,
    "lost_after_ms": 6_000,
}


def until(condition: Callable[[], bool], what: str, *, within_s: float = 60.0) -> None:
    end_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end_s, what
        time.sleep(0.05)


class ClusterLab:
    """`roles` by node; the first authority runs the store. Use it in a `with` block."""

    def __init__(self, folder: Path, roles: Mapping[str, tuple[ClusterRole, ...]]) -> None:
        self.folder = folder
        self.roles = dict(roles)
        self.operator = Operator()
        self.authority = ClusterAuthority(CLUSTER, server_name="localhost")
        self.kits: dict[str, NodeKit] = {}
        self.runtimes: dict[str, RuntimeProcess] = {}
        self._nodes_of_engines: dict[str, str] = {}
        now = SYSTEM_CLOCK.now() - timedelta(hours=1)
        self.kits = {name: self.authority.node(name, *each, now=now) for name, each in roles.items()}
        members = [name for name, each in roles.items() if "authority" in each]
        others = [name for name in roles if name not in members]
        self.store = NatsCluster(folder / "store", members, others)
        for name, kit in self.kits.items():
            directory = self.store.identities.directory / name
            (directory / "node.pem").write_text(kit.files.certificate)
            (directory / "ca.pem").write_text(kit.files.ca)
            (directory / "node-key.pem").write_bytes(kit.key.reveal())
        for name in roles:
            self._prepare(name)

    def _prepare(self, name: str) -> None:
        prefix = self.folder / name
        prefix.mkdir(parents=True)
        roles = self.roles[name]
        servers = tuple(
            ClusterStoreServer(node_id=each.node_id, address=each.address, port=each.port)
            for each in self.store.servers
        )
        workers = tuple(other for other, has in self.roles.items() if "worker" in has)
        config = ClusterConfig(
            cluster_id=CLUSTER,
            node_id=name,
            roles=roles,
            store=servers,
            peer=PeerPort(port=free_port()) if "worker" in roles else None,
            expected_nodes=workers if "authority" in roles else (),
            **QUICK,
        )
        paths = prepare_node(
            prefix,
            self.operator,
            host=name,
            identity=True,
            cluster=config,
            http_bind_port=free_port(),
            admin_port=free_port(),
        )
        held, kit = paths.etc / "identity", self.kits[name]
        held.mkdir(mode=0o700)
        for field, file in IDENTITY_NAMES.items():
            (held / file).write_text(getattr(kit.files, field), encoding="utf-8")
        (held / "node-key.pem").write_bytes(kit.key.reveal())
        (held / "node-key.pem").chmod(0o600)
        engine_program(prefix)

    def __enter__(self) -> Self:
        with ExitStack() as begun:
            begun.callback(self._end)
            self.store.start()
            self.store.wait_ready()
            for name in self.roles:
                self.start(name)
            for runtime in self.runtimes.values():
                runtime.await_healthy(_HEALTHY_S)
            begun.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        for runtime in self.runtimes.values():
            if runtime.process.poll() is None:
                runtime.process.kill()
                runtime.process.wait()
        self.store.stop()

    def start(self, name: str) -> RuntimeProcess:
        self.runtimes[name] = RuntimeProcess(self.folder / name, program="tests.simulators.shifted_daemon")
        return self.runtimes[name]

    def set_clock(self, name: str, off_s: float) -> None:
        """The wall clock of one process, from now on."""
        write_atomic(self.folder / name / "clock_off_s", str(off_s).encode())

    def kill(self, name: str) -> None:
        self.runtimes[name].process.kill()
        self.runtimes[name].process.wait()

    # What an operator does

    def bundle(
        self,
        deployments: Mapping[str, ClusterDeployment],
        revision: int,
        *,
        api_keys: Mapping[str, ApiKeyEntry] | None = None,
    ) -> str:
        names = {f"{name}-model": name for name in deployments}
        content = ClusterContent(
            deployments=dict(deployments),
            origins={"ai.internal": OriginMember(models=names, default_model=next(iter(names), None))},
            api_keys=dict(api_keys or {}),
            public=False,
        )
        payload = ClusterBundlePayload(
            lineage=LINEAGE,
            scope=CLUSTER,
            cluster_id=CLUSTER,
            key_epoch=0,
            revision=revision,
            issued_at=rfc3339(SYSTEM_CLOCK.now()),
            catalog_digest="c" * 64,
            content=content,
            content_digest=content_digest(content),
        )
        document = canonical_json(payload.model_dump(mode="json"))
        return sign_envelope(CLUSTER_BUNDLE_PAYLOAD_TYPE, document, self.operator.key, "ops")

    def publish(self, name: str, envelope: str, expected: int | None, *, wait_s: float = 60.0) -> list[dict[str, Any]]:
        """All lines, the outcome last."""
        body = {"envelope": envelope, "expected_revision": expected, "wait_s": wait_s}
        _, data = self.runtimes[name].call("POST", "/control/v1/cluster/bundle", body, timeout_s=wait_s + 60)
        return [json.loads(line) for line in data.splitlines()]

    def status(self, name: str) -> dict[str, Any]:
        """What a status shows, and what a plan begins from."""
        found: dict[str, Any] = {}
        for path in ("/control/v1/cluster/status", "/control/v1/cluster"):
            found |= json.loads(self.runtimes[name].call("GET", path)[1])
        return found

    def holder(self) -> str:
        """The authority that decides now. Raises AssertionError where that does not become one within a minute."""
        found: list[str] = []

        def one() -> bool:
            with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
                found[:] = [name for name in self.authorities if self.is_alive(name) and self._leads(name)]
            return len(found) == 1

        until(one, "no authority holds the lease")
        return found[0]

    def _leads(self, name: str) -> bool:
        return bool(self.look(name)["is_lease_holder"])

    @property
    def authorities(self) -> list[str]:
        return [name for name, roles in self.roles.items() if "authority" in roles]

    def is_alive(self, name: str) -> bool:
        return self.runtimes[name].process.poll() is None

    def revoke(self, name: str, *, at: str) -> None:
        """As `sbctl cluster revoke` and an apply that reaches one authority: acknowledged when this returns."""
        self.authority.revoke(self.kits[name], now=SYSTEM_CLOCK.now())
        write_atomic(
            self.folder / at / "etc/identity" / IDENTITY_NAMES["revocations"], self.authority.revocations_text.encode()
        )
        status, said = self.runtimes[at].call("POST", "/control/v1/identity")
        assert status == 200, said

    # For who records

    def look(self, name: str) -> dict[str, Any]:
        """GET /admin/cluster/status of one node."""
        document: dict[str, Any] = json.loads(self.runtimes[name].call("GET", "/control/v1/cluster/status")[1])
        return document

    def gateway(self, name: str, model: str, **more: Any) -> Gateway:
        port = json.loads((self.folder / name / "etc/runtime.json").read_bytes())["http_bind_port"]
        return Gateway(name, lambda: ("127.0.0.1", port), model, node_of=self._node_of, **more)

    def failovers(self, name: str) -> int:
        """Times that a gateway asked another replica instead."""
        _, text = self.runtimes[name].admin("GET", "/metrics")
        counts = re.findall(r"^sbproxy_managed_replica_failovers_total\{.*\} (\S+)$", str(text), re.MULTILINE)
        return int(sum(map(float, counts)))

    def recorder(self, *gateways: str) -> Recorder:
        """Of all nodes."""
        return Recorder(
            self.roles,
            {name: functools.partial(self.look, name) for name in self.roles},
            engines=self._running,
            failovers={name: functools.partial(self.failovers, name) for name in gateways},
        )

    def _running(self, at_s: float, name: str) -> Engines:
        records = self.folder / name / "state/engines"
        for record in records.glob("*.json"):
            with contextlib.suppress(OSError, ValueError):
                self._nodes_of_engines[str(json.loads(record.read_text())["pid"])] = name
        return engines_of(at_s, name, records)

    def _node_of(self, answer: str) -> str:
        """By the process id in it."""
        found = re.search(r'"fake-(\d+)"', answer)
        return "" if found is None else self._nodes_of_engines.get(found[1], "")

    def logs(self) -> str:
        return "\n".join(f"--- {name}\n{runtime.log.read_text()[-3000:]}" for name, runtime in self.runtimes.items())


def clustered(member: DeploymentMember, **changes: Any) -> ClusterDeployment:
    """A host's member as one of a cluster."""
    fields = {name: getattr(member, name) for name in DeploymentMember.model_fields}
    return ClusterDeployment(**{**fields, "replicas": 2, **changes})

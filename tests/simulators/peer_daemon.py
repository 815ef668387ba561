"""The runtime as a node of a cluster whose directory is a file: `python -m tests.simulators.peer_daemon serve`.

`<etc>/peer.json`: role (worker, gateway), boot_epoch, files and key of an identity. A worker writes the port of its peer plane to
`<state>/peer-port`; a gateway reads `<etc>/directory.json` (the deployment's member, the workers) when it is first asked. Everything else is
the real daemon's.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from prometheus_client import CollectorRegistry

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import RefusedError
from sbctl.base.secret import Secret
from sbctl.runtime import daemon, main
from sbctl.runtime.binding import bind_tcp
from sbctl.runtime.external.providers import ExternalProviders
from sbctl.runtime.key_limits import KeyLimits
from sbctl.runtime.peer.candidates import Selection
from sbctl.runtime.peer.choice import Candidate
from sbctl.runtime.peer.client import PeerClient
from sbctl.runtime.peer.dispatch import Dispatcher
from sbctl.runtime.peer.envelope import Audience
from sbctl.runtime.peer.gateway import ClusterGateway
from sbctl.runtime.peer.identity import PlaneIdentity
from sbctl.runtime.peer.listener import PeerListener
from sbctl.runtime.peer.metrics import PeerMetrics
from sbctl.runtime.peer.worker import PeerWorker, other_generation
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.node_identity import NodeIdentityFiles
from tests.simulators.cluster_trust import NodeKit
from tests.simulators.peer_world import KitTrust, Marks
from tests.simulators.runtime_world import RuntimeProcess

GENERATION = 3


def write_peer_file(etc: Path, kit: NodeKit, role: Literal["worker", "gateway"], *, boot_epoch: int = 1) -> None:
    names = NodeIdentityFiles.__dataclass_fields__
    files = {name: getattr(kit.files, name) for name in names}
    told = {"role": role, "boot_epoch": boot_epoch, "files": files, "key": kit.key.reveal().decode()}
    (etc / "peer.json").write_text(json.dumps(told), encoding="utf-8")


class PeerProcess(RuntimeProcess):
    """A node as a process of its own. `end` it."""

    def __init__(self, prefix: Path) -> None:
        super().__init__(prefix, program="tests.simulators.peer_daemon")

    def end(self) -> None:
        """Leaves nothing behind, whatever state it is in."""
        if self.process.poll() is None:
            self.stop()

    @property
    def peer_port(self) -> int:
        return int((self.paths.state / "peer-port").read_text())


class _Assigned:
    """Whatever this host's bundle runs is assigned to it, as one generation."""

    def __init__(self, reconciler: Any) -> None:
        self._reconciler = reconciler

    def serving(self, deployment: str, generation: int) -> Any:
        if deployment not in self._reconciler.generations:
            raise RefusedError("deployment_not_assigned", "not this node's")
        if generation != GENERATION:
            raise other_generation(GENERATION)
        return self._reconciler.generations[deployment]


class _Cluster:
    """As `peer.gateway.Cluster`."""

    region = ""
    policy_revision = "1"
    is_known = True
    has_origins = True

    def __init__(self, file: Path) -> None:
        self._file = file

    @functools.cached_property
    def _told(self) -> dict[str, Any]:
        return dict(json.loads(self._file.read_text(encoding="utf-8")))

    @functools.cached_property
    def _candidates(self) -> tuple[Candidate, ...]:
        return tuple(Candidate(generation=GENERATION, state="ready", **each) for each in self._told["workers"])

    @functools.cached_property
    def _member(self) -> DeploymentMember:
        return DeploymentMember.model_validate_json(json.dumps(self._told["member"]))

    def member(self, deployment: str) -> DeploymentMember | None:
        return self._member if deployment == "q" else None

    def selection(self, _deployment: str) -> Selection:
        return Selection(self._candidates, {})


class PeerDaemon(daemon.Daemon):
    """See the module."""

    def __init__(self, settings: Any, *rest: Any) -> None:
        super().__init__(settings, *rest)
        told = json.loads((settings.paths.etc / "peer.json").read_text())
        files, key = NodeIdentityFiles(**told["files"]), Secret(told["key"].encode())
        claims = certificate_facts(files.certificate).claims
        self._plane_identity = PlaneIdentity(KitTrust(NodeKit(files, key, claims), SYSTEM_CLOCK))
        metrics = PeerMetrics(CollectorRegistry())
        self._plane: PeerListener | None = None
        if told["role"] == "worker":
            marks = Marks()
            worker = PeerWorker(
                self._plane_identity,
                _Assigned(self._reconciler),
                marks,
                here=Audience(claims.node_id, told["boot_epoch"]),
                clock=SYSTEM_CLOCK,
                drain=self._drain,
                meter=self._metrics,
                metrics=metrics,
            )
            self._plane = PeerListener(worker, self._plane_identity, marks.known)
            return
        cluster = _Cluster(settings.paths.etc / "directory.json")
        client = PeerClient(self._plane_identity, boot_epoch=told["boot_epoch"], clock=SYSTEM_CLOCK)
        self._gateway = ClusterGateway(
            self._reconciler,
            self._metrics,
            KeyLimits(),
            self._drain,
            ExternalProviders(_no_fetching, _no_fetching, SYSTEM_CLOCK),
            bound_to_loopback=True,
            cluster=cluster,
            dispatcher=Dispatcher(cluster, client, metrics),
        )

    async def _bind(self) -> None:
        await super()._bind()
        if self._plane is not None:
            sock = bind_tcp("127.0.0.1", 0)
            self._ports.add(self._plane, sock, tls=self._plane_identity.server_context)
            (self._settings.paths.state / "peer-port").write_text(str(sock.getsockname()[1]))


def _no_fetching(*_: Any) -> Any:
    raise AssertionError("no external provider here")


if __name__ == "__main__":
    daemon.Daemon = PeerDaemon  # type: ignore[misc]
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    sys.exit(main.main())

"""A node's cluster for its admin API. Documents are made off the loop: those of a large cluster take a while."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.ids import is_id
from sbctl.node.cluster_actions import ActionName, ClusterAct
from sbctl.runtime.audit import Note
from sbctl.runtime.cluster.operator_door import OperatorDoor
from sbctl.runtime.cluster.overview import (
    artifacts_document,
    metrics_document,
    placement_document,
    vram_document,
)
from sbctl.runtime.cluster.publication import NO_BUNDLE, not_an_authority, published, refused, shown
from sbctl.runtime.cluster.status import Facts, actions_document, status_document

if TYPE_CHECKING:
    from sbctl.runtime.cluster.node import ClusterNode

__all__ = ["ClusterDoor"]

_PUBLISH = "cluster_deployments_publish"


class ClusterDoor:
    """As `admin_cluster.ClusterView` promises."""

    def __init__(self, node: ClusterNode, note: Note) -> None:
        self._node = node
        self._note = note
        self._operator = OperatorDoor(node, note)

    async def status(self) -> dict[str, Any]:
        return await asyncio.to_thread(status_document, self._seeing())

    async def vram(self) -> dict[str, Any]:
        facts = self._seeing()
        return vram_document(facts.view, now_ms=facts.now_ms)

    async def artifacts(self) -> dict[str, Any]:
        return await asyncio.to_thread(artifacts_document, self._seeing().view)

    async def metrics(self) -> dict[str, Any]:
        return metrics_document(self._seeing().view)

    async def placement(self, deployment: str) -> dict[str, Any]:
        found = placement_document(self._seeing().plan, deployment)
        if found is None:
            raise RefusedError("unknown_deployment", "there is no such deployment in the cluster's placement")
        return found

    async def deployments(self) -> dict[str, Any]:
        held, trust = self._node.desired.held, self._node.signers.trust
        if held is None or trust is None:
            raise RefusedError(
                NO_BUNDLE[1], "no bundle was published in this cluster yet", next_step="sbctl apply publishes one"
            )
        return await asyncio.to_thread(
            shown,
            held,
            node_id=self._node.config.node_id,
            trust=trust,
            read_only=not self._node.desired.is_authority,
        )

    async def publish(self, envelope: str) -> tuple[int, dict[str, Any]]:
        """Nothing is published that the audit cannot tell of."""
        desired = self._node.desired
        if not desired.is_authority:
            raise not_an_authority()
        prior = None if desired.held is None else desired.held.payload.revision
        cluster_id = self._node.config.cluster_id
        told: dict[str, str | int | None] = {
            "envelope_sha256": sha256_bytes(envelope.encode()),
            "prior_revision": prior,
        }
        await self._noted(cluster_id, {**told, "outcome": "asked"})
        try:
            verified = await desired.publish(envelope, expected_revision=prior)
        except SbctlError as error:
            status, code = refused(error)
            await self._noted(cluster_id, {**told, "outcome": code, "reason": error.code})
            step = {"next_step": error.next_step} if error.next_step else {}
            return status, {"error": error.message, "code": code, "reason_code": error.code, **step}
        payload = verified.payload
        await self._noted(
            cluster_id,
            {
                **told,
                "next_revision": payload.revision,
                "content_digest": payload.content_digest,
                "deployment_count": len(payload.content.deployments),
                "signer": verified.signer,
                "outcome": "repeat" if verified.repeat else "published",
            },
        )
        trust = self._node.signers.trust
        assert trust is not None, "it was verified by them"
        body = published(verified, node_id=self._node.config.node_id, trust=trust)
        return 202, {**body, "in_store": desired.in_store}

    async def _noted(self, cluster_id: str, told: Mapping[str, str | int | None]) -> None:
        """Beside the loop: an entry of the audit waits for the disk."""
        await asyncio.to_thread(self._note, _PUBLISH, cluster_id, told)

    async def actions(self) -> dict[str, Any]:
        if self._node.leading is None:
            raise not_an_authority()
        return {"schema_version": 1, "actions": actions_document(self._node.facts())}

    async def act(self, action: ActionName, subject: str, *, by: str, reason: str) -> tuple[int, dict[str, Any]]:
        if not is_id(subject):
            raise InputError("invalid_request", "that is no name of a node or a deployment")
        asked = ClusterAct(action=action, subject=subject, by=by[:200], reason=reason)
        acted = await self._operator.ask(asked)
        return 202 if acted.changed else 200, {"schema_version": 1, **acted.model_dump(mode="json")}

    def _seeing(self) -> Facts:
        """Raises RefusedError `cluster_not_seen_here` on a node that keeps no directory."""
        if not {"authority", "gateway"} & set(self._node.config.roles):
            raise RefusedError(
                "cluster_not_seen_here",
                "this node is a worker alone, and knows of no other node",
                next_step="ask a gateway or an authority of the cluster",
            )
        return self._node.facts()

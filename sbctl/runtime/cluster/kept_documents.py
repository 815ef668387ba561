"""Signed documents that were verified when they were kept, read again without another look at who signed them."""

from __future__ import annotations

import json

from sbctl.node.cluster_documents import AssignmentDocument
from sbctl.node.placement_document import PlacementDocument
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.peer_kinds import ASSIGNMENT, PLACEMENT

__all__ = ["assignment_of", "payload_of", "plan_of_text"]


def payload_of(text: str, *, max_bytes: int) -> bytes:
    """The bytes that were signed."""
    _type, payload, _keyids = unverified_payload(str(json.loads(text)["envelope"]), max_bytes=max_bytes)
    return payload


def assignment_of(text: str) -> AssignmentDocument:
    return AssignmentDocument.model_validate_json(payload_of(text, max_bytes=ASSIGNMENT.max_bytes))


def plan_of_text(text: str) -> PlacementDocument:
    return PlacementDocument.model_validate_json(payload_of(text, max_bytes=PLACEMENT.max_bytes))

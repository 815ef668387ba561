"""What operators asked of a cluster beside its bundle, signed by the authority that wrote it down last: it stands until it is over.

    evacuations   nodes that get nothing new; what they run is placed elsewhere, and serves until then
    losses        nodes that are gone for good: what they ran is placed elsewhere now, whatever holds placement back
    retries       deployments whose rollout is begun once more

Each is named by its subject and has a number that grows over the whole cluster, so that of two for one subject the later is known, whoever
wrote it. See `cluster_documents` for what all documents have in common.
"""

from __future__ import annotations

from typing import Final

from pydantic import Field

from sbctl.base.field_types import Id
from sbctl.base.limits import MIB
from sbctl.node.cluster_documents import ClusterDocument, DocumentPart, Millis, Number, ShortText

__all__ = ["ACTIONS_MAX", "ACTIONS_MAX_BYTES", "ACTIONS_PAYLOAD_TYPE", "ActionsDocument", "OperatorAction"]

ACTIONS_PAYLOAD_TYPE: Final = "application/vnd.sbctl.actions.v1+json"
ACTIONS_MAX: Final = 1024
"""Subjects of one kind."""
ACTIONS_MAX_BYTES: Final = 3 * MIB


class OperatorAction(DocumentPart):
    """`authority` wrote it down, by its own clock. `is_over`: it has no effect any more, and `outcome` says why; the row stays, so that an
    older one never comes back."""

    number: Number
    by: ShortText
    reason: ShortText = ""
    authority: Id
    at_unix_ms: Millis
    is_over: bool = False
    outcome: ShortText = ""


class ActionsDocument(ClusterDocument):
    """All of them, as `authority` knows them."""

    authority: Id
    written_at_unix_ms: Millis
    evacuations: dict[Id, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)
    losses: dict[Id, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)
    retries: dict[Id, OperatorAction] = Field(default_factory=dict, max_length=ACTIONS_MAX)

    @property
    def signer(self) -> str:
        return self.authority

"""Words between the control side and an authority of a cluster: how a bundle is published, and what becomes of it.

Over the control socket of an authority's runtime:

    GET  /control/v1/cluster           → ClusterState as JSON; on every node that is configured as one of a cluster
    POST /control/v1/cluster/bundle    ClusterPublish as JSON → ndjson: {"progress": {"done", "total", "note"}} per change of a node or a
                                       deployment, then {"result": ClusterPublished} or {"error": SbctlError.to_wire()}
"""

from __future__ import annotations

import re
from typing import Final, Literal, cast, get_args

from pydantic import Field

from sbctl.base.field_types import Id
from sbctl.base.limits import BUNDLE_DEPLOYMENTS_MAX, BUNDLE_ENVELOPE_MAX_BYTES
from sbctl.node.params import DIGEST_PATTERN, Params

__all__ = ["ClusterPublish", "ClusterPublished", "NodeProgress", "NodeState", "read_note"]


NodeState = Literal["unseen", "behind", "accepted", "prepared", "ready", "failed", "idle"]
_NOTE: Final = re.compile(r"([A-Za-z0-9._-]{1,128}): ([a-z]{1,16})(?: \((.*)\))?", re.DOTALL)


class ClusterPublish(Params):
    """Hand a signed cluster bundle to an authority, which keeps it, puts it into the store, and tells how far the nodes are with it until all
    are ready or `wait_s` is over. `expected_revision` is compared and set. Published again, it is only waited for. → ClusterPublished

    Refused with `cluster.not_authority`, `bundle.*`; what nodes make of it is in the answer, never an error.
    """

    envelope: str = Field(max_length=BUNDLE_ENVELOPE_MAX_BYTES)
    expected_revision: int | None = Field(default=None, ge=1)
    wait_s: float = Field(default=0.0, ge=0, le=86_400)


class NodeProgress(Params):
    """How far one node is with what it was assigned. `detail`: why not, in one sentence."""

    state: NodeState
    detail: str = Field(default="", max_length=512)

    @property
    def is_done(self) -> bool:
        """Nothing is left to do there."""
        return self.state in ("ready", "idle")

    def note(self, node: str) -> str:
        """The words of a progress line."""
        return f"{node}: {self.state}{f' ({self.detail})' if self.detail else ''}"

    def next_step(self, node: str) -> str:
        """What to do about a node that stays behind."""
        match self.state:
            case "unseen":
                return f"sbctl status says whether its runtime answers; who is gone for good: sbctl cluster confirm-lost {node}"
            case "behind":
                return f"sbctl events {node} says why it did not take the bundle"
            case "failed":
                return f"sbctl logs {node} says why; once it is mended it is tried again by itself, or at once: sbctl cluster retry DEPLOYMENT"
            case _:
                return "it goes on by itself: sbctl cluster status --watch"


def read_note(words: str) -> tuple[str, NodeProgress] | None:
    """Node and state out of a progress line; None for any other words."""
    found = _NOTE.fullmatch(words)
    if found is None or found[2] not in get_args(NodeState):
        return None
    return found[1], NodeProgress(state=cast("NodeState", found[2]), detail=(found[3] or "")[:512])


class ClusterPublished(Params):
    """`in_store`: the store took it. False: the authority keeps it and puts it there when it can. `ready`: every node that has to do
    something is done. `unplaced`: deployments with replicas that no node can take, and how many."""

    revision: int = Field(ge=1)
    content_digest: str = Field(pattern=DIGEST_PATTERN)
    in_store: bool
    ready: bool
    nodes: dict[Id, NodeProgress] = Field(default_factory=dict, max_length=10_000)
    unplaced: dict[Id, int] = Field(default_factory=dict, max_length=BUNDLE_DEPLOYMENTS_MAX)

"""Words between the control side and an authority of a cluster: what an operator asks beside the bundle, and what became of it.

Over the control socket of an authority's runtime:

    POST /control/v1/cluster/actions   ClusterAct as JSON → ClusterActed, or {"error": SbctlError.to_wire()}
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from sbctl.base.field_types import Id
from sbctl.node.params import Params

__all__ = ["REASON_MAX_CHARS", "ActionName", "ClusterAct", "ClusterActed", "HostLeave"]

REASON_MAX_CHARS: Final = 256

ActionName = Literal["confirm_lost", "retry", "evacuate", "restore"]


class ClusterAct(Params):
    """Ask the cluster for something that is in no bundle; asked again, it is the same. → ClusterActed

    `confirm_lost` the node `subject` is gone for good: what it ran is placed elsewhere now. `evacuate` the node gets nothing new, and what it
    runs is placed elsewhere; `restore` takes that back. `retry` the rollout of the deployment `subject` is begun once more.

    Refused with `deployment_authority_read_only` where no authority is, `unknown_node`, `unknown_deployment`, `node_is_heard`,
    `not_a_worker`, `nothing_to_retry`; UnreachableError `store.*`, after which it is not asked, but for `store.outcome_unknown`.
    """

    action: ActionName
    subject: Id
    by: str = Field(default="", max_length=200)
    reason: str = Field(default="", max_length=REASON_MAX_CHARS)


class HostLeave(Params):
    """Tell the cluster that this worker leaves it, and wait at most `deadline_s` until nothing runs here any more: what it runs is placed
    elsewhere, and serves until that is ready. It is taken back when the caller's lease on the host ends. → {"running", "left": [deployment]}"""

    deadline_s: float = Field(default=540.0, ge=0, le=86_400)


class ClusterActed(Params):
    """It is in the store. `changed` False: it stood so already, by whom and since when `by` and `at_unix_ms` say."""

    action: ActionName
    subject: Id
    changed: bool
    number: int = Field(default=0, ge=0)
    by: str = Field(default="", max_length=256)
    reason: str = Field(default="", max_length=REASON_MAX_CHARS)
    authority: str = Field(default="", max_length=128)
    at_unix_ms: int = Field(default=0, ge=0)

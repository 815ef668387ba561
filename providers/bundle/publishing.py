"""Perform, for a cluster: sign once for all authorities of a run, hand it to one after another, and tell what nodes made of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Final

from providers.bundle.cluster import payload_of
from providers.bundle.numbering import next_revision, refuse_too_large
from providers.bundle.spec import content_of, digest_of
from sbctl.base.digests import canonical_json
from sbctl.base.display import plural
from sbctl.base.errors import HostError
from sbctl.base.truths import Desired
from sbctl.node.cluster_messages import ClusterPublish, NodeProgress
from sbctl.plan.model import Step
from sbctl.provider import PerformContext, SignedOnce
from sbctl.trust.cluster_bundle import CLUSTER_BUNDLE_PAYLOAD_TYPE

__all__ = ["publish"]

_SHOWN_MAX: Final = 5
_BEHIND_MAX: Final = 64
"""Nodes with a next step of their own; all are in `nodes`."""


def publish(step: Step, context: PerformContext, desired: Desired, held_revision: int | None) -> Mapping[str, Any]:
    """What the state records. Raises what the authority refuses; RefusedError `bundle.*`; HostError `cluster.not_ready` for a bundle that is
    published and that not all nodes are ready with in time."""
    scope, digest = step.params["scope"], digest_of(desired.spec)

    def signed() -> SignedOnce:
        revision = next_revision(context.services, scope, held_revision or 0)
        payload = payload_of(desired.spec, content_of(desired.spec), digest, revision, context.services)
        document = canonical_json(payload.model_dump(mode="json"))
        envelope = context.services.sign(CLUSTER_BUNDLE_PAYLOAD_TYPE, document)
        refuse_too_large(envelope, f"the bundle of cluster {scope}")
        return SignedOnce(revision, envelope)

    key = f"{scope} {desired.spec['key_epoch']} {digest}"
    one = context.services.signed_once(key, above=held_revision or 0, sign=signed)
    request = ClusterPublish(
        envelope=one.envelope, expected_revision=held_revision, wait_s=float(step.params["wait_s"])
    )
    answer = context.node.call(
        step.method,
        request.model_dump(mode="json"),
        secrets={},
        deadline_s=step.deadline_s,
        progress=context.progress,
    )
    if not answer.get("ready"):
        raise _not_ready(desired, answer)
    return {
        "bundle": {
            "revision": answer.get("revision", one.revision),
            "content_digest": digest,
            "key_epoch": desired.spec["key_epoch"],
        }
    }


def _not_ready(desired: Desired, answer: Mapping[str, Any]) -> HostError:
    told = {name: NodeProgress.model_validate(one) for name, one in sorted(answer.get("nodes", {}).items())}
    behind = {name: one for name, one in told.items() if not one.is_done}
    unplaced = answer.get("unplaced", {})
    said = [f"{name} is {one.state}{': ' + one.detail if one.detail else ''}" for name, one in behind.items()]
    said += [f"{name} has no place for {plural(count, 'replica')}" for name, count in sorted(unplaced.items())]
    if not answer.get("in_store"):
        said.insert(0, "the store did not take it yet")
    more = f" and {len(said) - _SHOWN_MAX} more" if len(said) > _SHOWN_MAX else ""
    return HostError(
        "cluster.not_ready",
        f"revision {answer.get('revision')} is published, and not everything runs yet: {'; '.join(said[:_SHOWN_MAX])}{more}",
        place=desired.host,
        next_step="the cluster goes on by itself: sbctl plan --explain says where replicas can go, sbctl apply takes note when all is done",
        retryable=True,
        detail={
            "nodes": {name: one.model_dump() for name, one in told.items()},
            "unplaced": dict(unplaced),
            "behind": {
                name: {**one.model_dump(), "next_step": one.next_step(name)}
                for name, one in itertools.islice(behind.items(), _BEHIND_MAX)
            },
        },
    )

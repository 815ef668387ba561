"""Perform: have the host fetch, or send the files from here; remove."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from providers.artifact.observe import find_artifact
from providers.sending import put_files, stop_if_cancelled
from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.limits import SNAPSHOT_DEADLINE_S
from sbctl.node.artifact_messages import ArtifactImport, ArtifactPull, ArtifactRemove
from sbctl.node.messages import Method
from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform"]


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    match step.method:
        case Method.ARTIFACT_PULL:
            return _call(step, context, ArtifactPull(artifact=_facts(step)))
        case Method.ARTIFACT_IMPORT:
            if not _was_kept(step, context):
                files = context.services.artifact_files(step.params["facts"], context.progress)
                put_files(context, files, deadline_s=step.deadline_s)
                stop_if_cancelled(context)
            return _call(step, context, ArtifactImport(artifact=_facts(step)))
        case _:
            return _call(step, context, ArtifactRemove(artifact=step.params["artifact"]))


def _was_kept(step: Step, context: PerformContext) -> bool:
    """Whether a host that was taken in by this very apply kept the weights from before: planning could not ask it."""
    if context.change.action != "create":
        return False
    kept = find_artifact(context.node.snapshot(SNAPSHOT_DEADLINE_S), step.params["facts"]["artifact"])
    return kept is not None and kept.state == "ready"


def _facts(step: Step) -> ArtifactFacts:
    return ArtifactFacts.model_validate_json(json.dumps(step.params["facts"]))


def _call(step: Step, context: PerformContext, request: BaseModel) -> Mapping[str, Any]:
    return context.node.call(
        step.method, request.model_dump(mode="json"), secrets={}, deadline_s=step.deadline_s, progress=context.progress
    )

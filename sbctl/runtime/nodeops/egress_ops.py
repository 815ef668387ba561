"""The node's answer to whether its sources can be reached."""

from __future__ import annotations

from typing import Any

from sbctl.artifacts.egress_probe import ask_sources
from sbctl.artifacts.source_answer import SourceAnswer
from sbctl.node.egress_messages import EgressCheck, EgressTold
from sbctl.runtime.egress import host_fetch_settings
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.snapshot import stored_config

__all__ = ["check_egress"]


def check_egress(context: NodeContext, params: EgressCheck) -> dict[str, Any]:
    """Raises InputError `egress.*` for settings that cannot be used."""
    config, _ = stored_config(context.paths)
    settings = host_fetch_settings(config, context.paths, context.environ)

    async def ask() -> list[SourceAnswer]:
        return await ask_sources(params.wanted, settings)

    found = run_cancellable(context, ask())
    return EgressTold(sources=tuple(found)).model_dump(mode="json")

"""Perform: nothing. A member has no steps of its own; its bundle carries it out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbctl.plan.model import Step
from sbctl.provider import PerformContext

__all__ = ["perform"]


def perform(step: Step, context: PerformContext) -> Mapping[str, Any]:
    """Raises ValueError: nobody plans a step here."""
    raise ValueError(f"{context.change.address} is applied by its bundle, not by {step.method}")

"""`engine.H/KIND`: the engine builds that the deployments of one host need.

From a pinned wheel: installed by us, beside other versions, removed when nobody needs the kind. As a program of the host (`path:`, or
llama-server on PATH): only looked at; what is missing or has another version blocks the apply before its first step.
"""

from __future__ import annotations

from typing import ClassVar

from providers.engine import apply, changes, observe, spec
from providers.resource import OneForm

__all__ = ["EngineProvider"]


class EngineProvider(OneForm):
    """Plans and changes the engines of a host."""

    kind: ClassVar[str] = "engine"
    desired = staticmethod(spec.desired)
    interpret = staticmethod(observe.interpret)
    diff = staticmethod(changes.diff)
    perform = staticmethod(apply.perform)
    record = staticmethod(apply.record)
    shown_spec = staticmethod(spec.fields_for_reader)

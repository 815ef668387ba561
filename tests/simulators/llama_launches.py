"""What the llama.cpp driver makes of a request, in one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sbctl.engines.llama_cpp import LlamaCpp
from sbctl.engines.model import EngineAddress, EngineBuild, LaunchRequest, LaunchSpec

__all__ = ["launch_request", "launch_spec"]


def launch_request(**asked: Any) -> LaunchRequest:
    values: dict[str, Any] = {
        "weights": Path("/m"),
        "address": EngineAddress(port=1),
        "alias": "a",
        "context_length": 1,
        "slots": 1,
        "physical_cores": 1,
        "environ": {},
    }
    return LaunchRequest(**{**values, **asked, "extra_args": tuple(asked.get("extra_args", ()))})


def launch_spec(build: EngineBuild, **asked: Any) -> LaunchSpec:
    return LlamaCpp().launch(build, launch_request(**asked))

"""Which engine build a deployment gets: the policy of its host with the deployment's own version over it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.config.compiled import CompiledDeployment
from sbctl.engines.model import DRIVEN
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from sbctl.trust.bundle import EnginePolicy

__all__ = ["engine_policy"]

_LAUNCHES: Final = ("wheel", "binary")
_ACCELERATION: Final[Mapping[str, Literal["cpu", "cuda", "vulkan"]]] = {
    "auto": "cpu", "cpu": "cpu", "cuda": "cuda", "vulkan": "vulkan",
}  # fmt: skip
"""`auto` is the CPU: which of a host's devices is free is not planned yet."""


def engine_policy(deployment: CompiledDeployment) -> EnginePolicy:
    """A wheel always has a version (the default pin when none is named). Raises ConfigError for what hosts cannot launch yet."""
    policy = deployment.engine_policy
    if deployment.engine not in DRIVEN:
        raise _not_yet(deployment, f"engine {deployment.engine}", f"engines: {', '.join(DRIVEN)}")
    if policy.launch not in _LAUNCHES:
        raise _not_yet(deployment, f"launch: {policy.launch}", f"launch is {' or '.join(_LAUNCHES)}")
    version = deployment.model.engine_version or policy.version
    span = deployment.model.tensor_parallel or 1
    if span > 1 and (policy.launch == "wheel" or _ACCELERATION.get(policy.acceleration) == "cpu"):
        raise _on_processor(deployment, span)
    if policy.launch == "wheel":
        return EnginePolicy(engine="llama_cpp", launch="wheel", version=version or LLAMA_CPP_WHEEL_DEFAULT)
    acceleration = _ACCELERATION.get(policy.acceleration)
    if acceleration is None:
        raise _not_yet(deployment, f"acceleration: {policy.acceleration}", "hosts are Linux machines")
    return EnginePolicy(
        engine="llama_cpp", launch="binary", version=version, path=policy.path, acceleration=acceleration
    )


def _on_processor(deployment: CompiledDeployment, span: int) -> ConfigError:
    message = f'deployment "{deployment.id}" spans {span} devices, and its engine computes on the processor'
    note = "use a build for devices: engines: {llama_cpp: {launch: binary, acceleration: cuda}}; or leave tensor_parallel out"
    return ConfigError([Diagnostic("config.conflict", message, deployment.span, notes=(note,))])


def _not_yet(deployment: CompiledDeployment, what: str, note: str) -> ConfigError:
    message = f'deployment "{deployment.id}" needs {what}, which this version of sbctl cannot put on a host'
    return ConfigError([Diagnostic("config.not_yet", message, deployment.span, notes=(note,))])

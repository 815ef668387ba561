"""Engine arguments and environments (docs/threats.md, F21): refused when sb.yml is read and again when the engine is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import EngineError
from sbctl.engines.flags import ALLOWED_FLAGS, check_extra_args
from sbctl.engines.llama_wheel_launcher import Refused, read_arguments
from sbctl.engines.model import EngineAddress, EngineBuild
from tests.simulators.llama_launches import launch_spec

BUILD = EngineBuild("llama_cpp", "binary", "b1", ("/usr/bin/llama-server",), Path("/usr/bin/llama-server"))

HOSTILE = [
    ["--li"],
    ["--host=0.0.0.0"],
    ["--host", "0.0.0.0"],
    ["--HOST", "0.0.0.0"],
    ["-m", "other"],
    ["--model=/etc/passwd"],
    ["--trust_remote_code"],
    ["--trust-remote-code"],
    ["--api-key", "X"],
    ["--api_key=X"],
    ["@file"],
    ["--seed", "@file"],
    ["--seed", "1 --host 0.0.0.0"],
    ["--seed", "1\n--host"],
    ["--threads", "$(reboot)"],
    ["--tools", "all"],
    ["--mcp-servers-config", "x"],
    ["--log-prompts-dir", "/tmp"],
    ["--slot-save-path", "/etc"],
    ["--lora", "/x"],
    ["--chat-template-file", "/etc/shadow"],
    ["--hf-repo", "a/b"],
    ["--port", "22"],
    ["--ctx-size", "1"],
    ["--parallel", "1000"],
    ["--n-gpu-layers", "999"],
    ["--flash-attn=on --host"],
    ["--", "--host"],
    ["——host"],
    ["--host\u200b=x"],
]


@pytest.mark.parametrize("args", HOSTILE, ids=" ".join)
@pytest.mark.parametrize("engine", sorted(ALLOWED_FLAGS))
def test_F21_hostile_arguments_are_refused_when_read(engine: str, args: list[str]) -> None:
    assert check_extra_args(engine, args)


@pytest.mark.parametrize("args", HOSTILE, ids=" ".join)
def test_F21_hostile_arguments_are_refused_at_launch(args: list[str]) -> None:
    with pytest.raises(EngineError) as caught:
        launch_spec(
            BUILD,
            weights=Path("/m"),
            address=EngineAddress(port=1),
            alias="a",
            context_length=1,
            slots=1,
            physical_cores=1,
            environ={},
            extra_args=args,
        )
    assert caught.value.code == "engine.unsafe_argument"


@pytest.mark.parametrize(
    "args", [["--api-key", "x"], ["--host=0.0.0.0"], ["--slot-save-path", "/"], ["--lora", "x"], ["-hf", "a"], ["@f"]]
)
def test_F21_the_wheel_launcher_maps_none_of_them(args: list[str]) -> None:
    base = ["--model", "m", "--ctx-size", "1", "--parallel", "1", "--threads", "1"]
    with pytest.raises(Refused):
        read_arguments([*base, *args])


def test_F21_a_hostile_environment_does_not_reach_the_engine() -> None:
    hostile = {
        "LD_PRELOAD": "/evil.so",
        "LD_AUDIT": "/evil.so",
        "LLAMA_ARG_HOST": "0.0.0.0",
        "LLAMA_API_KEY": "k",
        "CUDA_INJECTION64_PATH": "/evil.so",
        "PYTHONPATH": "/evil",
        "PYTHONSTARTUP": "/evil.py",
        "HF_TOKEN": "hf_canary",
        "SBCTL_SIGNING_KEY": "canary",
        "PATH": "/evil",
        "HOME": "/root",
    }
    spec = launch_spec(
        BUILD,
        weights=Path("/m"),
        address=EngineAddress(port=1),
        alias="a",
        context_length=1,
        slots=1,
        physical_cores=1,
        environ=hostile,
    )
    assert dict(spec.env) == {"HOME": "/root", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}

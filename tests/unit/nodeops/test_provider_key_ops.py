"""`runtime.keys`: an exchanged key of an external provider is a file and in use at once, or nothing happens at all."""

from __future__ import annotations

import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.digests import canonical_json
from sbctl.base.errors import SbctlError
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import RuntimeKeys
from sbctl.node.messages import RuntimeConfig
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.provider_key_ops import install_provider_keys

NAME = "provider_key_" + "a" * 16
STATUS = ("GET", "/control/v1/status")
TAKE = ("POST", "/control/v1/provider-keys")


@pytest.fixture
def holder(context: NodeContext) -> NodeContext:
    """A node whose runtime may use one key, and a call that brings the new one."""
    context.paths.secrets.mkdir(parents=True, exist_ok=True)
    (context.paths.secrets / NAME).write_bytes(b"sk-old")
    config = RuntimeConfig(lineage="L", host="h", http_bind_port=0, admin_port=0, provider_keys=(NAME,))
    context.paths.runtime_config.write_bytes(canonical_json(config.model_dump(mode="json")))
    return replace(context, secrets={NAME: Secret(b"sk-canary-new")})


def held(context: NodeContext) -> bytes:
    return (context.paths.secrets / NAME).read_bytes()


def test_H1_a_key_is_a_private_file_and_goes_to_the_runtime_alone(holder: NodeContext, runtime: Any) -> None:
    runtime.answers.update({STATUS: (200, [{"healthy": True}]), TAKE: (200, [{}])})
    told = install_provider_keys(holder, RuntimeKeys(lineage="L", names=(NAME,)))
    assert told["used"] is True
    assert "canary" not in json.dumps(told)
    assert held(holder) == b"sk-canary-new"
    assert stat.S_IMODE((holder.paths.secrets / NAME).stat().st_mode) == 0o600
    assert runtime.requests[-1] == (*TAKE, {"keys": {NAME: "sk-canary-new"}})


def test_a_runtime_that_does_not_run_finds_it_at_its_start(holder: NodeContext) -> None:
    assert install_provider_keys(holder, RuntimeKeys(lineage="L", names=(NAME,)))["used"] is False
    assert held(holder) == b"sk-canary-new"


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"lineage": "other"}, "host.other_lineage"),
        ({"names": ("provider_key_" + "b" * 16,)}, "node.invalid_params"),
    ],
)
def test_what_is_refused_changes_nothing(holder: NodeContext, params: dict[str, Any], code: str) -> None:
    with pytest.raises(SbctlError) as caught:
        install_provider_keys(holder, RuntimeKeys(**{"lineage": "L", "names": (NAME,), **params}))
    assert caught.value.code == code
    assert held(holder) == b"sk-old"


def test_a_key_that_the_configuration_does_not_name_is_refused(holder: NodeContext, prefix: Path) -> None:
    holder.paths.runtime_config.unlink()
    with pytest.raises(SbctlError) as caught:
        install_provider_keys(holder, RuntimeKeys(lineage="L", names=(NAME,)))
    assert caught.value.code == "runtime.unknown_key"
    assert held(holder) == b"sk-old"


def test_a_runtime_that_refuses_it_is_heard(holder: NodeContext, runtime: Any) -> None:
    problem = SbctlError("runtime.unknown_key", "no such key").to_wire()
    runtime.answers.update({STATUS: (200, [{"healthy": True}]), TAKE: (409, [{"error": problem}])})
    with pytest.raises(SbctlError) as caught:
        install_provider_keys(holder, RuntimeKeys(lineage="L", names=(NAME,)))
    assert caught.value.code == "runtime.unknown_key"

"""The secrets of egress on a host: files of root's alone, handed to the runtime as credentials, gone when nothing names them."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.artifacts.egress import Egress
from sbctl.base.errors import InputError
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import node_paths
from sbctl.runtime.egress import host_fetch_settings, provider_key
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.runtime_ops import _egress_secrets, _forget_secrets
from sbctl.runtime.nodeops.units import render_units

CONFIG = RuntimeConfig(lineage="L", host="h", egress=Egress(secrets=("hf_token",)))


def context(root: Path, **secrets: bytes) -> NodeContext:
    environ = {"SBCTL_NODE_PREFIX": str(root)}
    return NodeContext(
        node_paths(0, environ), environ, 0, secrets={name: Secret(value) for name, value in secrets.items()}
    )


def test_a_secret_comes_with_the_call_or_from_the_one_before(tmp_path: Path) -> None:
    sent = _egress_secrets(context(tmp_path, hf_token=b"hf_canary"), CONFIG)
    [(path, value)] = sent.items()
    assert value == b"hf_canary"
    with pytest.raises(InputError) as caught:
        _egress_secrets(context(tmp_path), CONFIG)
    assert caught.value.code == "egress.secret_missing"
    path.parent.mkdir(parents=True)
    path.write_bytes(value)
    assert _egress_secrets(context(tmp_path), CONFIG) == sent
    settings = host_fetch_settings(CONFIG, context(tmp_path).paths, {})
    assert settings.hf_token == Secret(b"hf_canary")


def test_the_runtime_reads_its_credentials_and_says_when_one_is_missing(tmp_path: Path) -> None:
    paths = context(tmp_path).paths
    (tmp_path / "hf_token").write_bytes(b"hf_canary\n")
    settings = host_fetch_settings(CONFIG, paths, {"CREDENTIALS_DIRECTORY": str(tmp_path)})
    assert settings.hf_token == Secret(b"hf_canary")
    with pytest.raises(InputError) as caught:
        host_fetch_settings(CONFIG, paths, {})
    assert caught.value.code == "egress.secret_missing"
    assert host_fetch_settings(None, paths, {"HTTPS_PROXY": "http://proxy.invalid:1"}).proxies == {}


def test_systemd_hands_over_exactly_what_is_configured(tmp_path: Path) -> None:
    paths = context(tmp_path).paths
    for config, count in ((CONFIG, 1), (RuntimeConfig(lineage="L", host="h"), 0)):
        unit = render_units("system", paths, tmp_path, config)["sbctl-runtime.service"].decode()
        assert unit.count("LoadCredential=hf_token:") == count


def test_keys_of_external_providers_come_and_go_like_the_secrets_of_egress(tmp_path: Path) -> None:
    name = "provider_key_0123456789abcdef"
    config = RuntimeConfig(lineage="L", host="h", provider_keys=(name,))
    sent = _egress_secrets(context(tmp_path, **{name: b"canary"}), config)
    [(path, value)] = sent.items()
    assert (path.name, value) == (name, b"canary")
    path.parent.mkdir(parents=True)
    path.write_bytes(value)
    paths = context(tmp_path).paths
    assert provider_key(paths, {}, name) == Secret(b"canary")
    unit = render_units("system", paths, tmp_path, config)["sbctl-runtime.service"].decode()
    assert f"LoadCredential={name}:{path}" in unit
    (path.parent / "admin_password").write_bytes(b"stays")
    _forget_secrets(paths, config)
    assert path.exists()
    _forget_secrets(paths, CONFIG)
    assert [each.name for each in path.parent.iterdir()] == ["admin_password"]

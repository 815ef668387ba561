"""egress: what a host's configuration says about the outside is used, secrets come from beside it, and nobody's environment slips in."""

from __future__ import annotations

from pathlib import Path

import pytest
from yarl import URL

from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.egress import OPERATORS_OWN, Egress, EgressSecret
from sbctl.artifacts.egress_settings import fetch_settings
from sbctl.artifacts.fetcher import Fetcher
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import InputError
from sbctl.base.secret import Secret
from tests.simulators.hostile_http import HostileServer

NOISY = {
    "HTTPS_PROXY": "http://proxy.invalid:1",
    "PIP_INDEX_URL": "http://index.invalid/",
    "HF_ENDPOINT": "http://hub.invalid",
    "HF_TOKEN": "hf_canary",
    "PIP_CERT": "/nowhere",
}


def no_secret(name: EgressSecret) -> Secret:
    raise AssertionError(name)


def canary(name: EgressSecret) -> Secret:
    return Secret(b"hf_canary" if name == "hf_token" else b"me:canary")


def test_the_environment_of_a_host_counts_for_nothing() -> None:
    assert fetch_settings(Egress(), NOISY, no_secret) == fetch_settings(Egress(), {}, no_secret)


def test_on_the_operators_own_machine_it_counts_where_nothing_is_written() -> None:
    egress = Egress(hf_endpoint="https://mirror.corp")
    settings = fetch_settings(egress, {**NOISY, OPERATORS_OWN: "operator"}, no_secret)
    assert str(settings.index) == "http://index.invalid/"
    assert str(settings.proxies["https"]) == "http://proxy.invalid:1"
    assert str(settings.hf_endpoint) == "https://mirror.corp"
    assert settings.hf_token is None  # it was meant for another hub


async def test_proxy_token_and_hosts_take_effect(server: HostileServer, tmp_path: Path) -> None:
    egress = Egress(
        proxy=server.url(""),
        no_proxy=("direct.corp",),
        hf_endpoint="http://hub.corp",
        allowed_hosts=("Weights.corp",),
        secrets=("hf_token", "proxy_credentials"),
    )
    settings = fetch_settings(egress, {}, canary)
    assert settings.proxy_for(URL("https://direct.corp/")) is None
    assert settings.origins().allows_host("weights.corp")
    server.serve("http://hub.corp/w", b"weights")
    async with Fetcher(settings) as fetcher:
        await fetch_file(
            ["http://hub.corp/w"], tmp_path / "w", sha256=sha256_bytes(b"weights"), size_bytes=7, fetcher=fetcher
        )
    sent = server.requests[0].headers
    assert sent["authorization"] == "Bearer hf_canary"
    assert sent["proxy-authorization"].startswith("Basic ")
    assert "canary" not in repr(settings)


def test_a_private_index_with_its_password() -> None:
    egress = Egress(package_index="https://pkg.corp/simple", secrets=("index_credentials",))
    settings = fetch_settings(egress, {}, canary)
    fetcher = Fetcher(settings)
    assert fetcher.authorization_for(URL("https://pkg.corp/w.whl")) is not None
    assert fetcher.authorization_for(URL("https://other.corp/w.whl")) is None
    assert settings.origins().allows_connection("pkg.corp", 443)


@pytest.mark.parametrize(
    ("egress", "secret"),
    [
        (Egress(proxy="socks5://canary:1"), b""),
        (Egress(proxy="http://me:canary@p.corp"), b""),
        (Egress(hf_endpoint="canary"), b""),
        (Egress(package_index="file:///canary"), b""),
        (Egress(proxy="http://p.corp", secrets=("proxy_credentials",)), b"canary"),
        (Egress(secrets=("index_credentials",)), b":canary"),
        (Egress(secrets=("index_credentials",)), b"\xff:canary"),
    ],
)
def test_F26_what_is_wrong_is_named_and_not_shown(egress: Egress, secret: bytes) -> None:
    with pytest.raises(InputError) as caught:
        fetch_settings(egress, {}, lambda _name: Secret(secret))
    assert caught.value.code == "egress.invalid"
    assert "canary" not in f"{caught.value!r} {caught.value} {caught.value.to_wire()}"

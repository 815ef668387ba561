"""What the environment configures: index, hub, proxies, hosts of one's own; and that a wrong setting is named, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest
from yarl import URL

from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetch_policy import FetchSettings, check_url, shown, tls_context
from sbctl.artifacts.fetcher import Fetcher
from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, InputError
from tests.simulators.hostile_http import HostileServer


@pytest.mark.parametrize(
    ("environ", "index"),
    [
        ({"SBCTL_PACKAGE_INDEX": "https://a.example/s", "UV_INDEX_URL": "https://b.example/s"}, "https://a.example/s"),
        ({"UV_INDEX_URL": "https://b.example/s", "PIP_INDEX_URL": "https://c.example/s"}, "https://b.example/s"),
        ({"PIP_INDEX_URL": "http://c.example:8080/s"}, "http://c.example:8080/s"),
    ],
)
def test_the_first_index_that_is_set_counts(environ: dict[str, str], index: str) -> None:
    settings = FetchSettings.from_environ(environ)
    assert str(settings.index) == index
    check_url(settings.index, settings.origins())


def test_without_settings_the_library_names_the_index() -> None:
    from pypi_simple import PYPI_SIMPLE_ENDPOINT

    assert str(FetchSettings.from_environ({}).index) == PYPI_SIMPLE_ENDPOINT


@pytest.mark.parametrize("name", ["SBCTL_PACKAGE_INDEX", "PIP_INDEX_URL", "HF_ENDPOINT", "HTTPS_PROXY"])
@pytest.mark.parametrize("value", ["file:///canary", "https://", "https://h/canary\n", "socks5://canary:1"])
def test_a_setting_that_is_no_address_is_named_and_not_shown(name: str, value: str) -> None:
    with pytest.raises(InputError) as caught:
        FetchSettings.from_environ({name: value})
    assert caught.value.place == name
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("https://h.example/", "http://p.example:3128"),
        ("https://inside.corp/", None),
        ("https://127.0.0.1:9/", None),
        ("https://localhost/", None),
        ("http://h.example/", None),
    ],
)
def test_which_requests_take_the_proxy(url: str, proxy: str | None) -> None:
    settings = FetchSettings.from_environ({"https_proxy": "p.example:3128", "NO_PROXY": "corp,other"})
    found = settings.proxy_for(URL(url))
    assert (None if found is None else str(found).rstrip("/")) == proxy


def test_listed_hosts_may_be_private() -> None:
    settings = FetchSettings.from_environ({"SBCTL_DOWNLOAD_HOSTS": "mirror.corp, 10.0.0.5"})
    check_url(URL("https://10.0.0.5/w"), settings.origins())
    with pytest.raises(ArtifactError):
        check_url(URL("https://10.0.0.6/w"), settings.origins())


async def test_a_request_goes_through_the_proxy_with_its_credentials(server: HostileServer, tmp_path: Path) -> None:
    proxy = server.url("").replace("http://", "http://me:canary@")
    settings = FetchSettings.from_environ({"PIP_INDEX_URL": "http://index.invalid/simple", "HTTP_PROXY": proxy})
    server.serve("http://index.invalid/w", b"weights")
    async with Fetcher(settings) as fetcher:
        await fetch_file(
            ["http://index.invalid/w"], tmp_path / "w", sha256=sha256_bytes(b"weights"), size_bytes=7, fetcher=fetcher
        )
    assert server.requests[0].headers["proxy-authorization"].startswith("Basic ")
    assert "canary" not in repr(settings)


def test_a_url_in_a_message_has_no_credentials() -> None:
    assert shown(URL("https://u:canary@h.example/a?token=canary#canary")) == "https://h.example/a"


def test_tls_verifies_names_and_takes_no_authority_that_is_not_there(tmp_path: Path) -> None:
    assert tls_context(FetchSettings.from_environ({})).check_hostname
    (tmp_path / "junk").write_text("junk")
    for name in ("none", "junk"):
        with pytest.raises(InputError) as caught:
            tls_context(FetchSettings.from_environ({"PIP_CERT": str(tmp_path / name)}))
        assert caught.value.code == "egress.ca_unreadable"
        assert caught.value.place == str(tmp_path / name)

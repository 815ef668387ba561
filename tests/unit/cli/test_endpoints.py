"""Where `sbctl output` says the models answer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.connection import Connection
from sbctl.base.ids import Address
from sbctl.cli.endpoints import endpoints_of
from sbctl.state.model import StateView


def state(connection: Connection, *origins: str, **config: Any) -> StateView:
    def recorded(spec: dict[str, Any]) -> Any:
        return SimpleNamespace(spec=spec, connection=connection)

    resources = {
        Address("runtime", "h"): recorded(
            {"config": {"http_bind_address": "127.0.0.1", "http_bind_port": 8080, **config}}
        ),
        Address("bundle", "h"): recorded({"api_keys": {"app": {}}}),
        **{Address("origin", "h", name): recorded({"models": {"m": "d"}}) for name in origins},
    }
    return cast("StateView", SimpleNamespace(resources=resources))


@pytest.mark.parametrize(
    ("connection", "origins", "config", "urls", "words"),
    [
        (Connection("local"), ("localhost",), {}, ["http://127.0.0.1:8080/v1"], "curl -s http://127.0.0.1"),
        (
            Connection("ssh", "10.0.0.7"),
            ("ai.example.com",),
            {"http_bind_address": "0.0.0.0", "https_bind_port": 8443},
            ["https://ai.example.com:8443/v1"],
            "--resolve ai.example.com:8443:10.0.0.7",
        ),
        (
            Connection("ssh", "10.0.0.7"),
            ("a.example", "b.example"),
            {"http_bind_address": "0.0.0.0", "https_bind_port": 443},
            ["https://a.example/v1", "https://b.example/v1"],
            "curl -s https://",
        ),
        (Connection("local"), ("localhost",), {"https_bind_port": None}, ["http://127.0.0.1:8080/v1"], "curl"),
    ],
)
def test_https_is_what_callers_are_told_where_it_is_served(
    connection: Connection, origins: tuple[str, ...], config: dict[str, Any], urls: list[str], words: str
) -> None:
    found = endpoints_of(state(connection, *origins, **config))
    assert [one.base_url for one in found] == urls
    assert all(words in one.curl for one in found)


def test_of_a_cluster_its_gateways_answer_and_nobody_else() -> None:
    whole = dict(state(Connection("ssh", "10.0.0.1"), "ai.example.com", http_bind_address="0.0.0.0").resources)
    for name, at, roles in (("h", 1, ["authority"]), ("gw", 2, ["gateway"]), ("gpu", 3, ["worker"])):
        config = {"http_bind_address": "0.0.0.0", "http_bind_port": 8080, "cluster": {"roles": roles}}
        whole[Address("runtime", name)] = cast(
            "Any", SimpleNamespace(spec={"config": config}, connection=Connection("ssh", f"10.0.0.{at}"))
        )
    (found,) = endpoints_of(cast("StateView", SimpleNamespace(resources=whole)))
    assert (found.host, found.base_url, found.hostname) == ("gw", "http://10.0.0.2:8080/v1", "ai.example.com")
    assert found.curl.endswith('$API_KEY"')

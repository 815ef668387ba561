"""From where and under which name the admin API may be asked: a table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp import web
from multidict import CIMultiDict

from sbctl.base.errors import RefusedError
from sbctl.runtime.admin_reach import Reach

CERTIFIED = SimpleNamespace(covers=lambda name: name in ("admin.corp", "10.0.0.5"))
OUT = ("10.0.0.0/8", "192.168.7.9", "nonsense")


def _request(remote: str, host: str | None, came_to: str, *fields: tuple[str, str], path: str = "/x") -> web.Request:
    headers = CIMultiDict([*([] if host is None else [("Host", host)]), *fields])
    transport = SimpleNamespace(get_extra_info=lambda _name: (came_to, 9090))
    return cast("web.Request", SimpleNamespace(remote=remote, headers=headers, transport=transport, raw_path=path))


def _reach(bind: str, port: int = 9090, *, tls: bool = True) -> Reach:
    certificate = cast("Any", SimpleNamespace(certificate=CERTIFIED)) if tls else None
    return Reach(bind, port, OUT, certificate=certificate)


@pytest.mark.parametrize(
    ("remote", "lets_in"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("10.2.3.4", True),
        ("::ffff:10.2.3.4", True),
        ("192.168.7.9", True),
        ("192.168.7.8", False),
        ("fe80::1%eth0", False),
        ("", False),
    ],
)
def test_only_listed_addresses_get_in(remote: str, lets_in: bool) -> None:
    asked = _request(remote, "10.0.0.5:9090", "10.0.0.5")
    if lets_in:
        _reach("10.0.0.5").check(asked)
        return
    with pytest.raises(RefusedError, match="not open to this address"):
        _reach("10.0.0.5").check(asked)


def test_without_a_list_it_answers_this_machine_alone() -> None:
    reach = Reach("0.0.0.0", 9090)
    reach.check(_request("127.0.0.1", "127.0.0.1:9090", "127.0.0.1"))
    with pytest.raises(RefusedError):
        reach.check(_request("10.0.0.9", "10.0.0.5:9090", "10.0.0.5"))


@pytest.mark.parametrize(
    ("bind", "host", "came_to", "is_ours"),
    [
        ("10.0.0.5", "10.0.0.5:9090", "10.0.0.5", True),
        ("10.0.0.5", "admin.corp:9090", "10.0.0.5", True),
        ("10.0.0.5", "ADMIN.corp:9090", "10.0.0.5", True),
        ("10.0.0.5", "evil.com:9090", "10.0.0.5", False),
        ("10.0.0.5", "10.0.0.5", "10.0.0.5", False),
        ("10.0.0.5", "10.0.0.5:9091", "10.0.0.5", False),
        ("0.0.0.0", "10.0.0.6:9090", "10.0.0.6", True),
        ("0.0.0.0", "10.0.0.7:9090", "10.0.0.6", False),
        ("::", "[fd00::5]:9090", "fd00::5", True),
        ("::", "fd00::5:9090", "fd00::5", False),
        ("::", "[fd00::5]", "fd00::5", False),
        ("127.0.0.1", "localhost:9090", "127.0.0.1", True),
        ("127.0.0.1", "[::1]:9090", "127.0.0.1", True),
        ("10.0.0.5", None, "10.0.0.5", False),
        ("10.0.0.5", ":9090", "10.0.0.5", False),
    ],
)
def test_G2_the_host_header_names_this_listener(bind: str, host: str | None, came_to: str, is_ours: bool) -> None:
    asked = _request("127.0.0.1", host, came_to)
    if is_ours:
        _reach(bind).check(asked)
        return
    with pytest.raises(RefusedError, match="not a name of the admin API"):
        _reach(bind).check(asked)


def test_the_port_of_https_need_not_be_written() -> None:
    _reach("10.0.0.5", 443).check(_request("127.0.0.1", "admin.corp", "10.0.0.5"))
    with pytest.raises(RefusedError):
        _reach("10.0.0.5", 443, tls=False).check(_request("127.0.0.1", "10.0.0.5", "10.0.0.5"))


@pytest.mark.parametrize(
    ("fields", "passes"),
    [
        ([("Origin", "https://admin.corp:9090")], True),
        ([("Referer", "https://admin.corp:9090/x?y")], True),
        ([("Sec-Fetch-Site", "same-origin")], True),
        ([("Origin", "http://admin.corp:9090")], False),
        ([("Origin", "https://10.0.0.5:9090")], False),
        ([("Origin", "null")], False),
        ([("Referer", "https://admin.corp/x")], False),
        ([("Referer", "::")], False),
        ([("Origin", "https://admin.corp:9090"), ("Origin", "https://evil.com")], False),
        ([("Sec-Fetch-Site", "same-site")], False),
    ],
)
def test_G3_pages_of_other_sites_are_refused(fields: list[tuple[str, str]], passes: bool) -> None:
    asked = _request("127.0.0.1", "admin.corp:9090", "10.0.0.5", *fields)
    if passes:
        _reach("10.0.0.5").check(asked)
        return
    with pytest.raises(RefusedError, match="another site"):
        _reach("10.0.0.5").check(asked)


def test_a_page_on_the_default_port_is_the_same_site() -> None:
    for field in (("Origin", "https://admin.corp"), ("Referer", "https://admin.corp/x")):
        _reach("10.0.0.5", 443).check(_request("127.0.0.1", "admin.corp", "10.0.0.5", field))

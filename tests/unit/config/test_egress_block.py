"""egress in sb.yml: host over group over defaults, field by field; secrets by reference only; never a password in an address."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from providers.runtime.spec import desired, fields_for_reader, restored
from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

KEY = "SHA256:" + "a" * 43
FLEET = f"""
secrets: {{hf: "env:HF"}}
fleet:
  defaults: {{egress: {{proxy: "http://proxy.corp:3128", no_proxy: [corp], hf_token: "secret:hf"}}}}
  groups: {{rack: {{egress: {{ca_file: /etc/ssl/corp.pem}}}}}}
  hosts:
    a: {{address: 10.0.0.1, host_key: "{KEY}", group: rack}}
    b: {{address: 10.0.0.2, host_key: "{KEY}", egress: {{proxy: "http://other.corp:1", no_proxy: []}}}}
"""


def test_the_nearest_layer_wins_field_by_field(load_text: Load, minimal: str) -> None:
    hosts = load_text(FLEET + minimal, {"HF": "hf_canary"}, lambda _value: "f" * 16).hosts
    a, b = hosts["a"].egress, hosts["b"].egress
    assert a is not None
    assert b is not None
    assert (a.config.proxy, a.config.no_proxy, a.config.ca_file) == (
        "http://proxy.corp:3128",
        ("corp",),
        "/etc/ssl/corp.pem",
    )
    assert (b.config.proxy, b.config.no_proxy, b.config.ca_file) == ("http://other.corp:1", (), None)
    assert a.config.secrets == b.config.secrets == ("hf_token",)


def test_without_it_nothing_is_set_and_the_meaning_is_that_of_before(load_text: Load, minimal: str) -> None:
    assert load_text(minimal).hosts["local"].egress is None


def test_F26_a_secret_is_in_no_spec_and_its_change_is_seen(load_text: Load, minimal: str) -> None:
    specs = []
    for fingerprint in ("a" * 16, "b" * 16):
        config = load_text(FLEET + minimal, {"HF": "hf_canary"}, lambda _value, mark=fingerprint: mark)
        specs.append(next(iter(desired(config))).spec)
    assert "canary" not in str(specs)
    shown = fields_for_reader(specs[0])["egress"]
    assert shown == {
        "proxy": "http://proxy.corp:3128",
        "no_proxy": ["corp"],
        "ca_file": "/etc/ssl/corp.pem",
        "hf_token": "a" * 16,
    }
    assert fields_for_reader(specs[1])["egress"]["hf_token"] == "b" * 16
    assert fields_for_reader(restored(specs[0], specs[1]))["egress"]["hf_token"] == "b" * 16


@pytest.mark.parametrize(
    ("egress", "code"),
    [
        ('{proxy: "socks5://p.corp"}', "config.bad_value"),
        ('{proxy: "http://me:canary@p.corp"}', "config.bad_value"),
        ("{hf_token: hf_canary}", "config.bad_value"),
        ('{hf_token: "secret:nope"}', "config.unknown_secret"),
        ("{ca_file: corp.pem}", "config.bad_value"),
        ('{proxy_credentials: "env:P"}', "config.rule"),
        ("{proxi: x}", "config.unknown_field"),
    ],
)
def test_what_cannot_be_is_refused_at_its_place_and_not_repeated(
    findings_of: Findings, minimal: str, egress: str, code: str
) -> None:
    found = findings_of(f"fleet:\n  defaults:\n    egress: {egress}\n" + minimal)
    assert [each.code for each in found] == [code]
    assert found[0].span is not None
    assert found[0].span.line == 3
    assert "canary" not in found[0].message

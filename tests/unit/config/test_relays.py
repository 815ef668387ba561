"""A relay is another host of the file, reached directly over SSH."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

KEY = "SHA256:" + "a" * 43
HOSTS = f"""
fleet:
  ssh: {{user: root, identity_file: /k}}
  groups: {{rack: {{relay: %s}}}}
  hosts:
    a: {{address: 10.0.0.1, host_key: "{KEY}", group: rack}}
    b: {{address: 10.0.0.2, host_key: "{KEY}", group: rack}}
    c: {{address: 10.0.0.3, host_key: "{KEY}"%s}}
"""


def test_a_group_has_a_relay_which_has_none_itself(load_text: Load, minimal: str) -> None:
    hosts = load_text(HOSTS % ("a", "") + minimal).hosts
    assert {name: host.relay for name, host in hosts.items()} == {"a": None, "b": "a", "c": None}


@pytest.mark.parametrize(
    ("relay", "more", "code", "said"),
    [
        ("d", "", "config.unknown_relay", "d, is no host"),
        ("c", ", relay: a", "config.bad_relay", "has a relay itself"),
        ("me", "\n    me: {address: local}", "config.bad_relay", "this machine sends directly"),
    ],
)
def test_a_relay_that_can_pass_nothing_on_is_refused(
    findings_of: Findings, minimal: str, relay: str, more: str, code: str, said: str
) -> None:
    text = HOSTS % (relay, "}" + more[:-1] if more.startswith("\n") else more) + minimal
    assert any(found.code == code and said in found.message for found in findings_of(text))

"""What `init` writes is valid, also with its commented part switched on."""

from __future__ import annotations

from collections.abc import Callable

from sbctl.config.compiled import CompiledConfig
from sbctl.config.starter import STARTER


def test_the_starter_loads_without_a_note(load_text: Callable[..., CompiledConfig]) -> None:
    config = load_text(STARTER)
    assert config.notes == ()
    assert list(config.hosts["local"].deployments) == ["chat"]


def test_the_commented_fleet_loads(load_text: Callable[..., CompiledConfig]) -> None:
    head, _, tail = STARTER.partition("# fleet:\n")
    fleet = "fleet:\n" + "".join(line.removeprefix("# ") + "\n" for line in tail.splitlines())
    config = load_text(head + fleet.replace("SHA256:…", "SHA256:" + "a" * 43))
    assert list(config.hosts) == ["gpu-a"]

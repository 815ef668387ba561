"""Which sessions of a run go by a relay."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.cli.relaying import Relays
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.relay import RelayedSession
from sbctl.remote.session import HostSession


class _Host:
    def __init__(self, relay: str | None, delivery: str = "push") -> None:
        self.relay = relay
        self.delivery = delivery
        self.data_address = "10.0.0.1"


class _Config:
    hosts: ClassVar = {"r": _Host(None), "a": _Host("r"), "b": _Host("r", "pull"), "c": _Host(None)}


class _Snapshot:
    bootstrapped = True


class _Session:
    def __init__(self, host: str) -> None:
        self.host = host
        self.closed = 0

    def put(self, *_: Any, **__: Any) -> None:
        """The bytes are there."""

    def close(self) -> None:
        self.closed += 1


def _relays(config: Any = _Config, *, seen: tuple[str, ...] = ("r", "a", "b", "c")) -> tuple[Relays, list[str]]:
    opened: list[str] = []

    def connect(host: str) -> HostSession:
        opened.append(host)
        return cast("HostSession", _Session(host))

    snapshots = {host: cast("NodeSnapshot", _Snapshot()) for host in seen}
    return Relays(cast("CompiledConfig | None", config), snapshots, connect, SYSTEM_CLOCK), opened


def test_only_hosts_that_are_pushed_to_by_a_relay_and_the_relay_itself_go_by_it() -> None:
    relays, opened = _relays()
    through = {
        host: isinstance(relays.over(host, cast("HostSession", _Session(host))), RelayedSession) for host in "rabc"
    }
    assert through == {"r": True, "a": True, "b": False, "c": False}
    relays.close()
    assert opened == []


def test_without_a_configuration_there_are_no_relays() -> None:
    relays, _ = _relays(None)
    session = cast("HostSession", _Session("a"))
    assert relays.over("a", session) is session


def test_a_relay_that_gave_no_answer_is_said_at_the_end(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    relays, opened = _relays(seen=("a",))
    source = tmp_path / "weights"
    source.write_bytes(bytes(2 << 20))
    session = relays.over("a", cast("HostSession", _Session("a")))
    session.put("d" * 64, source, deadline_s=60, progress=lambda _done, _total: None)
    assert capsys.readouterr().err == ""
    relays.close()
    assert capsys.readouterr().err == "a: sent directly, not through r: it gave no answer\n"
    assert opened == []

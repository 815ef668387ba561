"""A runtime that is removed tells its cluster, where it has one, and is removed whatever that says."""

from __future__ import annotations

from typing import Any, cast

import pytest

from sbctl.base.errors import UnreachableError
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.runtime_removal import _say_farewell


class _Client:
    def __init__(self, cluster: dict[str, Any] | None, *, answers: bool = True) -> None:
        self._cluster, self._answers = cluster, answers
        self.asked: list[str] = []

    def cluster(self) -> dict[str, Any] | None:
        return self._cluster

    def drain(self, by: str) -> dict[str, Any]:
        self.asked.append(by)
        if not self._answers:
            raise UnreachableError("runtime.unreachable", "no answer")
        return {}


@pytest.mark.parametrize(
    ("client", "asked"),
    [
        pytest.param(_Client({"cluster_id": "prod"}), ["leave"], id="a node"),
        pytest.param(_Client({"cluster_id": "prod"}, answers=False), ["leave"], id="a node that hangs"),
        pytest.param(_Client(None), [], id="a host on its own, or no runtime"),
    ],
)
def test_only_nodes_say_farewell_and_no_removal_waits_for_it(client: _Client, asked: list[str]) -> None:
    _say_farewell(cast("ControlClient", client))
    assert client.asked == asked

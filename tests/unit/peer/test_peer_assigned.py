"""Generations of a host by the numbers of its cluster; 6 is one that it was told to keep."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.errors import RefusedError
from sbctl.runtime.peer.assigned import served
from sbctl.runtime.staying import AssignedAs


@pytest.mark.parametrize(
    ("deployment", "generation", "code", "told"),
    [
        ("q", 7, None, None),
        ("q", 6, None, None),
        ("q", 5, "stale_deployment_generation", 7),
        ("q", 8, "stale_deployment_generation", 7),
        ("own", 1, None, None),
        ("own", 7, "stale_deployment_generation", 1),
        ("none", 1, "deployment_not_assigned", None),
    ],
)
def test_a_dispatch_reaches_what_the_cluster_assigned(
    deployment: str, generation: int, code: str | None, told: int | None
) -> None:
    running = {
        "q": SimpleNamespace(assigned=AssignedAs(7, (0,)), number=4),
        "own": SimpleNamespace(assigned=None, number=1),
    }
    generations = cast("dict[str, Any]", running)
    if code is None:
        assert served(generations, deployment, generation, kept=(6,)) is generations[deployment]
        return
    with pytest.raises(RefusedError) as caught:
        served(generations, deployment, generation, kept=(6,))
    assert (caught.value.code, caught.value.detail.get("generation")) == (code, told)

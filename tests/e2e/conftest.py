"""Fleets for the end-to-end tests.

`world`: a machine with nothing on it; `installed`: with nothing but the runtime's programs. `served`: one that is applied once for the whole
session; whoever takes it leaves it as it was. `changing`: the same, for tests that change it: it is brought back afterwards by an ordinary apply.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from tests.simulators.operator_world import OperatorWorld, new_world, until


@pytest.fixture
def world() -> Iterator[OperatorWorld]:
    with new_world() as made:
        yield made


@pytest.fixture(scope="session")
def session_world() -> Iterator[OperatorWorld]:
    with new_world() as made:
        made.sbctl("apply", "--yes", expect=0)
        yield made


@pytest.fixture
def installed(world: OperatorWorld, session_world: OperatorWorld) -> OperatorWorld:
    world.has_the_programs_of(session_world)
    return world


@pytest.fixture
def served(session_world: OperatorWorld) -> OperatorWorld:
    session_world.config = copy.deepcopy(session_world.base)
    session_world.env = {}
    session_world.save()
    return session_world


@pytest.fixture
def changing(served: OperatorWorld) -> Iterator[OperatorWorld]:
    served.settled = False
    yield served
    if served.settled and served.config == served.base:
        return
    served.config = copy.deepcopy(served.base)
    served.env = {}
    served.behaves()
    served.sbctl("apply", "--yes", expect=0)
    if not served.answers():
        served.admin("POST", "/admin/model-host/load", {"deployment": "chat"})
        until(served.answers, "answers again")

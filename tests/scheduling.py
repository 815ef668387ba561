"""Which worker runs a test when pytest shares the work, and when: hosts on one, commands of a user on one, other real processes and the real
engine on one, from the beginning; then the rest by file, slow ones first, so that all workers end together.

Workers know markers and the controller knows only node ids, so the places are named here by file; `misplaced` finds a test whose marker
and whose file disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import cache
from typing import Final

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

__all__ = ["HEAVY_MARKERS", "MachineScheduling", "in_turn", "misplaced", "place_of"]

HEAVY_MARKERS: Final = ("lab", "engine", "integration", "soak")
_LAB_FILES: Final = (
    "tests/lab/*",
    "tests/*/test_lab_*.py",
    "tests/e2e/test_fleet_from_nothing.py",
    "tests/docs/test_examples.py",
)
_COMMAND_FILES: Final = (
    "tests/docs/test_examples.py::test_it_is_valid*",
    "tests/docs/test_examples.py::test_make_run_*",
    "tests/docs/test_examples.py::test_run_leaves_*",
    "tests/docs/test_examples.py::test_the_gate_*",
    "tests/e2e/*",
    "tests/attacks/test_node_attacks.py",
    "tests/attacks/test_config_attacks.py",
)
_PROCESS_FILES: Final = (
    "tests/integration/*",
    "tests/faults/*",
    "tests/soak/*",
    "tests/docs/test_pages.py",
)
_SOURCE_FILES: Final = (
    "tests/docs/test_capabilities.py",
    "tests/docs/test_coverage_pages.py",
    "tests/docs/test_references.py",
)
"""They read the source of all tests, or of the product, once for all of them."""
_HEAVY: Final = {"lab": _LAB_FILES, "commands": _COMMAND_FILES, "processes": _PROCESS_FILES}
_PLACES: Final = {**_HEAVY, "source": _SOURCE_FILES}
"""What names a test goes before what names a file, and of files the first that takes it has it."""
_SLOW_FOLDERS: Final = ("tests/attacks/", "tests/properties/", "tests/fuzz/", "tests/docs/")


@cache
def place_of(node_id: str) -> str:
    """A name of `_PLACES`, or the file of a test that may run anywhere."""
    file = node_id.partition("::")[0]
    for name in (node_id, file):
        for place, patterns in _PLACES.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns if ("::" in pattern) == ("::" in name)):
                return place
    return file


def in_turn(items: list[pytest.Item]) -> list[pytest.Item]:
    """In the order in which workers take them, place by place."""
    places = list(_PLACES)

    def turn(item: pytest.Item) -> int:
        place = place_of(item.nodeid)
        return places.index(place) if place in places else len(places) + (not place.startswith(_SLOW_FOLDERS))

    return sorted(items, key=turn)


def misplaced(items: Iterable[pytest.Item]) -> list[str]:
    """Heavy tests, soak apart, in files that are not listed here."""
    found = set()
    for item in items:
        heavy = {name for name in HEAVY_MARKERS if item.get_closest_marker(name)}
        place = place_of(item.nodeid)
        if heavy and "soak" not in heavy and (place not in _HEAVY or ("lab" in heavy and place != "lab")):
            found.add(item.nodeid.partition("::")[0])
    return sorted(found)


class MachineScheduling(LoadScopeScheduling):
    """xdist's scheduling by scope, with `place_of` as the scope, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        return place_of(nodeid)

"""Which worker runs a test when pytest shares the work: hosts on one, commands of a user on one, other real processes and the real engine on
one, the rest anywhere.

Workers know markers and the controller knows only node ids, so the places are named here by file; `misplaced` finds a test whose marker
and whose file disagree.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

__all__ = ["HEAVY_MARKERS", "MachineScheduling", "misplaced", "place_of"]

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
    "tests/docs/test_pages.py",
    "tests/attacks/test_node_attacks.py",
    "tests/attacks/test_config_attacks.py",
)
_PROCESS_FILES: Final = (
    "tests/integration/*",
    "tests/faults/*",
    "tests/soak/*",
)
_PLACES: Final = {"lab": _LAB_FILES, "commands": _COMMAND_FILES, "processes": _PROCESS_FILES}
"""What names a test goes before what names a file, and of files the first that takes it has it."""


def place_of(node_id: str) -> str:
    """A name of `_PLACES`, or the node id itself for a test that may run anywhere."""
    for name in (node_id, node_id.partition("::")[0]):
        for place, patterns in _PLACES.items():
            if any(fnmatchcase(name, pattern) for pattern in patterns if ("::" in pattern) == ("::" in name)):
                return place
    return node_id


def misplaced(items: Iterable[pytest.Item]) -> list[str]:
    """Heavy tests, soak apart, in files that are not listed here."""
    found = set()
    for item in items:
        heavy = {name for name in HEAVY_MARKERS if item.get_closest_marker(name)}
        place = place_of(item.nodeid)
        if heavy and "soak" not in heavy and (place == item.nodeid or ("lab" in heavy and place != "lab")):
            found.add(item.nodeid.partition("::")[0])
    return sorted(found)


class MachineScheduling(LoadScopeScheduling):
    """xdist's scheduling by scope, with `place_of` as the scope."""

    def _split_scope(self, nodeid: str) -> str:
        return place_of(nodeid)

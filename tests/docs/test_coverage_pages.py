"""docs/threats.md and docs/faults.md say of tests only what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.simulators.doc_ids import ids_in_tests, names_by_file

DOCS = Path(__file__).resolve().parents[2] / "docs"
GROUP_SIZES = {"A": 19, "B": 23, "C": 18, "D": 22, "E": 15, "F": 26, "G": 25, "H": 12}
UNTESTED = ("later", "not applicable", "partly", "not tested")


def _rows(page: str) -> dict[str, str]:
    """First cell → last cell of every row that has a number."""
    text = (DOCS / page).read_text(encoding="utf-8")
    return {match[1]: match[2] for match in re.finditer(r"^\| ([A-H]?\d+) \|.*\| ([^|]*) \|$", text, re.MULTILINE)}


THREATS, FAULTS = _rows("threats.md"), _rows("faults.md")


def test_every_case_is_listed_once() -> None:
    assert list(THREATS) == [f"{group}{n}" for group, size in GROUP_SIZES.items() for n in range(1, size + 1)]
    assert list(FAULTS) == [str(n) for n in range(1, 84)]


@pytest.mark.parametrize(("case", "said"), [*THREATS.items(), *FAULTS.items()])
def test_what_is_said_to_be_tested_is(case: str, said: str) -> None:
    named = re.findall(r"`([^`]*/test_[^`]+)`", said)
    assert named or said.startswith(UNTESTED), f"{case} says neither where it is tested nor why not: {said}"
    for name in named:
        file, colons, test = name.partition("::")
        assert file in names_by_file(), f"{case} names tests/{file}.py, which is not there"
        if colons:
            assert test in names_by_file()[file], f"{case} names {test}, which is not in tests/{file}.py"
        elif case in THREATS and case in ids_in_tests():
            assert file in ids_in_tests()[case], f"no test in tests/{file}.py carries {case}: run `make docs`"


def test_every_test_that_carries_a_fault_stands_at_its_row() -> None:
    carried = [
        (str(int(match[1])), f"{file}::{name}")
        for file, names in names_by_file().items()
        for name in names
        if (match := re.match(r"test_fault_(\d+)_", name))
    ]
    assert carried
    assert [named for fault, named in carried if f"`{named}`" not in FAULTS.get(fault, "")] == []


def test_every_case_with_a_test_says_so() -> None:
    silent = [case for case in THREATS if case in ids_in_tests() and not re.search(r"`[^`]*/test_", THREATS[case])]
    assert not silent, f"tests carry {', '.join(silent)}, and docs/threats.md does not name them: run `make docs`"


def test_ids_in_tests_are_those_of_the_page() -> None:
    unknown = {case for case in ids_in_tests() if not case.startswith("X")} - set(THREATS)
    assert not unknown

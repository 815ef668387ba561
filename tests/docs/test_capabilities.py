"""Each capability is proven by tests that exist, and says on what; nothing is claimed that no test of a usual run proves."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "docs"))

from capabilities import Capability, capabilities_page, markers_in, proofs, read_capabilities  # noqa: E402

CAPABILITIES = [one for area in read_capabilities() for one in area.capabilities]


@pytest.mark.parametrize("capability", CAPABILITIES, ids=lambda one: one.id)
def test_a_capability_is_proven_by_tests_that_exist_and_usually_run(capability: Capability) -> None:
    proven = proofs(capability)
    assert proven
    assert re.fullmatch(r"[a-z]+\.[a-z_]+", capability.id)
    assert any("soak" not in marks for marks in proven.values()), (
        "a capability that only a soak proves is proven by nobody"
    )


def test_each_is_listed_once_in_its_order() -> None:
    ids = [one.id for one in CAPABILITIES]
    assert len(set(ids)) == len(ids)
    assert len({one.says for one in CAPABILITIES}) == len(ids)
    page = capabilities_page()
    assert [page.index(f"| `{name}` |") for name in ids] == sorted(page.index(f"| `{name}` |") for name in ids)


def test_a_name_that_is_no_test_is_found() -> None:
    for named in ("unit/base/test_fs::test_nothing_of_the_kind", "unit/base/no_such_file::test_x"):
        with pytest.raises(LookupError, match=r"x\.y: there is no"):
            proofs(Capability("x.y", "", (named,), ""))


def test_markers_are_those_of_file_and_function() -> None:
    assert "integration" in markers_in("integration/test_daemon")["test_a_bad_candidate_changes_nothing"]
    assert "soak" in markers_in("faults/test_runtime_kill_loop")["test_F24_a_runtime_killed_at_every_boundary"]
    assert "engine" in markers_in("integration/test_real_engine")["test_a_client_that_leaves_frees_its_slot"]

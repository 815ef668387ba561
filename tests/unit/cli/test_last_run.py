"""The head of a plan says which run the state is of, and how that ended."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from sbctl.cli.planning import last_run_said
from sbctl.state.model import RunInfo, RunStatus, RunSummary

AT = datetime(2026, 11, 30, 16, 25, tzinfo=UTC)


@pytest.mark.parametrize(
    ("status", "commit", "said"),
    [
        ("applied", "3f2a91c00", "serial 4, apply 2026-11-30T16:25:00Z by ops (3f2a91c)"),
        ("running", "", "serial 4, apply (unfinished) 2026-11-30T16:25:00Z by ops"),
        ("interrupted", "", "serial 4, apply (interrupted) 2026-11-30T16:25:00Z by ops"),
        ("partial", "", "serial 4, apply (partial) 2026-11-30T16:25:00Z by ops"),
        ("failed", "", "serial 4, apply (failed) 2026-11-30T16:25:00Z by ops"),
    ],
)
def test_a_run_that_was_not_all_applied_is_said_to_be(status: RunStatus, commit: str, said: str) -> None:
    assert last_run_said(RunSummary(4, RunInfo("apply", "ops", commit), status, AT)) == said

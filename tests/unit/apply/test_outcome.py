"""Results: the exit code follows from the rows, by the one table."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from sbctl.apply.outcome import ApplyResult, ChangeResult, HostResult, host_status, next_step_of
from sbctl.base.errors import (
    ExitCode,
    HostError,
    LockedError,
    RefusedError,
    SbctlError,
    StalePlanError,
    UnreachableError,
)
from sbctl.base.ids import Address

EMPTY = ApplyResult(1, "apply", "applied", (), (), 1.0)


def row(status: Any, cause: SbctlError | None = None) -> ChangeResult:
    return ChangeResult(Address("engine", "a", "x"), "create", "a", status, cause)


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (EMPTY, ExitCode.DONE),
        (replace(EMPTY, changes=(row("done"),)), ExitCode.DONE),
        (replace(EMPTY, changes=(row("done"), row("failed", HostError("x", "y")))), ExitCode.FAILED),
        (replace(EMPTY, changes=(row("failed"),)), ExitCode.FAILED),
        (replace(EMPTY, changes=(row("unknown"),)), ExitCode.FAILED),
        (replace(EMPTY, changes=(row("unknown", UnreachableError("x", "y")),)), ExitCode.UNREACHABLE),
        (
            replace(EMPTY, changes=(row("unknown", UnreachableError("x", "y")), row("failed", HostError("x", "y")))),
            ExitCode.FAILED,
        ),
        (replace(EMPTY, changes=(row("failed", RefusedError("x", "y")),)), ExitCode.REFUSED),
        (replace(EMPTY, hosts=(HostResult("a", "stale", {}, StalePlanError("x", "y")),)), ExitCode.STALE),
        (replace(EMPTY, hosts=(HostResult("a", "done", {}, degraded=("chat",)),)), ExitCode.DEGRADED),
        (replace(EMPTY, unreachable={"a": "no answer"}), ExitCode.UNREACHABLE),
        (replace(EMPTY, unreachable={"a": "no answer"}, allow_unreachable=True), ExitCode.DONE),
        (replace(EMPTY, journal_error=SbctlError("disk.full", "full")), ExitCode.FAILED),
        (
            replace(EMPTY, interrupt_code=ExitCode.TERMINATED, changes=(row("failed", HostError("x", "y")),)),
            ExitCode.TERMINATED,
        ),
    ],
)
def test_the_exit_code_is_the_worst_of_what_holds(result: ApplyResult, code: ExitCode) -> None:
    assert result.exit_code == code


def test_counts_name_every_status() -> None:
    result = replace(EMPTY, changes=(row("done"), row("done"), row("skipped")))
    assert result.counts == {
        "done": 2,
        "failed": 0,
        "unknown": 0,
        "interrupted": 0,
        "skipped": 1,
        "not_started": 0,
    }


@pytest.mark.parametrize(
    ("statuses", "error", "status"),
    [
        ([], None, "unchanged"),
        (["done"], None, "done"),
        (["done", "skipped", "failed"], None, "failed"),
        (["failed", "unknown"], None, "unknown"),
        (["done", "interrupted", "not_started"], None, "interrupted"),
        (["not_started"], None, "not_started"),
        (["skipped"], None, "not_started"),
        (["done", "not_started"], None, "partial"),
        (["not_started"], StalePlanError("x", "y"), "stale"),
        (["not_started"], UnreachableError("x", "y"), "unreachable"),
        (["not_started"], LockedError("x", "y"), "failed"),
    ],
)
def test_a_host_is_as_well_as_its_worst_row(statuses: list[Any], error: SbctlError | None, status: str) -> None:
    assert host_status([row(each) for each in statuses], error) == status


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (row("done"), None),
        (row("skipped"), None),
        (row("failed", HostError("x", "y", next_step="turn it on")), "turn it on"),
        (row("failed", HostError("x", "y")), "repair the cause, then run apply again: what is done is not repeated"),
        (row("unknown"), "run plan: it reads the host before anything else"),
        (row("not_started"), None),
    ],
)
def test_every_row_that_is_not_done_says_what_to_do(change: ChangeResult, expected: str | None) -> None:
    assert next_step_of(change) == expected

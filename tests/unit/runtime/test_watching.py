"""A fault in one look ends no looking."""

from __future__ import annotations

import asyncio

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.bringing_back import keep
from sbctl.runtime.watching import keep_watching
from tests.simulators.engine_world import in_virtual_time


@pytest.mark.parametrize(
    "fault", [SbctlError("disk.io_error", "the disk is ill"), RuntimeError("nobody thought of it")]
)
def test_a_watch_that_fails_is_told_and_begins_anew(fault: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    began: list[float] = []

    async def watch() -> None:
        began.append(asyncio.get_running_loop().time())
        if len(began) < 3:
            raise fault

    async def work() -> None:
        await keep_watching("weights", watch)

    in_virtual_time(work)
    assert [round(one - began[0]) for one in began] == [0, 30, 60]
    said = capsys.readouterr()
    assert "weights" in said.out + said.err


def test_a_watch_that_is_cancelled_is_over() -> None:
    async def work() -> None:
        task = asyncio.create_task(keep_watching("drain", asyncio.Event().wait))  # type: ignore[arg-type]
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    in_virtual_time(work)


def test_what_goes_wrong_in_the_background_is_logged(capsys: pytest.CaptureFixture[str]) -> None:
    async def fails() -> None:
        raise RuntimeError("nobody thought of it")

    async def work() -> None:
        background: set[asyncio.Task[None]] = set()
        keep(background, (asyncio.create_task(fails()), asyncio.create_task(asyncio.sleep(9))))
        await asyncio.sleep(1)
        assert len(background) == 1
        await asyncio.sleep(9)
        assert not background

    in_virtual_time(work)
    said = capsys.readouterr()
    assert "nobody thought of it" in said.out + said.err

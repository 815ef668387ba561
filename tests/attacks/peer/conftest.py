"""The peer plane behaves the same on asyncio's loop and on uvloop's; tables of what is refused before a loop matters run on one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tests.simulators.peer_world import PeerWorld


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    plain = {"asyncio": asyncio.new_event_loop}
    if item.get_closest_marker("parametrize") is not None and "tls" not in item.name:
        return plain
    try:
        import uvloop
    except ImportError:
        return plain
    return {**plain, "uvloop": uvloop.new_event_loop}


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[PeerWorld]:
    world = PeerWorld(tmp_path)
    yield world
    await world.close()

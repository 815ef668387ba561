"""A fetcher that lets loopback in, a hostile server, an artifact made of given bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from yarl import URL

from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.fetcher import Fetcher
from tests.simulators.hostile_http import HostileServer


@pytest.fixture
async def server() -> AsyncIterator[HostileServer]:
    async with HostileServer() as running:
        yield running


@pytest.fixture
async def fetcher(server: HostileServer) -> AsyncIterator[Fetcher]:
    settings = FetchSettings(index=URL(server.url("/simple")), hf_endpoint=URL("https://hub.invalid"))
    async with Fetcher(settings, stall_s=0.3) as opened:
        yield opened

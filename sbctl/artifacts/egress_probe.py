"""Whether the places that weights come from answer from here: one file of each is asked for its first byte, with the settings that a pull has.

Nothing is kept, and nothing is said that may hold a credential.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

from yarl import URL

from sbctl.artifacts.fetch_policy import FetchSettings, shown
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.source_answer import TEXT_MAX_CHARS, SourceAnswer
from sbctl.artifacts.sources import named_sources
from sbctl.base.errors import SbctlError

__all__ = ["ask_sources"]

_AT_ONCE: Final = 8
_ANSWERS: Final = frozenset({200, 206, 416})


async def ask_sources(
    wanted: Iterable[ArtifactFacts], settings: FetchSettings, *, deadline_s: float = 15.0
) -> list[SourceAnswer]:
    """Each source of each artifact, in their order. Never raises for what a source does."""
    gate = asyncio.Semaphore(_AT_ONCE)
    async with Fetcher(settings) as fetcher:

        async def ask(facts: ArtifactFacts, number: int) -> SourceAnswer:
            async with gate:
                return await _ask(facts, number, fetcher, deadline_s)

        asked = [ask(facts, number) for facts in wanted for number in range(1 + len(facts.mirrors))]
        return list(await asyncio.gather(*asked))


async def _ask(facts: ArtifactFacts, number: int, fetcher: Fetcher, deadline_s: float) -> SourceAnswer:
    source = named_sources(facts.files[0], facts, fetcher)[number]
    told = SourceAnswer(source=source.name[:TEXT_MAX_CHARS], model=f"{facts.model}:{facts.variant}")
    began_s, address, said = time.monotonic(), "", ""
    try:
        async with asyncio.timeout(deadline_s):
            found = await source.locate()
            address = str(found.path) if found.url is None else shown(found.url)
            if found.url is not None:
                said = await _first_byte(found.url, fetcher)
    except TimeoutError:
        said = f"no answer in {deadline_s:.0f} s"
    except SbctlError as error:
        said = error.message
    took_ms = int((time.monotonic() - began_s) * 1000)
    changes = {"address": address[:TEXT_MAX_CHARS], "answered": not said, "said": said[:TEXT_MAX_CHARS]}
    return told.model_copy(update={**changes, "milliseconds": took_ms})


async def _first_byte(url: URL, fetcher: Fetcher) -> str:
    """Why it is no answer; empty when it is one."""
    async with fetcher.open(url, {"Range": "bytes=0-0"}) as response:
        status = response.status
        if status in _ANSWERS:
            return ""
        if status in (401, 403):
            return f"it refuses (HTTP {status}): a token is lacking, wrong, or without a right to this model"
        return "it does not have this file (HTTP 404)" if status == 404 else f"it answers HTTP {status}"

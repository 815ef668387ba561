"""What is looked at again and again beside the requests: a fault in one look is told, and the looking goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from sbctl.base.errors import SbctlError
from sbctl.runtime.log import get_log

__all__ = ["keep_watching"]

_AGAIN_S: Final = 30.0


async def keep_watching(what: str, watch: Callable[[], Awaitable[None]], *, again_s: float = _AGAIN_S) -> None:
    """Until `watch` ends by itself, or this is cancelled. One that fails begins anew after `again_s` seconds."""
    while True:
        try:
            await watch()
        except Exception as error:  # noqa: BLE001 - nobody else would hear of it
            first = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
            told = str(first) if isinstance(first, SbctlError) else repr(first)
            get_log("watch").error("a look failed", what=what, error=told, again_s=again_s)
        else:
            return
        await asyncio.sleep(again_s)

"""The program of the cluster's store: what it must be able to do, how its version is read, and the unit that it runs in."""

from __future__ import annotations

import re
from typing import Final

__all__ = ["LEAST_VERSION", "LEAST_VERSION_TEXT", "PROGRAM_NAME", "STORE_UNIT", "lacks", "parse_version"]

PROGRAM_NAME: Final = "nats-server"
STORE_UNIT: Final = "sbctl-store.service"
LEAST_VERSION: Final = (2, 11, 0)
LEAST_VERSION_TEXT: Final = "2.11"
_SYNC_INTERVAL_SINCE: Final = (2, 10, 0)
_VERSION: Final = re.compile(r"\bv?(\d{1,4})\.(\d{1,4})\.(\d{1,4})\b")


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Of what the program or the server says of itself (`nats-server: v2.15.1`); None when it says none."""
    found = _VERSION.search(text[:1000])
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def lacks(version: tuple[int, int, int]) -> str | None:
    """What a version cannot do that the store needs, in a phrase; None for one that is new enough."""
    if version >= LEAST_VERSION:
        return None
    if version < _SYNC_INTERVAL_SINCE:
        return "it has neither sync_interval, without which a power cut takes acknowledged writes, nor a time to live for single keys"
    return "it has no time to live for single keys and cannot list a bucket in one answer"

"""`sbctl-runtime` whose wall clock is off: python -m tests.simulators.shifted_daemon serve

By as many seconds as `<prefix>/clock_off_s` says at each look; nothing where there is no such file. Monotonic time is the machine's.
"""

from __future__ import annotations

import os
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

from sbctl.base.clock import SystemClock
from sbctl.runtime.main import main

OFF = Path(os.environ["SBCTL_NODE_PREFIX"]) / "clock_off_s"


def shifted_now(self: SystemClock) -> datetime:
    try:
        off_s = float(OFF.read_text(encoding="ascii"))
    except (OSError, ValueError):
        off_s = 0.0
    return datetime.now(UTC) + timedelta(seconds=off_s)


if __name__ == "__main__":
    SystemClock.now = shifted_now  # type: ignore[method-assign]
    sys.exit(main())

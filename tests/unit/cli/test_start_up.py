"""What a command and its node process need not have is not loaded: each of them is started for every look at a host."""

from __future__ import annotations

import subprocess
import sys

import pytest

LARGE = ("aiohttp", "cryptography", "deepdiff", "httpx", "paramiko", "psycopg", "pypi_simple", "nats")


@pytest.mark.waits
@pytest.mark.parametrize("entry", ["sbctl.cli.planning", "sbctl.runtime.nodeops.stdio"])
def test_a_look_at_a_host_loads_no_large_library(entry: str) -> None:
    script = f"import sys, {entry}; print(*(name for name in {LARGE!r} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == []

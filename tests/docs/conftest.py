"""A machine for the pages: a home, a node prefix, the programs they use, shared downloads, ports of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.simulators.doc_pages import Session
from tests.simulators.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
SHARED_CACHE = Path(os.environ.get("SBCTL_TEST_CACHE") or ROOT / ".cache" / "test")

_CURL = """\
#!{python}
# Stands for curl where there is none: -s, -u, -X, -H, -d and one URL.
import argparse, base64, sys, urllib.error, urllib.request
p = argparse.ArgumentParser()
p.add_argument("-s", action="store_true"); p.add_argument("-u"); p.add_argument("-X"); p.add_argument("-d")
p.add_argument("-H", action="append", default=[]); p.add_argument("url")
a = p.parse_args()
h = dict(tuple(part.strip() for part in one.split(":", 1)) for one in a.H)
if a.u:
    h["authorization"] = "Basic " + base64.b64encode(a.u.encode()).decode()
r = urllib.request.Request(a.url, a.d.encode() if a.d else None, h, method=a.X)
try:
    body = urllib.request.build_opener(urllib.request.ProxyHandler({{}})).open(r, timeout=120).read()
except urllib.error.HTTPError as error:
    body = error.read()
sys.stdout.write(body.decode())
"""


@pytest.fixture
def sessions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[], Session]]:
    """Makes sessions, each on a machine of its own; what they leave running is destroyed at the end."""
    made: list[tuple[Path, dict[str, str]]] = []

    def make() -> Session:
        machine = tmp_path_factory.mktemp("m")
        work, programs = machine / "work", machine / "bin"
        work.mkdir()
        programs.mkdir()
        shutil.copytree(ROOT / "examples", work / "examples", ignore=shutil.ignore_patterns(".sbctl"))
        path = f"{programs}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
        if shutil.which("curl", path=path) is None:
            (programs / "curl").write_text(_CURL.format(python=sys.executable))
            (programs / "curl").chmod(0o755)
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.endswith(("_INDEX", "_INDEX_URL", "_proxy", "_PROXY"))
        }
        environ = {
            **kept,
            "PATH": path,
            "HOME": str(machine),
            "USER": "ops",
            "LANG": "C.UTF-8",
            "COLUMNS": "80",
            "NO_COLOR": "1",
            "SBCTL_NODE_PREFIX": str(machine / "node"),
            "XDG_CACHE_HOME": str(SHARED_CACHE),
        }
        made.append((work, environ))
        return Session(work, environ, moved={"8080": str(free_port()), "9090": str(free_port())})

    yield make
    for work, environ in made:
        for state in work.rglob(".sbctl"):
            subprocess.run(
                [sys.executable, "-m", "sbctl", "destroy", "--yes", "-f", str(state.parent / "sb.yml")],
                env=environ, cwd=ROOT, check=False, capture_output=True, timeout=120,
            )  # fmt: skip

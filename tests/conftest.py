"""What every test gets: a home of its own, no inherited settings, and skips that become failures where everything must run."""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

ROOT = Path(__file__).resolve().parent.parent
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from tests.lab.fixture import lab  # noqa: E402, F401 - a fixture for every test that asks for hosts
from tests.scheduling import in_turn, misplaced  # noqa: E402

# A busy machine is no fault of what is tested.
settings.register_profile("any machine", parent=settings(), deadline=None)
settings.register_profile("brief", parent=settings.get_profile("any machine"), max_examples=20)
settings.load_profile("any machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Begun in the background of a shell: what tests start has to take interrupts all the same.
    signal.signal(signal.SIGINT, signal.default_int_handler)

_KEPT = ("SBCTL_REQUIRE_ALL", "SBCTL_CORPUS", "SBCTL_PACKAGE_INDEX", "SBCTL_TEST_CACHE")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from tests.scheduling import MachineScheduling

    return MachineScheduling(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    asked_for_soak = "soak" in (config.getoption("-m") or "")
    if wrong := misplaced(items):
        raise pytest.UsageError(f"tests/scheduling.py does not list these files with heavy tests: {', '.join(wrong)}")
    items[:] = in_turn(items)
    for item in items:
        if item.get_closest_marker("soak") and not asked_for_soak:
            item.add_marker(pytest.mark.skip(reason="a long loop: make soak"))


def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> Any:
    """How long a long loop took, as soon as it ended."""
    if config.getoption("-m") != "soak" or getattr(report, "when", "") != "call":
        return None
    letter = {"passed": ".", "failed": "F", "skipped": "s"}[report.outcome]
    return report.outcome, letter, f"{report.outcome.upper()} in {getattr(report, 'duration', 0.0):.0f} s"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    if report.skipped and os.environ.get("SBCTL_REQUIRE_ALL") and not item.get_closest_marker("soak"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if "optional:" not in reason:
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} must run here, but was skipped: {reason}"


@pytest.fixture(autouse=True)
def own_mask() -> Iterator[None]:
    """What a program of ours masks in this process is not masked for the next test."""
    before = os.umask(0o022)
    yield
    os.umask(before)


_NUMBERS = itertools.count(1)
"""Of directories of tests. pytest's own way to a free name reads all names that are taken, and there are thousands."""


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty directory of this test's own, named after it."""
    name = re.sub(r"\W", "_", request.node.name)[:24]
    path = tmp_path_factory.getbasetemp() / f"{name}-{next(_NUMBERS)}"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture(scope="session")
def _homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("homes", numbered=False)


@pytest.fixture(autouse=True)
def own_home(_homes: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test sees the user's home, keys, caches or settings."""
    home = _homes / str(next(_NUMBERS))
    home.mkdir(mode=0o700)
    for name in list(os.environ):
        if (name.startswith(("SBCTL_", "XDG_", "GITHUB_", "GITLAB_")) or name == "CI") and name not in _KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    return home

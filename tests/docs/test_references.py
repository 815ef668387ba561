"""The reference pages say what the product does: generated ones are current, written ones name every field, route and event."""

from __future__ import annotations

import dataclasses
import importlib
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import cast, get_args

import pytest

from sbctl.apply import events
from sbctl.base.errors import ExitCode
from sbctl.placement.documents import LEAVES
from sbctl.plan.document import ChangeDocument, LeafDocument, PlanDocument, SummaryDocument
from sbctl.plan.model import Action
from sbctl.runtime.admin_routes import ROUTES
from sbctl.runtime.cluster.directory import Exclusion
from sbctl.runtime.gateway.surface import MODELS_PATHS, SURFACE
from sbctl.runtime.listeners import PROBE_ROUTES
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.residency import Residency

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs" / "reference"


def _tool(name: str) -> ModuleType:
    if str(ROOT / "docs") not in sys.path:
        sys.path.insert(0, str(ROOT / "docs"))
    return importlib.import_module(name)


def _page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def test_generated_pages_are_current() -> None:
    stale = _tool("generate").drifted()
    assert not stale, f"{', '.join(path.name for path in stale)} differ from the source: run `make docs`"


def test_a_cluster_s_page_says_what_to_do_about_each_reason_of_a_node() -> None:
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = page[page.index("### Why a node does not count") : page.index("## When a worker has to go")]
    rows = {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall("`([a-z_]+)`", line.split("|")[1])
    }
    assert rows == set(get_args(Exclusion)) - {""}
    for code in ("crash_loop", LEAVES, "authority_stale", "device_gone"):
        assert f"`{code}`" in section


def test_every_error_code_of_the_source_is_listed_with_a_sentence() -> None:
    tool = _tool("error_codes")
    codes = tool.error_codes()
    missing = {code: file for code, file in tool.dotted_strings().items() if code not in codes}
    assert not missing, "codes without a row, or texts that NOT_CODES in docs/error_codes.py should name"
    wordless = [code for code, one in codes.items() if not one.sentence]
    wordless += [code for code, (_status, sentence) in tool.http_codes().items() if not sentence]
    assert not wordless, "codes whose sentence docs/error_codes.py cannot find: add it to SENTENCES"


def test_every_exit_code_has_a_row_in_both_tables() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for code in ExitCode:
        assert re.search(rf"^\| {int(code)} \|", _page("exit-codes.md"), re.MULTILINE), f"{code!r} in exit-codes.md"
        assert re.search(rf"^\| (?:\d+, )?{int(code)}(?:, \d+)? \|", readme, re.MULTILINE), f"{code!r} in README.md"


def test_the_order_of_exit_codes_is_that_of_the_source() -> None:
    from sbctl.base.errors import EXIT_PRECEDENCE

    order = ", ".join(str(int(code)) for code in EXIT_PRECEDENCE)
    assert order in " ".join(_page("exit-codes.md").split())
    assert order in " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())


@pytest.mark.parametrize("model", [PlanDocument, SummaryDocument, ChangeDocument, LeafDocument])
def test_the_plan_page_names_every_field(model: type) -> None:
    page = _page("plan.md")
    assert [name for name in model.model_fields if f"`{name}`" not in page] == []  # type: ignore[attr-defined]


def test_the_plan_page_names_every_action() -> None:
    page = _page("plan.md")
    assert [action for action in get_args(Action) if f"`{action}`" not in page] == []


def test_the_event_page_names_every_event_and_field() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", _page("events.md"), re.MULTILINE))
    kinds = {kind.type: {field.name for field in dataclasses.fields(kind)} for kind in get_args(events.Event)}
    assert set(rows) == set(kinds)
    for name, fields in kinds.items():
        assert [field for field in sorted(fields) if f"`{field}`" not in rows[name]] == [], name


def test_the_http_page_names_every_route() -> None:
    page = _page("admin-api.md")
    routes = [f"{route.method} {route.path}" for route in ROUTES if route.path not in PROBE_ROUTES]
    routes += [f"POST {path}" for path in SURFACE] + [f"GET {path}" for path in MODELS_PATHS]
    assert len(routes) > 10
    assert [route for route in routes if f"`{route}`" not in page] == []


def test_the_http_page_names_every_metric() -> None:
    metrics = RuntimeMetrics()
    metrics.watch(cast("Reconciler", SimpleNamespace(generations={}, revision=0, residency=Residency())))
    metrics.watch_certificate(cast("PublicTls", SimpleNamespace(plane="api", certificate=None)))
    families = [row.split()[2] for row in metrics.render().decode().splitlines() if row.startswith("# TYPE")]
    # A machine without a device has no line of these.
    families += [f"sbproxy_model_host_gpu_{name}" for name in ("vram_bytes", "utilization", "memory_occupancy")]
    assert len(families) > 25
    page = _page("admin-api.md")
    assert [one for one in families if not one.endswith("_created") and f"`{one}`" not in page] == []

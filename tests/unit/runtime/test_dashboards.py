"""The dashboard and the alert rules: they parse, and every metric, label and value of a label that they name is one that a runtime tells."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from prometheus_client.registry import Collector
from ruamel.yaml import YAML

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.runtime.cluster.gauges import ClusterGauges
from sbctl.runtime.cluster.store import StoreStatus
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.residency import Residency

ROOT = Path(__file__).resolve().parents[3]
FILES = ROOT / "dashboards"
NAME = re.compile(r"\b(?:sbproxy|sbctl)_[a-z0-9_]+")
DEVICES = {f"sbproxy_model_host_gpu_{name}" for name in ("vram_bytes", "utilization", "memory_occupancy")}
"""A machine without a device has no line of these."""


OF_THE_CLUSTER = {
    "sbproxy_managed_replica_attempts_total": "counter",
    "sbproxy_managed_replica_failovers_total": "counter",
    "sbproxy_model_plane_peer_dispatch_seconds": "histogram",
    "sbproxy_model_plane_rejections_total": "counter",
    "sbproxy_model_plane_stream_cancellations_total": "counter",
    "sbproxy_ai_model_directory_exclusions_total": "counter",
    "sbproxy_ai_replica_selection_excluded_total": "counter",
    "sbproxy_model_host_placement_rejections_total": "counter",
    "sbproxy_model_host_active_requests": "gauge",
    "sbproxy_model_host_queued_requests": "gauge",
    "sbproxy_model_host_deployment_state": "gauge",
    "sbctl_cluster_store_connected": "gauge",
    "sbctl_cluster_store_lost_seconds": "gauge",
    "sbctl_cluster_lease_held": "gauge",
}


def cluster() -> Collector:
    watched = SimpleNamespace(on_change=lambda _: None, view=SimpleNamespace(rows={}), plan=None)
    store = SimpleNamespace(status=lambda: StoreStatus("connected", SYSTEM_CLOCK.now()))
    node = SimpleNamespace(
        roster=watched,
        feed=watched,
        store=store,
        controller=None,
        desired=SimpleNamespace(held=None),
        facts=lambda: SimpleNamespace(rows={}, is_out=lambda _: False),
    )
    return ClusterGauges(cast("Any", node), SYSTEM_CLOCK)


def families() -> dict[str, str]:
    """Every family that a runtime tells, and its type."""
    metrics = RuntimeMetrics()
    metrics.watch(cast("Reconciler", SimpleNamespace(generations={}, revision=0, residency=Residency())))
    metrics.watch_certificate(cast("PublicTls", SimpleNamespace(plane="api", certificate=None)))
    metrics.watch_cluster(cluster())
    rows = (row.split() for row in metrics.render().decode().splitlines() if row.startswith("# TYPE"))
    return {row[2]: row[3] for row in rows} | dict.fromkeys(DEVICES, "gauge")


def rules() -> list[dict[str, Any]]:
    document = YAML(typ="safe").load((FILES / "alerts.prometheus.yml").read_text())
    assert set(document) == {"groups"}
    assert all(set(group) == {"name", "rules"} for group in document["groups"])
    return [rule for group in document["groups"] for rule in group["rules"]]


def promtool(*arguments: str | Path) -> None:
    """Prometheus's own check; what it says when it finds something."""
    program = shutil.which("promtool", path="/usr/local/bin:/usr/bin")
    if program is None:
        pytest.skip("promtool is not here: as root on Debian tests/lab/install_packages.sh fetches it")
    done = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def panels() -> list[dict[str, Any]]:
    document = json.loads((FILES / "cluster.grafana.json").read_text())
    return [panel for panel in document["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    for rule in rules():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize(("where", "expression"), list(expressions()))
def test_what_is_asked_is_told(where: str, expression: str) -> None:
    known = families()
    named = NAME.findall(expression)
    assert named, where
    for name in named:
        base = re.sub(r"_(?:bucket|sum|count)$", "", name)
        is_series = base != name and known.get(base) == "histogram"
        assert is_series or name in known, f"{where}: {name}"
        if known.get(name) == "counter":
            assert re.search(rf"(?:rate|increase)\({name}[{{\[]", expression), f"{where}: {name} only grows"
    assert [expression.count(one) for one in "([{"] == [expression.count(one) for one in ")]}"]


def test_prometheus_takes_the_rules_and_each_fires_for_its_trouble_and_for_nothing_else() -> None:
    promtool("check", "rules", FILES / "alerts.prometheus.yml")
    scenarios = ROOT / "tests/fixtures/alerts.test.yml"
    promtool("test", "rules", scenarios)
    well, ill = YAML(typ="safe").load(scenarios.read_text())["tests"]
    for scenario, fires in ((well, False), (ill, True)):
        asked = {one["alertname"]: bool(one.get("exp_alerts")) for one in scenario["alert_rule_test"]}
        assert asked == {rule["alert"]: fires for rule in rules()}


def test_prometheus_reads_what_the_panels_ask(tmp_path: Path) -> None:
    asked = [target["expr"].replace("$__rate_interval", "5m") for panel in panels() for target in panel["targets"]]
    recorded = [{"record": f"panel:{number}", "expr": expression} for number, expression in enumerate(asked)]
    (tmp_path / "panels.yml").write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", tmp_path / "panels.yml")


def test_dispatch_placement_and_directory_are_told_by_the_names_of_sbproxy() -> None:
    kinds = families()
    assert {name: kinds.get(name) for name in OF_THE_CLUSTER} == OF_THE_CLUSTER


def test_each_rule_says_what_is_wrong_and_what_to_do() -> None:
    listed = rules()
    assert len({rule["alert"] for rule in listed}) == len(listed)
    for rule in listed:
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("critical", "warning")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"[0-9]+[smhd]", rule.get("for", "1m"))


def test_panels_do_not_overlap_and_have_ids_of_their_own() -> None:
    document = json.loads((FILES / "cluster.grafana.json").read_text())
    cells = [
        (x, y)
        for panel in document["panels"]
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) == 23
    assert len({panel["id"] for panel in document["panels"]}) == len(document["panels"])


def test_the_page_of_the_admin_api_names_the_cluster_s_metrics() -> None:
    page = (ROOT / "docs/reference/admin-api.md").read_text()
    assert [one.name for one in cluster().collect() if f"`{one.name}" not in page] == []

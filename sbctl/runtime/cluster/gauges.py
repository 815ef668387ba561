"""What a node knows of its cluster, as metrics: read at a scrape, but for what is counted when directory or plan change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from sbctl.base.clock import Clock
from sbctl.node.placement_document import PlacementDocument
from sbctl.runtime.cluster.directory import DirectoryView

if TYPE_CHECKING:
    from sbctl.runtime.cluster.node import ClusterNode

__all__ = ["ClusterGauges"]

_PREFIX: Final = "sbctl_cluster_"
_SERIES_MAX: Final = 2000
"""Of refusals: names of deployments come and go with bundles."""


class ClusterGauges(Collector):
    """Of one node. A worker alone keeps no directory: it tells of bundle and store."""

    def __init__(self, node: ClusterNode, clock: Clock) -> None:
        self._node = node
        self._clock = clock
        self._excluded: Mapping[str, str] = {}
        self._refused: frozenset[tuple[str, str, str]] = frozenset()
        self._exclusions: Counter[str] = Counter()
        self._rejections: Counter[tuple[str, str]] = Counter()
        node.roster.on_change(lambda: self.seen(node.roster.view))
        node.feed.on_change(lambda: self.placed(node.feed.plan))

    def seen(self, view: DirectoryView) -> None:
        """Counts each node once when a reason begins to hold."""
        now = {name: row.exclusion for name, row in view.rows.items() if row.exclusion and not row.removed}
        self._exclusions.update(reason for name, reason in now.items() if self._excluded.get(name) != reason)
        self._excluded = now

    def placed(self, plan: PlacementDocument | None) -> None:
        """Counts each refusal of a node once when it begins."""
        deployments = {} if plan is None else plan.deployments
        now = frozenset(
            (name, node, one.reason) for name, placed in deployments.items() for node, one in placed.rejections.items()
        )
        for name, _, reason in now - self._refused:
            known = len(self._rejections) < _SERIES_MAX or (name, reason) in self._rejections
            self._rejections[name if known else "__other__", reason] += 1
        self._refused = now

    def collect(self) -> Iterator[Metric]:
        yield from self._store()
        yield from self._counted()
        yield from self._placement()
        health = GaugeMetricFamily(
            _PREFIX + "nodes", "Nodes in the directory, by whether they count.", labels=["state"]
        )
        facts = self._node.facts()
        there = [row for row in facts.rows.values() if not facts.is_out(row)]
        counts = Counter("excluded" if row.exclusion else "counted" for row in there)
        for state in ("counted", "excluded"):
            health.add_metric([state], counts[state])
        yield health

    def _store(self) -> Iterator[Metric]:
        node, store = self._node, self._node.store.status()
        is_connected = store.state == "connected"
        lost_s = 0.0 if is_connected else max(0.0, (self._clock.now() - store.since).total_seconds())
        yield GaugeMetricFamily(
            _PREFIX + "store_connected", "1 while the store can be used.", value=float(is_connected)
        )
        yield GaugeMetricFamily(
            _PREFIX + "store_lost_seconds", "For how long it cannot be used; 0: it can.", value=lost_s
        )
        leads = node.controller is not None and node.controller.is_leading
        yield GaugeMetricFamily(_PREFIX + "lease_held", "1 on the authority that places.", value=float(leads))
        held = node.desired.held
        revision = 0 if held is None else held.payload.revision
        yield GaugeMetricFamily(_PREFIX + "bundle_revision", "Of the bundle that this node holds.", value=revision)

    def _counted(self) -> Iterator[Metric]:
        excluded = CounterMetricFamily(
            "sbproxy_ai_model_directory_exclusions_total",
            "Times a node began to count for nothing, by why.",
            labels=["exclusion_reason"],
        )
        for reason, count in sorted(self._exclusions.items()):
            excluded.add_metric([reason], count)
        rejected = CounterMetricFamily(
            "sbproxy_model_host_placement_rejections_total",
            "Times a node began to be refused a deployment, by why.",
            labels=["deployment", "placement_reason"],
        )
        for (name, reason), count in sorted(self._rejections.items()):
            rejected.add_metric([name, reason], count)
        yield from (excluded, rejected)

    def _placement(self) -> Iterator[Metric]:
        plan = self._node.feed.plan
        unplaced = GaugeMetricFamily(
            _PREFIX + "unplaced_replicas", "Replicas that no node can take.", labels=["deployment"]
        )
        late = GaugeMetricFamily(
            _PREFIX + "rollout_timed_out", "1 while a rollout is over its deadline.", labels=["deployment"]
        )
        for name, one in sorted(({} if plan is None else plan.deployments).items()):
            if not one.desired_replicas:
                # It left the bundle, or was never in it: a node may make up names of engines that it runs.
                continue
            unplaced.add_metric([name], one.unplaced_replicas)
            late.add_metric([name], float(one.rollout.timed_out))
        yield from (unplaced, late)
        braked = plan is not None and bool(plan.brake)
        yield GaugeMetricFamily(
            _PREFIX + "brake", "1 while nothing is moved although nodes are lost.", value=float(braked)
        )

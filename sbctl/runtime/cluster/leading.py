"""What an authority adds to a node: the lease, what operators asked of the cluster, and the work of whoever holds the lease."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

from sbctl.base.clock import Clock
from sbctl.node.cluster_config import ClusterConfig
from sbctl.placement.model import PlacementPolicy
from sbctl.runtime.cluster.actions import ActionsMemory, ClusterActions
from sbctl.runtime.cluster.controller import Controller
from sbctl.runtime.cluster.desired import Desired
from sbctl.runtime.cluster.fences import ClusterFences
from sbctl.runtime.cluster.held_trust import HeldTrust
from sbctl.runtime.cluster.lease import ClusterLease
from sbctl.runtime.cluster.lease_words import SignedLease
from sbctl.runtime.cluster.placement_inputs import Figures
from sbctl.runtime.cluster.plan_feed import PlanFeed
from sbctl.runtime.cluster.roster import Roster
from sbctl.runtime.cluster.store import ClusterStore
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.settings import Settings

__all__ = ["Leading", "leading"]


@dataclass(frozen=True, slots=True)
class Leading:
    """Of one authority, whether it leads or not."""

    lease: ClusterLease
    actions: ClusterActions
    controller: Controller

    def services(self) -> Mapping[str, Callable[[], Coroutine[Any, Any, None]]]:
        """What goes on for as long as the node does."""
        return {
            "lease": self.lease.run,
            "actions": self.actions.run,
            "controller": self.controller.run,
            "assignments": self.controller.follow_losses,
        }


def leading(  # noqa: PLR0917 - the parts of a node
    config: ClusterConfig,
    settings: Settings,
    words: SignedLease,
    roster: Roster,
    desired: Desired,
    feed: PlanFeed,
    trust: HeldTrust,
    fences: ClusterFences,
    store: ClusterStore,
    clock: Clock,
    events: EventSink,
    *,
    boot_epoch: int,
) -> Leading:
    """For a node with the role authority."""
    lease = ClusterLease(
        store,
        words,
        fences,
        holder=config.node_id,
        clock=clock,
        ttl_s=max(1, config.lease_ttl_ms // 1000),
        may_hold=lambda: roster.view.own_ahead_s is None,
    )
    actions = ClusterActions(
        boot_epoch=boot_epoch,
        trust=trust,
        fences=fences,
        store=store,
        clock=clock,
        memory=ActionsMemory(settings.paths.state),
    )
    controller = Controller(
        config.node_id,
        boot_epoch=boot_epoch,
        figures=_figures(config, settings),
        lease=lease,
        roster=roster,
        desired=desired,
        feed=feed,
        actions=actions,
        trust=trust,
        fences=fences,
        store=store,
        clock=clock,
        events=events,
    )
    actions.on_change(controller.poke)
    return Leading(lease, actions, controller)


def _figures(config: ClusterConfig, settings: Settings) -> Figures:
    runtime = settings.config
    policy = PlacementPolicy(
        unreachable_after_ms=config.unreachable_after_ms,
        lost_after_ms=config.lost_after_ms,
        brake_percent=config.brake_percent,
    )
    return Figures(
        policy,
        safety_margin=runtime.safety_margin,
        handoff_timeout_ms=runtime.handoff_timeout_ms,
        drain_timeout_ms=runtime.shutdown_deadline_ms,
        first_wait_ms=2 * config.publish_interval_ms,
        expected=frozenset(config.expected_nodes),
    )

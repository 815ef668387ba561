"""The admin API as one runtime serves it: which accounts, from where, with which certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from aiohttp import web

from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError
from sbctl.node.messages import RuntimeConfig
from sbctl.runtime.admin import AdminPlane
from sbctl.runtime.admin_access import Accounts
from sbctl.runtime.admin_cluster import ClusterView
from sbctl.runtime.admin_desired import AdminDesired
from sbctl.runtime.admin_reach import Reach
from sbctl.runtime.admin_rows import Seen
from sbctl.runtime.audit import Note
from sbctl.runtime.config_file import ConfigFile
from sbctl.runtime.jobs import Jobs
from sbctl.runtime.metrics import RuntimeMetrics
from sbctl.runtime.public_tls import PublicTls
from sbctl.runtime.public_tls_service import HeldCertificate
from sbctl.runtime.reconcile import Reconciler
from sbctl.runtime.routes import is_loopback
from sbctl.runtime.settings import Settings, admin_password

__all__ = ["admin_app", "admin_tls"]


def admin_tls(config: RuntimeConfig, held: HeldCertificate | None) -> PublicTls | None:
    """What the listener shows; None: it speaks plain HTTP. Raises HostError `runtime.admin_needs_tls`: passwords do not leave the machine in
    the clear."""
    if config.admin_tls and held is not None:
        return held.tls
    if not is_loopback(config.admin_bind):
        raise HostError(
            "runtime.admin_needs_tls",
            f"the admin API would listen on {config.admin_bind} without TLS",
            place="proxy.admin.bind",
            next_step="set proxy.admin.tls, or leave it on loopback and reach it through ssh -L",
        )
    return None


def admin_app(
    settings: Settings,
    environ: Mapping[str, str],
    reconciler: Reconciler,
    jobs: Jobs,
    metrics: RuntimeMetrics,
    *,
    config_file: ConfigFile | None,
    note: Note,
    weights: Callable[[], CacheCalls],
    port: int,
    certificate: PublicTls | None,
    cluster: ClusterView | None,
    seen: Seen,
) -> web.Application:
    """For a socket that is bound to `port`. Raises what `admin_password` raises."""
    config = settings.config
    return AdminPlane(
        reconciler,
        jobs,
        metrics,
        desired=AdminDesired(reconciler, authority=config.authority, started_by_hand=settings.started_by_hand),
        config_file=config_file,
        accounts=Accounts(config.admin_username, admin_password(settings.paths, environ), config.admin_operators),
        clock=SYSTEM_CLOCK,
        note=note,
        database=settings.paths.database,
        weights=weights,
        reach=Reach(config.admin_bind, port, config.admin_allow_ips, certificate=certificate),
        requests_per_minute=config.admin_rate_limit_per_minute,
        cluster=cluster,
        seen=seen,
    ).app()

"""Whose deployments run: those of the accepted bundle, or, where the admin API owns them (`admin_managed`), those of its store.

A bundle that comes to an empty store seeds it, in the transaction that accepts the bundle; from then on it brings routes, keys and what the
API may offer. A body of the API replaces the whole map by compare-and-set, in the commit of the change that it asks for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.runtime.deployments_revision import DeploymentsRevision, check_expected
from sbctl.runtime.store import RuntimeStore
from sbctl.trust.bundle import BundleContent, DeploymentMember
from sbctl.trust.verifier import VerifiedBundle

__all__ = ["Change", "DeploymentsOwner", "revision_conflict"]

Change = Callable[[BundleContent, Callable[[], Awaitable[None]]], Awaitable[dict[str, Any]]]
"""Makes a content run; its commit is the second argument."""


class DeploymentsOwner:
    """Used under the reconciler's lock. `owned` is what the store holds, None before it has any and where the API owns nothing."""

    def __init__(self, store: RuntimeStore, *, admin_managed: bool) -> None:
        self.admin_managed = admin_managed
        self.owned: DeploymentsRevision | None = None
        self._store = store

    async def restore(self, content: BundleContent) -> BundleContent:
        """What should run after a start, when `content` was accepted before. An authority that became the API's starts with what ran.

        Raises StateError `runtime.state_damaged`, SbctlError `store_failed`.
        """
        if self.admin_managed:
            await asyncio.to_thread(self._store.seed_admin_deployments, content.deployments)
            await self._read()
        return self.wanted(content)

    async def _read(self) -> None:
        if self.admin_managed:
            self.owned = await asyncio.to_thread(self._store.admin_deployments)

    def wanted(self, content: BundleContent) -> BundleContent:
        """What should run when a bundle says `content`."""
        return content if self.owned is None else _with(content, self.built(content, self.owned.deployments))

    def built(self, content: BundleContent, deployments: Mapping[str, DeploymentMember]) -> dict[str, DeploymentMember]:
        """The API's deployments on the engine builds that sb.yml gives this host: those are an apply's to exchange."""
        offered = content.deployments
        by_engine = {member.engine.engine: member.engine for member in reversed(tuple(offered.values()))}
        found = {}
        for name, member in deployments.items():
            same = offered.get(name)
            engine = same.engine if same is not None else by_engine.get(member.engine.engine, member.engine)
            found[name] = member if engine == member.engine else member.model_copy(update={"engine": engine})
        return found

    async def accept(self, verified: VerifiedBundle, envelope: str) -> None:
        """Raises SbctlError `store_failed`: nothing changed."""
        await asyncio.to_thread(self._store.accept, verified, envelope, admin_managed=self.admin_managed)
        await self._read()

    async def replace(
        self,
        content: BundleContent | None,
        deployments: Mapping[str, DeploymentMember],
        expected_revision: int | None,
        keep_stopped: tuple[str, ...],
        change: Change,
    ) -> tuple[DeploymentsRevision, dict[str, Any]]:
        """Raises as `Reconciler.replace_deployments` does. `content` is the accepted bundle's."""
        if not self.admin_managed:
            raise RefusedError("authority_read_only", "the admin API does not own the deployments of this runtime")
        if content is None:
            message = "this runtime was not told yet which origins and keys it serves"
            raise RefusedError("prepare_failed", message, next_step="sbctl apply first; it brings them")
        check_expected(expected_revision, None if self.owned is None else self.owned.revision)
        stored: list[DeploymentsRevision] = []

        async def commit() -> None:
            new = await asyncio.to_thread(
                self._store.replace_admin_deployments, expected_revision, deployments, keep_stopped
            )
            stored.append(new)
            self.owned = new

        try:
            report = await change(_with(content, deployments), commit)
        except SbctlError as error:
            if not stored:
                raise
            raise _not_running(stored[0], error) from error
        return stored[0], report


def _with(content: BundleContent, deployments: Mapping[str, DeploymentMember]) -> BundleContent:
    return content.model_copy(update={"deployments": dict(deployments)})


def _not_running(stored: DeploymentsRevision, cause: SbctlError) -> SbctlError:
    return SbctlError(
        "runtime_commit_failed",
        f"the deployments are stored and did not come to run: {cause.message}",
        next_step="restart the runtime: it starts what is stored",
        detail={
            "durable_state_advanced": True,
            "revision": stored.revision,
            "content_digest": stored.content_digest,
        },
    )


def revision_conflict(expected: int | None, actual: int | None) -> RefusedError:
    """Of a bundle that was made for another revision than the host is at."""
    return RefusedError(
        "bundle.revision_conflict",
        f"the runtime is at revision {actual or 'none'}, the bundle was made for {expected or 'none'}",
        next_step="plan again: somebody applied in between",
        detail={"expected_revision": expected, "actual_revision": actual},
    )

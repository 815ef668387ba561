"""The cluster's store of one simulated host: what was installed, and how it looks from outside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sbctl.base.digests import fingerprint
from sbctl.base.errors import RefusedError
from sbctl.node.snapshot import StoreState
from sbctl.node.store_messages import StoreInstall, StoreRemove
from sbctl.provider import Progress

__all__ = ["SimStore"]


class SimStore:
    """`at_risk`: the others are not there, so it refuses to restart."""

    def __init__(self) -> None:
        self.request: StoreInstall | None = None
        self.state: StoreState | None = None
        self.at_risk = False
        self.installs = 0

    def install(self, request: StoreInstall, _: Progress) -> Mapping[str, Any]:
        if self.at_risk:
            raise RefusedError("store.quorum_at_risk", "another member is not there", retryable=True)
        self.installs += 1
        self.request = request
        digest = fingerprint(request.model_dump(mode="json", exclude={"expects_quorum", "delivery"}))
        version = request.wheel.version if request.wheel is not None else "2.14.0"
        self.state = StoreState(
            content_sha256=digest, unit_sha256="5" * 64, version=version, running=True, up_to_date=True, whole=True
        )
        return {"content_sha256": digest, "unit_sha256": "5" * 64, "version": version}

    def remove(self, _request: StoreRemove, _: Progress) -> Mapping[str, Any]:
        found, self.state, self.request = self.state is not None, None, None
        return {"removed": found}

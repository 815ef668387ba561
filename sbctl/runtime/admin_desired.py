"""GET and PUT of the deployments over the admin API, for every authority: what is shown, what is taken, and how a refusal reads.

403  authority_read_only            somebody else owns them
409  revision_conflict              with both revisions
400  invalid_body, invalid_desired, unknown_catalog_model, unknown_catalog_variant
422  prepare_failed, insufficient_capacity, engine_incompatible             nothing changed
502  prepare_infrastructure_failed, store_failed, the engine's own code     nothing changed
502  runtime_commit_failed          stored, and not running: `durable_state_advanced`
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sbctl.base.errors import HTTP_STATUS, RefusedError, SbctlError
from sbctl.runtime.admin_catalog import KnownCatalog, catalog_document
from sbctl.runtime.admin_deployments import Asked, asked_deployments, shown_deployment
from sbctl.runtime.deployments_revision import check_expected
from sbctl.runtime.provision import Progress, quiet
from sbctl.runtime.reconcile import Reconciler

__all__ = ["AdminDesired", "plan_of", "refusal"]

_OWN: Final = "admin_managed"
_FILE_CODES: Final = frozenset({"runtime.config_invalid", "runtime.restart_needed"})
_UNPROCESSABLE: Final = frozenset({"insufficient_capacity", "engine_incompatible", "prepare_failed"})


class AdminDesired:
    """`started_by_hand` comes before the authority that the file names: the file is the owner then."""

    def __init__(self, reconciler: Reconciler, *, authority: str, started_by_hand: bool = False) -> None:
        self._reconciler = reconciler
        self._authority = authority
        self._by_hand = started_by_hand
        self._known = KnownCatalog()

    @property
    def _is_owner(self) -> bool:
        return self._authority == _OWN and not self._by_hand

    def shown(self) -> dict[str, Any]:
        """The body of GET. What the API owns is in the form of a PUT, so it can be changed and sent back."""
        bundle, owned = self._reconciler.bundle(), self._reconciler.owned()
        document: dict[str, Any] = {
            "schema_version": 1,
            "authority": self._authority,
            "read_only": not self._is_owner,
        }
        if self._is_owner:
            members = {} if owned is None else owned.deployments
            return {
                **document,
                "revision": None if owned is None else owned.revision,
                "content_digest": None if owned is None else owned.content_digest,
                "deployments": {name: shown_deployment(member) for name, member in sorted(members.items())},
            }
        return {
            **document,
            "revision": None if bundle is None else bundle.revision,
            "content_digest": None if bundle is None else bundle.content_digest,
            "deployments": {
                name: generation.member.model_dump(mode="json", exclude={"artifact"})
                for name, generation in sorted(self._reconciler.generations.items())
            },
        }

    def catalog(self) -> dict[str, Any]:
        """The body of GET catalog: what a PUT may name."""
        return catalog_document(self._known.of(self._reconciler.accepted_content()))

    def asked(self, document: Mapping[str, Any]) -> Asked:
        """The body of a PUT, as this host would run it. Raises what the table of this module names above 422."""
        owned, content = self._reconciler.owned(), self._reconciler.accepted_content()
        asked = asked_deployments(
            document,
            stored={} if owned is None else owned.deployments,
            offered={} if content is None else content.deployments,
            catalog=self._known.of(content),
        )
        check_expected(asked.expected_revision, None if owned is None else owned.revision)
        return asked

    async def replace(self, asked: Asked, progress: Progress = quiet) -> dict[str, Any]:
        """The body of an accepted PUT. Raises what the table of this module names; see `refusal`."""
        stored, report = await self._reconciler.replace_deployments(
            asked.deployments, asked.expected_revision, progress
        )
        return {
            "schema_version": 1,
            "revision": stored.revision,
            "content_digest": stored.content_digest,
            "plan": plan_of(report),
        }

    def refuse_foreign(self) -> None:
        """Before a body is read. Raises RefusedError `authority_read_only`."""
        if self._is_owner:
            return
        if self._by_hand:
            sentence = "this runtime was started by hand: its deployments change with the file it was started with"
        elif self._authority == "cluster_authority":
            sentence = "the cluster's bundle owns the deployments of this runtime: they change where that is published"
        else:
            sentence = f"deployments of this runtime are {self._authority}: they change by sbctl apply"
        raise RefusedError("authority_read_only", sentence)


def plan_of(report: Mapping[str, Any]) -> dict[str, Any]:
    """What a change did, by deployment."""
    return {
        "added": report["added"],
        "changed": sorted((*report["changed"], *report["adjusted"])),
        "removed": report["removed"],
        "preserved": report["preserved"],
    }


def refusal(error: SbctlError) -> tuple[int, dict[str, Any]]:
    """Status and body of a PUT or a reload that was not carried out. `reason_code` is the cause's own code where the table has another one."""
    stage = error.detail.get("stage")
    code = error.code
    if code in _UNPROCESSABLE:
        status = 422
    elif stage == "prepare":
        status, code = (502, "prepare_infrastructure_failed") if error.retryable else (422, "prepare_failed")
    elif code in _FILE_CODES or code.startswith(("file.", "json.", "models_lock.")):
        status = 422
    elif stage == "start" or code == "store_failed":
        status = 502
    else:
        status = HTTP_STATUS.status(code)
    told = {name: error.detail[name] for name in _TOLD if name in error.detail}
    reason = {} if code == error.code else {"reason_code": error.code}
    step = {"next_step": error.next_step} if error.next_step else {}
    return status, {"error": error.message, "code": code, **reason, **step, **told}


_TOLD: Final = (
    "deployment", "stage", "expected_revision", "actual_revision", "durable_state_advanced", "revision", "content_digest",
)  # fmt: skip

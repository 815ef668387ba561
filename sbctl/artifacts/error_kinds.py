"""What went wrong with weights, in the few kinds that dashboards count (SBproxy, "Error kinds"): a bounded label for an open set of codes."""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import SbctlError

__all__ = ["ERROR_KINDS", "error_kind"]

_KINDS: Final = {
    "artifact.invalid": "invalid_artifact",
    "artifact.split_incomplete": "invalid_artifact",
    "artifact.source_invalid": "invalid_artifact",
    "artifact.source_unsuitable": "invalid_artifact",
    "artifact.no_source": "invalid_artifact",
    "artifact.name_invalid": "invalid_artifact",
    "artifact.wrong_format": "invalid_artifact",
    "artifact.header_damaged": "invalid_artifact",
    "artifact.transport": "transport",
    "artifact.slow": "transport",
    "artifact.address_refused": "transport",
    "artifact.http_status": "http_status",
    "artifact.size_mismatch": "size_mismatch",
    "artifact.digest_mismatch": "digest_mismatch",
    "artifact.manifest_damaged": "cache_corrupt",
    "artifact.offline_missing": "offline_artifact_missing",
    "artifact_not_ready": "manual_artifact_missing",
    "artifact.unsafe_content": "pickle_refused",
    "artifact.in_use": "removal_blocked",
}
_BY_PREFIX: Final = {"disk": "io", "cache": "io", "artifact": "unexpected_response"}
_OTHER: Final = "job"

ERROR_KINDS: Final = frozenset({*_KINDS.values(), *_BY_PREFIX.values(), _OTHER})


def error_kind(error: SbctlError) -> str:
    """One of ERROR_KINDS, for every error."""
    return _KINDS.get(error.code) or _BY_PREFIX.get(error.code.partition(".")[0], _OTHER)

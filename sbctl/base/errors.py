"""Errors for the reader: a stable code, one sentence, the place, what to do next.

The tree (who must act):

    SbctlError                      1   something was attempted and did not work
    ├── InterruptedBySignal       130   the user or the system stopped us; the state is consistent
    ├── InputError                  3   sb.yml, a catalog, a plan or a state document is invalid
    │   └── ConfigError             3   carries Diagnostics with file:line:column
    ├── StalePlanError              5   the saved plan no longer matches the truth it was made from
    ├── LockedError                 6   somebody else holds the state or a host
    ├── RefusedError                4   a policy, a node or a missing right says no
    ├── UnreachableError            7   a host or a runtime cannot be reached
    ├── DegradedError               8   applied, but a node is degraded
    ├── UsageError                 64   wrong usage of the command line
    ├── HostError                   1   a step on a host failed
    ├── ArtifactError               1   bytes could not be fetched, verified or stored
    ├── EngineError                 1   an engine could not be provisioned, started or stopped
    ├── StateError                  3   the recorded truth is damaged, foreign, older or newer than we can trust
    └── DurabilityUnknownError      1   a write may or may not have reached the disk; read before acting

`EXIT_PRECEDENCE` decides when several results hold; `HTTP_STATUS` maps runtime error codes. Standard library only and Python 3.8: the
bootstrap carries this module to hosts that have nothing newer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

__all__ = [
    "EXIT_PRECEDENCE",
    "HTTP_STATUS",
    "ArtifactError",
    "ConfigError",
    "DegradedError",
    "Diagnostic",
    "DurabilityUnknownError",
    "EngineError",
    "ExitCode",
    "HostError",
    "InputError",
    "InterruptedBySignal",
    "LockedError",
    "RefusedError",
    "SbctlError",
    "SourceSpan",
    "StalePlanError",
    "StateError",
    "UnreachableError",
    "UsageError",
    "error_from_wire",
    "worst_exit",
]


class ExitCode(IntEnum):
    """The one table of exit codes; every command computes its code from its result object."""

    DONE = 0
    FAILED = 1
    CHANGES = 2
    INVALID = 3
    REFUSED = 4
    STALE = 5
    LOCKED = 6
    UNREACHABLE = 7
    DEGRADED = 8
    USAGE = 64
    INTERRUPTED = 130
    TERMINATED = 143


EXIT_PRECEDENCE: tuple[ExitCode, ...] = (
    ExitCode.TERMINATED,
    ExitCode.INTERRUPTED,
    ExitCode.USAGE,
    ExitCode.INVALID,
    ExitCode.STALE,
    ExitCode.LOCKED,
    ExitCode.REFUSED,
    ExitCode.FAILED,
    ExitCode.UNREACHABLE,
    ExitCode.DEGRADED,
    ExitCode.CHANGES,
    ExitCode.DONE,
)


def worst_exit(codes: Iterable[ExitCode]) -> ExitCode:
    """The code to exit with when all of `codes` hold; DONE when there are none."""
    present = set(codes)
    return next((code for code in EXIT_PRECEDENCE if code in present), ExitCode.DONE)


@dataclass(frozen=True)
class SourceSpan:
    """A place in a text file. `line` and `column` count from 1; `length` is in characters, at least 1."""

    path: str
    line: int
    column: int
    length: int = 1
    source_line: str = ""

    def __str__(self) -> str:
        return f"{self.path}:{self.line}:{self.column}"


class SbctlError(Exception):
    """Base of every error that a user may see.

    `code` is stable, dotted lowercase (`state.locked`); `message` one sentence without secrets; `place` says where
    (address, host, file); `next_step` what to do; `retryable` whether the same call may succeed later.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.FAILED

    def __init__(
        self,
        code: str,
        message: str,
        *,
        place: str | None = None,
        next_step: str | None = None,
        retryable: bool = False,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.place = place
        self.next_step = next_step
        self.retryable = retryable
        self.detail: Mapping[str, Any] = dict(detail or {})

    def __str__(self) -> str:
        where = f" ({self.place})" if self.place else ""
        return f"{self.code}: {self.message}{where}"

    def to_wire(self) -> dict[str, Any]:
        """The JSON form used on the node interface, in events and in `--format json`."""
        return {
            "code": self.code,
            "message": self.message,
            "place": self.place,
            "next_step": self.next_step,
            "retryable": self.retryable,
            "detail": dict(self.detail),
            "family": type(self).__name__,
        }


class InterruptedBySignal(SbctlError):  # noqa: N818 - it is an event, not a fault
    """The user or the system stopped us; the state is consistent."""

    exit_code = ExitCode.INTERRUPTED


class InputError(SbctlError):
    """sb.yml, a catalog, a plan or another input is invalid."""

    exit_code = ExitCode.INVALID


class StalePlanError(SbctlError):
    """A saved plan no longer matches the truth it was made from."""

    exit_code = ExitCode.STALE


class LockedError(SbctlError):
    """Somebody else holds the state or a host."""

    exit_code = ExitCode.LOCKED


class RefusedError(SbctlError):
    """A policy, a node or a missing right says no."""

    exit_code = ExitCode.REFUSED


class UnreachableError(SbctlError):
    """A host or a runtime cannot be reached."""

    exit_code = ExitCode.UNREACHABLE


class DegradedError(SbctlError):
    """Applied, but a node is degraded."""

    exit_code = ExitCode.DEGRADED


class UsageError(SbctlError):
    """Wrong usage of the command line."""

    exit_code = ExitCode.USAGE


class HostError(SbctlError):
    """A step on a host failed."""


class ArtifactError(SbctlError):
    """Bytes could not be fetched, verified or stored."""


class EngineError(SbctlError):
    """An engine could not be provisioned, started or stopped."""


class StateError(SbctlError):
    """The recorded truth is damaged, foreign, older or newer than we can trust."""

    exit_code = ExitCode.INVALID


class DurabilityUnknownError(SbctlError):
    """A write may or may not have reached the disk; read before acting."""


@dataclass(frozen=True)
class Diagnostic:
    """One finding in an input file.

    `label` stands under the marked text (`did you mean "replicas"?`), `notes` are further lines, each one sentence.
    """

    code: str
    message: str
    span: SourceSpan | None = None
    label: str = ""
    notes: tuple[str, ...] = ()
    severity: str = "error"

    def to_wire(self) -> dict[str, Any]:
        span = self.span
        return {
            "severity": self.severity,
            "code": self.code,
            "message": self.message,
            "label": self.label,
            "notes": list(self.notes),
            "range": None
            if span is None
            else {"filename": span.path, "line": span.line, "column": span.column, "length": span.length},
        }


class ConfigError(InputError):
    """All findings of one run over an input file, in file order."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        self.diagnostics = tuple(diagnostics)
        first = self.diagnostics[0]
        super().__init__(first.code, first.message, place=str(first.span) if first.span else None)


@dataclass(frozen=True)
class _HttpTable:
    """Status by runtime error code; the reason code itself travels in the body."""

    by_code: Mapping[str, int] = field(default_factory=dict)

    def status(self, code: str) -> int:
        return self.by_code.get(code, 500)


HTTP_STATUS = _HttpTable(
    {
        "invalid_body": 400,
        "invalid_request": 400,
        "invalid_desired": 400,
        "unknown_catalog_model": 400,
        "unknown_catalog_variant": 400,
        "context_length_exceeded": 400,
        "modality_mismatch": 400,
        "bad_host": 403,
        "address_refused": 403,
        "https_required": 403,
        "model_not_allowed": 403,
        "cross_site_refused": 403,
        "csrf_missing": 403,
        "forbidden": 403,
        "authority_read_only": 403,
        "deployment_authority_read_only": 403,
        "unauthorized": 401,
        "enrollment_denied": 401,
        "renewal_denied": 403,
        "unknown_deployment": 404,
        "unknown_origin": 404,
        "cluster_not_configured": 404,
        "deployment_bundle_missing": 404,
        "unknown_node": 404,
        "unknown_model": 404,
        "not_found": 404,
        "method_not_allowed": 405,
        "revision_conflict": 409,
        "stale_revision": 409,
        "deployment_busy": 409,
        "deployment_healthy": 409,
        "draining": 409,
        "drain_timeout": 409,
        "artifact_in_use": 409,
        "no_cache_budget": 409,
        "reload_in_progress": 409,
        "node_is_heard": 409,
        "not_a_worker": 409,
        "nothing_to_retry": 409,
        "cluster.too_many_actions": 409,
        "request_body_too_large": 413,
        "unsupported_media_type": 415,
        "prepare_failed": 422,
        "engine_incompatible": 422,
        "prepare_infrastructure_failed": 502,
        "store_failed": 502,
        "rate_limited": 429,
        "insufficient_capacity": 503,
        "queue_full": 503,
        "queue_timeout": 503,
        "no_ready_replica": 503,
        "no_eligible_replica": 503,
        "desired_state_unknown": 503,
        "engine_unhealthy": 503,
        "crash_loop": 503,
        "stopped": 503,
        "overloaded": 503,
        "events.unreadable": 503,
        "authority_unavailable": 503,
        "cluster_not_seen_here": 503,
        "store.unreachable": 503,
        "store.no_quorum": 503,
        "store.outcome_unknown": 503,
        "store.conflict": 503,
        "runtime_commit_failed": 502,
        "upstream_failed": 502,
    }
)

_FAMILIES: dict[str, type[SbctlError]] = {
    family.__name__: family
    for family in (
        SbctlError,
        InputError,
        StalePlanError,
        LockedError,
        RefusedError,
        UnreachableError,
        DegradedError,
        HostError,
        ArtifactError,
        EngineError,
        StateError,
        DurabilityUnknownError,
    )
}


def error_from_wire(raw: Mapping[str, Any]) -> SbctlError:
    """Rebuild an error sent by `to_wire`; an unknown family becomes HostError, never an exception."""
    family = _FAMILIES.get(str(raw.get("family")), HostError)
    detail = raw.get("detail")
    return family(
        str(raw.get("code") or "host.unknown_error"),
        str(raw.get("message") or "the host reported an error without a message"),
        place=None if raw.get("place") is None else str(raw["place"]),
        next_step=None if raw.get("next_step") is None else str(raw["next_step"]),
        retryable=bool(raw.get("retryable", False)),
        detail=detail if isinstance(detail, Mapping) else {},
    )

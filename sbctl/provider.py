"""The contract between the core and the providers: one package per resource kind.

A provider is `spec.py` (desired), `observe.py` (interpret), `changes.py` (compare, with reasons; pure) and `apply.py` (perform one step).
Its life in a run, in this order:

1. `desired(config)`            pure; every resource of this kind that sb.yml asks for
2. `interpret(snapshot, …)`     pure; one host's snapshot read for one address
3. `diff(…)`                    pure; one Change, with leaves, reasons, blast radius, cost and steps
4. `perform(step, context)`     one step on one host; the executor owns journal, order, parallelism, cancelling and re-reading
5. `record(desired, result)`    pure; what the state keeps once all steps of a change are done and read back

The core sees only this protocol; `providers.registry` lists the implementations and only `cli` imports it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

from sbctl.base.clock import Clock
from sbctl.base.file_slice import ByteSource
from sbctl.base.ids import Address
from sbctl.base.secret import Secret
from sbctl.config.compiled import CompiledConfig
from sbctl.node.lease import LeaseClaim
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, Desired, DiffContext, Observed, Recorded, Step

__all__ = ["NodeSession", "PerformContext", "Progress", "Provider", "Services", "SignedOnce", "in_todays_form"]

Progress = Callable[[int, int | None], None]
"""Called with bytes (or units) done and in total, None when unknown."""


class NodeSession(Protocol):
    """One host. SSH, local process and fake implement the same calls; planning never holds one. Threads: one user at a time."""

    host: str

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        """One call per host, all kinds. Raises UnreachableError; HostError when the answer makes no sense."""
        ...

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """Run one method of `sbctl.node.messages`. Raises the error the host sent, UnreachableError, or HostError `host.outcome_unknown`
        when the channel died after sending: then only a new snapshot tells what happened."""
        ...

    def put(self, sha256: str, source: ByteSource, *, deadline_s: float, progress: Progress) -> None:
        """Leave the bytes of `source` on the host as `<staging>/blobs/<sha256>`: resumed when cut, verified there, no-op when present."""
        ...

    def take_lease(self, claim: LeaseClaim, *, wait_s: float, deadline_s: float, cancelled: Callable[[], bool]) -> None:
        """Hold the host's lease until the session is closed; a lease that is held is kept, one that was lost is taken anew.

        Another holder is waited for `wait_s`, as long as `cancelled` says no. Raises LockedError `host.leased`, UnreachableError, HostError.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class SignedOnce:
    """A signed document with its number."""

    revision: int
    envelope: str


class Services(Protocol):
    """What a step may need from the operator's machine."""

    clock: Clock

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        """The runtime's wheels for one kind of host, filename → verified file, `uv` among them; built or fetched once, then cached."""
        ...

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        """A pinned wheel from the package index, verified, in the operator's cache."""
        ...

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        """A release of an engine, or its source, by digest."""
        ...

    def python_archive(self, path: str, sha256: str) -> ByteSource:
        """The operator's standalone Python, its digest compared now: at `path`, or in a pack. Raises InputError."""
        ...

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, ByteSource]:
        """The files of an artifact by digest, verified, in the operator's cache or in a pack (`delivery: push`)."""
        ...

    def sign(self, payload_type: str, payload: bytes) -> str:
        """A DSSE envelope by the operator's key, as JSON text. Raises RefusedError when the key is not in the signer set."""
        ...

    def next_revision(self, scope: str) -> int:
        """Allocate the next bundle revision of a scope, durably, under the state lock."""
        ...

    def signed_once(self, key: str, *, above: int, sign: Callable[[], SignedOnce]) -> SignedOnce:
        """What `sign` made for this key earlier in this run, when its revision is above `above`; else what it makes now. So several hosts that
        take one document get the same, under one number."""
        ...

    def issue_identity(
        self, request: str, grant: Mapping[str, Any], *, issuer: str, validity_days: int, least_epoch: int
    ) -> Mapping[str, str]:
        """Certificate and signed identity document for a certificate request (PEM), above every epoch that was seen. The authority's keys stay
        on this machine. Raises RefusedError `authority.*`, `identity.revoked`, `certificate.*`."""
        ...

    def identity_trust(self, ca: Sequence[str]) -> Mapping[str, str]:
        """What stands beside every certificate: `ca` (PEM, of these fingerprints), `authority_key`, `revocations` (signed)."""
        ...

    def delegate_enrollment(
        self, request: str, verifying_key: str, *, node_id: str, issuer: str, validity_days: int
    ) -> Mapping[str, str]:
        """The authority's word for the keys of an enrollment server: `certificate` of its CA and `delegation`. Raises RefusedError
        `authority.*`, `identity.revoked`, `certificate.*`."""
        ...

    def own_identity(self, host: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
        """Certificate and CA of a host by the user's own PKI, PEM: those of the plan. Raises RefusedError `identity.files_changed`, InputError."""
        ...

    def secret(self, reference: str) -> Secret:
        """Resolve `env: file: exec: secret:`. Raises InputError naming the reference, never the value."""
        ...


@dataclass(frozen=True, slots=True)
class PerformContext:
    """What one step may use. `progress` is the live view; `cancelled` is asked between pieces of long work."""

    node: NodeSession
    services: Services
    change: Change
    progress: Progress
    cancelled: Callable[[], bool]


class Provider(Protocol):
    """One resource kind."""

    kind: ClassVar[str]
    record_version: ClassVar[int]

    def desired(self, config: CompiledConfig) -> Iterable[Desired]:
        """Every resource of this kind, in any order; addresses unique. Raises ConfigError for what only this kind can judge."""
        ...

    def interpret(self, snapshot: NodeSnapshot | None, address: Address, recorded: Recorded | None) -> Observed:
        """None is an unreachable host."""
        ...

    def diff(
        self, desired: Desired | None, recorded: Recorded | None, observed: Observed, context: DiffContext
    ) -> Change:
        """At least one of desired, recorded is given. Desired None: delete."""
        ...

    def perform(self, step: Step, context: PerformContext) -> Mapping[str, Any]:
        """Carry out one step; the result goes to `record`. Raises SbctlError."""
        ...

    def record(self, desired: Desired, results: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
        """`results` by step key."""
        ...

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """A record of an older `record_version` in today's form. Raises StateError for a newer one."""
        ...


def in_todays_form(recorded: Mapping[Address, Recorded], providers: Mapping[str, Provider]) -> dict[Address, Recorded]:
    """What the state keeps, each record as its kind keeps it today. Raises as `Provider.upgrade`."""
    return {address: _upgraded(one, providers[address.kind]) for address, one in recorded.items()}


def _upgraded(one: Recorded, provider: Provider) -> Recorded:
    if one.record_version == provider.record_version:
        return one
    return replace(one, record=provider.upgrade(one.record, one.record_version), record_version=provider.record_version)

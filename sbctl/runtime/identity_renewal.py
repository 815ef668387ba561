"""Renewing the identity of a host that enrolled, by itself, before the half of its life.

    due          between 0.40 and 0.50 of the life, the same moment every time for one certificate, so that hosts spread out
    ask          a new key, the present identity by mutual TLS ► the next epoch ► verified and fenced like one that an apply brings
    failed       a minute, doubled each time up to an hour, with jitter; the first failure is an event, and the status says why until it ends

What it remembers is in `renewal_state`. Where it asks is in `<etc>/enrollment-server.json`, which came with the identity; a host without that
file gets its identity by an apply.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal

from sbctl.base import fs
from sbctl.base.clock import Clock, rfc3339
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.node.paths import NodePaths
from sbctl.node.records import EventKind
from sbctl.runtime.event_log import record_event
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.identity_switch import take_identity
from sbctl.runtime.renewal_state import RenewalState, read_state, write_state
from sbctl.trust.certificates import CertificateFacts, certificate_facts, read_chain
from sbctl.trust.enrollment_client import Server, request_renewal
from sbctl.trust.enrollment_messages import EnrollmentAnswer
from sbctl.trust.enrollment_source import SOURCE_FILE, EnrollmentSource
from sbctl.trust.node_identity import NodeIdentityFiles

__all__ = [
    "Renewed",
    "backoff_s",
    "due_at",
    "install_source",
    "renew",
    "source_of",
]

_SOURCE_MAX_BYTES: Final = 16 * 1024
_EARLIEST: Final = 0.40
_SPREAD: Final = 0.10
_FIRST_S: Final = 60.0
_MOST_S: Final = 3600.0

Outcome = Literal["renewed", "not due", "waiting"]


@dataclass(frozen=True, slots=True)
class Renewed:
    """`until` is of the certificate that is in use now, `attempt` when the next try is."""

    outcome: Outcome
    node_id: str
    until: datetime
    attempt: datetime


def due_at(facts: CertificateFacts) -> datetime:
    """When the holder of this certificate begins to renew: before its half, and not when all others do."""
    share = int(facts.fingerprint[:8], 16) / 0xFFFFFFFF
    return facts.not_before + (facts.not_after - facts.not_before) * (_EARLIEST + _SPREAD * share)


def backoff_s(failures: int, jitter: float) -> float:
    """Until the next try after so many failures in a row; `jitter` 0 to 1 takes up to half of it away."""
    return min(_FIRST_S * 2.0 ** min(failures - 1, 10), _MOST_S) * (1 - jitter / 2)


def source_of(paths: NodePaths) -> EnrollmentSource | None:
    """Where this host renews; None when it did not enroll. Raises InputError `identity.source_invalid`."""
    try:
        data = fs.read_bounded(paths.etc / SOURCE_FILE, max_bytes=_SOURCE_MAX_BYTES)
    except InputError as error:
        if error.code == "file.missing":
            return None
        raise
    return EnrollmentSource.parse(data)


def renew(paths: NodePaths, clock: Clock, *, at_once: bool = False) -> Renewed:
    """Renew when it is due and no failure is being waited out; `at_once` asks in any case.

    Raises InputError `identity.not_enrolled` and what the failure is, after it was written down.
    """
    source, files, now = source_of(paths), IdentityFiles(paths), clock.now()
    if source is None or not files.exists():
        raise InputError(
            "identity.not_enrolled",
            "this host did not enroll, so there is nothing that renews by itself",
            place=str(paths.etc / SOURCE_FILE),
            next_step="sbctl apply renews hosts of an sb.yml; other hosts: sbctl cluster enroll, then sbctl-runtime identity DIR",
        )
    facts = certificate_facts(files.read().certificate)
    before = read_state(paths)
    state = before if before.fingerprint == facts.fingerprint else RenewalState(fingerprint=facts.fingerprint)
    waits_until = datetime.fromisoformat(state.next_attempt) if state.next_attempt is not None else due_at(facts)
    if now < waits_until and not at_once:
        return Renewed("waiting" if state.failures else "not due", facts.subject, facts.not_after, waits_until)
    try:
        renewed = _ask(paths, files, source, facts, clock)
    except SbctlError as error:
        _failed(paths, clock, state, error)
        raise
    write_state(paths, RenewalState(fingerprint=renewed.fingerprint))
    said = f"renewed: epoch {renewed.claims.identity_epoch}, until {rfc3339(renewed.not_after)}, {renewed.fingerprint}"
    record_event(paths.database, clock, EventKind.CERTIFICATE_INSTALLED, said)
    return Renewed("renewed", renewed.subject, renewed.not_after, due_at(renewed))


def _ask(
    paths: NodePaths, files: IdentityFiles, source: EnrollmentSource, facts: CertificateFacts, clock: Clock
) -> CertificateFacts:
    now = clock.now()
    if now > facts.not_after:
        raise RefusedError(
            "identity.expired",
            f"the identity of {facts.subject} expired at {rfc3339(facts.not_after)}, so it proves nothing to the authority",
            next_step="if this clock is right, enroll again with a token made for this host",
        )
    present = files.read()
    waiting = files.ask(facts.subject)
    answer = asyncio.run(
        request_renewal(
            Server(source.host, source.port, source.server_name),
            waiting.request,
            certificate=files.link / "node.pem",
            key=files.link / "node-key.pem",
            ca=present.ca,
            now=clock.now,
        )
    )
    _refuse_another(facts, present, answer)
    content = NodeIdentityFiles(
        certificate=answer.certificate,
        ca=answer.ca,
        identity=answer.identity,
        authority_key=answer.authority_key,
        revocations=answer.revocations,
        delegation=answer.delegation,
    )
    return take_identity(paths, content, waiting.key, clock.now()).identity.certificate


def _refuse_another(facts: CertificateFacts, present: NodeIdentityFiles, answer: EnrollmentAnswer) -> None:
    """A renewal changes dates, keys and epoch, and never who the host is or all that it trusts. Raises RefusedError `identity.not_a_renewal`."""
    given = certificate_facts(answer.certificate).claims.model_dump(exclude={"identity_epoch"})
    wrong = [
        name for name, value in facts.claims.model_dump(exclude={"identity_epoch"}).items() if given[name] != value
    ]
    known = {one.fingerprint for one in read_chain(present.ca)}
    if not known & {one.fingerprint for one in read_chain(answer.ca)}:
        wrong.append("ca")
    if not set((present.authority_key or "").split()) & set(answer.authority_key.split()):
        wrong.append("authority_verifying_key")
    if wrong:
        raise RefusedError(
            "identity.not_a_renewal",
            f"the authority answered with another {wrong[0]} than this host has, so nothing was installed",
            next_step="find out what the authority did; on purpose it is: a new token, then sbctl cluster enroll",
            detail={"alarm": True},
        )


def _failed(paths: NodePaths, clock: Clock, state: RenewalState, error: SbctlError) -> None:
    now, failures = clock.now(), state.failures + 1
    wait_s = backoff_s(failures, secrets.randbelow(1000) / 1000)
    problem = f"{error.code}: {error.message}"[:512]
    if problem != state.problem:
        record_event(paths.database, clock, EventKind.CERTIFICATE_RENEWAL_FAILED, problem)
    write_state(
        paths,
        RenewalState(
            fingerprint=state.fingerprint,
            failures=failures,
            failing_since=state.failing_since or rfc3339(now),
            next_attempt=rfc3339(now + timedelta(seconds=wait_s)),
            problem=problem,
        ),
    )


def install_source(paths: NodePaths, directory: Path) -> EnrollmentSource | None:
    """Take over where the enrolled `directory` renews; None when it does not say. Raises InputError `identity.source_invalid`."""
    try:
        data = fs.read_bounded(directory / SOURCE_FILE, max_bytes=_SOURCE_MAX_BYTES)
    except InputError as error:
        if error.code == "file.missing":
            return None
        raise
    source = EnrollmentSource.parse(data)
    fs.write_atomic(paths.etc / SOURCE_FILE, source.to_json(), mode=0o644)
    return source

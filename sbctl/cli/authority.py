"""The authority as the steps of a run use it: opened once a run, asked from the threads of many hosts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from sbctl.base.clock import Clock
from sbctl.base.errors import RefusedError, SbctlError, UsageError
from sbctl.base.ids import Address, is_id
from sbctl.cli.enrolling import grant_of
from sbctl.cli.own_pki import own_files
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.trust.authority import Authority
from sbctl.trust.authority_directory import NodeRecord
from sbctl.trust.authority_facts import AuthorityFacts
from sbctl.trust.certificates import certificate_facts, renewal_time
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.identity import Grant, is_server_name
from sbctl.trust.own_pki import OwnIdentity
from sbctl.trust.revocation import RevocationList
from sbctl.views.cluster_views import ROLLOVER_STEPS, IdentityRow

__all__ = [
    "IdentitySigner",
    "authority_directory",
    "directory_of",
    "enrollment_of",
    "identity_notes",
    "identity_rows",
    "let_in_again",
    "new_grant",
    "recorded_identity",
    "revoke_newest",
    "settle_rollover",
]


_DEFAULT_DIRECTORY: Final = "cluster"
_RENEWAL_WARNING: Final = timedelta(days=7)
_CA_WARNING: Final = timedelta(days=180)


def authority_directory(workspace: Workspace) -> Path:
    """Where `fleet.identity` says the authority is. Raises RefusedError `identity.none` when sb.yml names none."""
    identity = workspace.loaded.identity
    if identity is None:
        raise RefusedError(
            "identity.none",
            "sb.yml names no authority that could issue an identity",
            place=str(workspace.file),
            next_step="make one with sbctl cluster init, and name it: fleet: {identity: {directory: ./cluster}}",
        )
    _refuse_own_pki(workspace)
    return Path(identity.directory)


def directory_of(workspace: Workspace, named: Path | None) -> Path:
    """The directory a command works on: the named one, else that of sb.yml, else ./cluster beside it."""
    if named is not None:
        return named.absolute()
    if workspace.file.exists():
        identity = workspace.loaded.identity
        if identity is not None:
            _refuse_own_pki(workspace)
            return Path(identity.directory)
    return workspace.directory / _DEFAULT_DIRECTORY


def _refuse_own_pki(workspace: Workspace) -> None:
    identity = workspace.loaded.identity
    if identity is not None and identity.own is not None:
        raise RefusedError(
            "identity.own_pki",
            "sb.yml names a PKI of your own (identity.mode: manual), so there is no authority of sbctl's to ask",
            place=str(workspace.file),
            next_step="issue, renew and revoke with your PKI; sbctl plan and sbctl status show what hosts have",
        )


def enrollment_of(workspace: Workspace, named: Path | None) -> Enrollment:
    """The join tokens of the authority that a command works on."""
    return Enrollment.open(directory_of(workspace, named))


def new_grant(cluster_id: str, server_name: str, node_id: str, roles: Sequence[str], labels: Sequence[str]) -> Grant:
    """The authority's own grant, from the words of a command line. Raises UsageError naming the word."""
    if not is_server_name(server_name):
        raise UsageError("usage", f'--server-name "{server_name}" is no domain name', next_step="as in sbproxy-mesh")
    for option, value in (("--cluster-id", cluster_id), ("--node-id", node_id)):
        if not is_id(value):
            raise UsageError("usage", f'{option} "{value}" is no name', next_step="use 1 to 128 of A-Z a-z 0-9 . _ -")
    return grant_of(node_id, roles, labels)


def identity_rows(workspace: Workspace, facts: AuthorityFacts) -> list[IdentityRow]:
    """Every node of the ledger, and hosts of sb.yml that have no identity yet."""
    identity = workspace.loaded.identity if workspace.file.exists() else None
    hosts = workspace.loaded.hosts if identity is not None else {}
    names = sorted({*facts.nodes, *hosts})
    now = workspace.clock.now()
    before = identity.renew_before_days if identity is not None else None
    return [_row(facts.nodes.get(name) or NodeRecord(node_id=name), now, before) for name in names]


def identity_notes(config: CompiledConfig, now: datetime) -> tuple[str, ...]:
    """What a plan says of identities beside its changes: a rollover under way, renewals that come soon, who is shut out, a CA near its end."""
    facts, identity = config.authority, config.identity
    if config.own_identities is not None and identity is not None:
        return _own_notes(config.own_identities, identity.renew_before_days, now)
    if facts is None or identity is None:
        return ()
    notes = [f"CA rollover, step {ROLLOVER_STEPS[facts.rollover]}"] if facts.rollover is not None else []
    if facts.rollover is None and now > facts.ca_not_after - _CA_WARNING:
        notes.append(f"the cluster's CA expires on {facts.ca_not_after.date()}: sbctl cluster rotate --ca")
    soon: list[str] = []
    for name in sorted(config.hosts):
        row = _row(facts.nodes.get(name) or NodeRecord(node_id=name), now, identity.renew_before_days)
        if row.state == "revoked":
            notes.append(f"{name} has no identity, since it was revoked; sbctl cluster rotate {name} lets it in again")
        elif row.state == "valid" and row.renews is not None and now > row.renews - _RENEWAL_WARNING:
            soon.append(name)
    if soon:
        listed = ", ".join(soon[:5]) + (" …" if len(soon) > 5 else "")
        notes.append(f"an apply within {_RENEWAL_WARNING.days} days from now renews the identity of {listed}")
    return tuple(notes)


def _own_notes(found: Mapping[str, OwnIdentity], before_days: int | None, now: datetime) -> tuple[str, ...]:
    """Certificates of an own PKI that are past the moment when it should have issued others."""
    return tuple(
        f"the certificate of {host} ends on {one.not_after.date()}: have your PKI issue the next, identity_epoch {one.identity_epoch + 1}"
        for host, one in sorted(found.items())
        if now >= renewal_time(one.not_before, one.not_after, before_days)
    )


def _row(record: NodeRecord, now: datetime, renew_before_days: int | None) -> IdentityRow:
    if record.certificate is None or record.grant is None:
        state = "rotation asked" if record.rotation else "none"
        return IdentityRow(record.node_id, state, 0, None, None, None, None, ())
    certificate = certificate_facts(record.certificate)
    renews = renewal_time(certificate.not_before, certificate.not_after, renew_before_days)
    if record.is_shut_out:
        state = "revoked"
    elif record.rotation > record.issued_rotation:
        state = "rotation asked"
    else:
        state = "expired" if now > certificate.not_after else "renewal is due" if now >= renews else "valid"
    return IdentityRow(
        node_id=record.node_id,
        state=state,
        identity_epoch=record.identity_epoch,
        not_after=certificate.not_after,
        renews=renews,
        fingerprint=record.fingerprint,
        issuer=record.issuer,
        roles=record.grant.roles,
    )


class IdentitySigner:
    """`issue_identity` and `identity_trust` of `sbctl.provider.Services`."""

    def __init__(self, workspace: Workspace, clock: Clock) -> None:
        self._workspace = workspace
        self._clock = clock

    @cached_property
    def _authority(self) -> Authority:
        return Authority.open(authority_directory(self._workspace))

    def issue_identity(
        self, request: str, grant: Mapping[str, Any], *, issuer: str, validity_days: int, least_epoch: int
    ) -> Mapping[str, str]:
        issued = self._authority.issue(
            request,
            Grant.model_validate_json(json.dumps(dict(grant))),
            now=self._clock.now(),
            issuer=issuer,
            validity=timedelta(days=validity_days),
            least_epoch=least_epoch,
        )
        return {"certificate": issued.certificate, "identity": issued.identity}

    def delegate_enrollment(
        self, request: str, verifying_key: str, *, node_id: str, issuer: str, validity_days: int
    ) -> Mapping[str, str]:
        given = self._authority.delegate(
            request,
            verifying_key,
            node_id=node_id,
            issuer=issuer,
            validity_days=validity_days,
            now=self._clock.now(),
        )
        return {"certificate": given.certificate, "delegation": given.delegation}

    def own_identity(self, host: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
        identity = self._workspace.loaded.identity
        if identity is None or identity.own is None:
            raise RefusedError(
                "identity.files_changed", "sb.yml names no PKI of the user's own any more", next_step="plan again"
            )
        return own_files(identity.own, host, spec)

    def identity_trust(self, ca: Sequence[str]) -> Mapping[str, str]:
        return {
            "ca": self._authority.bundle(ca),
            "authority_key": self._authority.keys(ca).text(),
            "revocations": self._authority.revocations()[0],
        }


def let_in_again(records: Iterable[NodeRecord]) -> Iterator[str]:
    """What to know of nodes that were revoked and get a new identity under the same name."""
    for record in records:
        if record.certificate is not None and 0 < record.identity_epoch <= record.revoked_epoch:
            until = certificate_facts(record.certificate).not_after.date()
            yield (
                f"until {until} the certificate that was taken away opens a cluster's store again, though nobody believes it: where its key was stolen, give the "
                f"host another name than {record.node_id}, or make a new CA (sbctl cluster rotate --ca)"
            )


def settle_rollover(workspace: Workspace, config: CompiledConfig | None) -> None:
    """At the end of an apply: where every host trusts the next CA alone, it becomes the current one. What keeps it from that is told, since the
    apply itself is done; the next one tries again."""
    if config is None or config.authority is None or config.authority.rollover != "remove":
        return
    from sbctl.views.console import note

    workspace.forget()
    try:
        authority = Authority.open(authority_directory(workspace))
        done = authority.finish_rollover(workspace.held_identities(), now=workspace.clock.now())
    except SbctlError as error:
        note(f"the old CA is still in the authority's directory: {error.message}; the next apply tries again")
        return
    if done:
        note("the CA rollover is complete: the old CA's key is destroyed")


def recorded_identity(workspace: Workspace, host: str) -> Mapping[str, Any]:
    """What the state remembers of a host's identity; nothing where there is no state, or it cannot be read now: revoking must not wait."""
    if not workspace.file.exists():
        return {}
    try:
        state = workspace.state
    except SbctlError:
        return {}
    recorded = state.resources.get(Address("certificate", host)) if state is not None else None
    return recorded.record if recorded is not None else {}


def revoke_newest(
    authority: Authority, host: str, recorded: Mapping[str, Any], *, reason: str, now: datetime
) -> RevocationList:
    """Take the host's identities away, the one that the state remembers among them.

    Raises InputError `identity.unknown`; RefusedError `authority.outdated` where this copy of the directory is older than that identity:
    its revocation would leave the newest one good.
    """
    known, newest = authority.node(host).identity_epoch, recorded.get("identity_epoch") or 0
    if known < newest:
        raise RefusedError(
            "authority.outdated",
            f"the state records identity {newest} of {host}, and this copy of the authority knows {known or 'none'}",
            place=str(authority.directory),
            next_step="bring the newest copy of nodes/ and revocations.json here (they are made to be committed), then run it again",
        )
    return authority.revoke(host, reason=reason, now=now)

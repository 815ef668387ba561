"""The enrollment server of a fleet, asked over SSH: tokens are made where they are redeemed, and what it gave comes into the operator's ledger
before it is taken away."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from pydantic import ValidationError

from sbctl.base.errors import HostError, RefusedError, SbctlError, UnreachableError
from sbctl.base.ids import Address
from sbctl.base.truths import Recorded
from sbctl.cli.host_life import host_session
from sbctl.cli.workspace import Workspace
from sbctl.node.messages import Method
from sbctl.trust.authority_directory import NodeRecord
from sbctl.trust.token_store import TokenRow

__all__ = ["FleetServer", "enrolled_record", "fleet_server", "server_line"]

_DEADLINE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class FleetServer:
    """The server on `host`, which an apply has set up."""

    workspace: Workspace
    host: str
    port: int
    lineage: str

    def ask(self, action: str, asked: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """Raises UnreachableError; HostError `enrollment.not_running`; what the server says."""
        params = {"lineage": self.lineage, "action": action, "asked": dict(asked or {})}
        with host_session(self.workspace, self.host) as session:
            return session.call(
                Method.ENROLLMENT_ASK, params, secrets={}, deadline_s=_DEADLINE_S, progress=lambda _done, _total: None
            )

    def create_token(
        self, *, roles: tuple[str, ...], labels: Mapping[str, str], node_id: str | None, ttl_s: int
    ) -> tuple[str, TokenRow]:
        """The token's text, which is told this once, and its row."""
        asked = {"roles": list(roles), "labels": dict(labels), "node_id": node_id, "ttl_s": ttl_s}
        told = self.ask("token_create", asked)
        return str(told["token"]), _row(told["row"], self.host)

    def tokens(self) -> tuple[TokenRow, ...]:
        return tuple(_row(one, self.host) for one in self.ask("token_list")["tokens"])

    def revoke_token(self, token_id: str) -> TokenRow:
        """Raises InputError `enroll.token_unknown`."""
        return _row(self.ask("token_revoke", {"id": token_id})["row"], self.host)

    def nodes(self) -> tuple[NodeRecord, ...]:
        """What each host that enrolled was given last. Raises HostError `enrollment.bad_answer`."""
        try:
            return tuple(NodeRecord.model_validate_json(json.dumps(one)) for one in self.ask("nodes")["nodes"])
        except (ValidationError, KeyError, TypeError):
            raise _bad_answer("its hosts", self.host) from None


def fleet_server(workspace: Workspace) -> FleetServer | None:
    """The server that sb.yml names; None when it names none. Raises RefusedError `enrollment.not_applied` before the apply that sets it up."""
    if not workspace.file.exists() or workspace.loaded.identity is None or workspace.loaded.identity.enroll is None:
        return None
    enroll = workspace.loaded.identity.enroll
    if _recorded(workspace, enroll.host) is None:
        raise RefusedError(
            "enrollment.not_applied",
            f"the enrollment server on {enroll.host} is not set up yet",
            place=str(workspace.file),
            next_step="sbctl apply",
        )
    return FleetServer(workspace, enroll.host, enroll.port, workspace.lineage)


def enrolled_record(workspace: Workspace, node: str) -> NodeRecord | None:
    """What the server gave last to a host that sb.yml does not have; None where it gave nothing, or none is set up yet.

    Raises UnreachableError and HostError with the way that is left when the server is lost.
    """
    if not workspace.file.exists() or node in workspace.loaded.hosts:
        return None
    try:
        server = fleet_server(workspace)
    except RefusedError as error:
        if error.code == "enrollment.not_applied":
            return None
        raise
    if server is None:
        return None
    try:
        return next((record for record in server.nodes() if record.node_id == node), None)
    except (UnreachableError, HostError) as error:
        error.next_step = (
            f"only the server knows the newest identity of {node}: repair it; when {server.host} is lost, "
            f"sbctl cluster revoke {server.host} takes away all that it gave"
        )
        raise


def _recorded(workspace: Workspace, host: str) -> Recorded | None:
    state = workspace.state
    return None if state is None else state.resources.get(Address("enrollment", host))


def server_line(workspace: Workspace) -> tuple[str, Mapping[str, Any] | None]:
    """For a status: one sentence, and what the server told. Never raises for a host that does not answer."""
    try:
        server = fleet_server(workspace)
        if server is None:
            return "", None
        told = server.ask("status")
    except SbctlError as error:
        return f"{error.message}; {error.next_step or 'see sbctl doctor'}", None
    return (
        (
            f"{server.host}, listens on {told['listen']}; {told['open_tokens']} open tokens, {told['enrolled']} hosts enrolled; "
            f"may issue until {str(told['delegation_until'])[:10]}"
        ),
        told,
    )


def _row(told: Mapping[str, Any], host: str) -> TokenRow:
    """Raises HostError `enrollment.bad_answer`."""
    try:
        return TokenRow(
            id=str(told["id"]),
            roles=tuple(str(role) for role in told["roles"]),
            labels={str(key): str(value) for key, value in told["labels"].items()},
            node_id=_text(told["node_id"]),
            created_at=datetime.fromisoformat(told["created_at"]),
            not_after=datetime.fromisoformat(told["not_after"]),
            revoked_at=_moment(told["revoked_at"]),
            bound_request=None,
            consumed_at=_moment(told["consumed_at"]),
            node=_text(told["node"]),
            issued=_text(told["issued"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _bad_answer("a token", host) from None


def _bad_answer(about: str, host: str) -> HostError:
    return HostError(
        "enrollment.bad_answer",
        f"the enrollment server answered nonsense about {about}",
        place=host,
        next_step="sbctl apply gives the host this version of sbctl; look at: journalctl -u sbctl-enrollment",
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _moment(value: Any) -> datetime | None:
    return None if value is None else datetime.fromisoformat(value)

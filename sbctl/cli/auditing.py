"""`audit verify`: each host walks its own chain; what it says is compared with a head that was kept."""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import UsageError
from sbctl.base.ids import is_digest
from sbctl.cli.node_calls import Nodes
from sbctl.node.messages import Method
from sbctl.node.reading_messages import AuditVerify
from sbctl.node.records import AuditAnswer
from sbctl.remote.answers import read_answer
from sbctl.remote.session import HostSession
from sbctl.views.audit_views import AuditRow
from sbctl.views.models_views import PlaceError

__all__ = ["parsed_head", "walked"]

_WALK_S: Final = 300.0
_NUMBER_MAX_DIGITS: Final = 12


def parsed_head(text: str | None) -> tuple[int, str] | None:
    """`NUMBER:DIGEST` taken apart. Raises UsageError."""
    if text is None:
        return None
    number, _, digest = text.partition(":")
    if not (number.isascii() and number.isdigit() and len(number) <= _NUMBER_MAX_DIGITS and is_digest(digest)):
        raise UsageError("usage", "--head is NUMBER:DIGEST, as audit verify prints it")
    return int(number), digest


def walked(nodes: Nodes, expected: tuple[int, str] | None) -> tuple[list[AuditRow], list[PlaceError]]:
    """One answer a host. Raises UsageError where one head is to stand for several hosts."""
    if expected is not None and len(nodes.names) > 1:
        raise UsageError("usage", "--head is of one host: name it with --host")
    seq, digest = expected or (None, None)
    asked = AuditVerify(seq=seq, digest=digest).model_dump(mode="json")

    def work(name: str, session: HostSession) -> AuditAnswer:
        raw = session.call(
            Method.AUDIT_VERIFY, asked, secrets={}, deadline_s=_WALK_S, progress=lambda _done, _total: None
        )
        return read_answer(AuditAnswer, raw, name)

    found, errors = nodes.each(work)
    return [AuditRow(name, answer) for name, answer in found], errors

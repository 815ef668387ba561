"""What status, plan and doctor say of the certificate that callers see."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sbctl.cli.public_certificates import certificate_notes, certificate_plan_notes, certificate_problems
from sbctl.node.snapshot import NodeSnapshot, PublicTlsState, RuntimeState

NOW = datetime(2026, 6, 1, tzinfo=UTC)
GOOD = {
    "installed": "a",
    "used": "a",
    "subject": "ai",
    "not_after": "2026-08-01T00:00:00Z",
    "warn_from": "2026-07-11T00:00:00Z",
}


@pytest.mark.parametrize(
    ("fields", "problem", "note"),
    [
        ({}, None, None),
        ({"warn_from": "2026-05-20T00:00:00Z", "not_after": "2026-06-10T00:00:00Z"}, None, "in 9 days: renew it"),
        ({"not_after": "2026-05-31T00:00:00Z"}, "ended 2026-05-31T00:00:00Z: renew it", None),
        ({"not_after": "2026-05-31T00:00:00Z", "followed": True}, "certbot renew", None),
        (
            {"used": None, "not_after": None, "problem": "there is no such file"},
            "https is not served: there is no",
            None,
        ),
        ({"problem": "the key is another"}, "not the newest: the key is another", None),
        ({"not_after": "nonsense", "warn_from": "nonsense"}, None, None),
    ],
)
def test_problems_and_notes(fields: dict[str, Any], problem: str | None, note: str | None) -> None:
    tls = PublicTlsState(**{**GOOD, **fields})
    for said, expected in ((certificate_problems(tls, NOW), problem), (certificate_notes(tls, NOW), note)):
        found = list(said)
        assert (expected in found[0]) if expected is not None else found == []


def test_a_plan_tells_of_files_on_hosts_alone() -> None:
    ended = {**GOOD, "not_after": "2026-05-31T00:00:00Z"}
    snapshots = {
        name: NodeSnapshot(
            bootstrapped=True, runtime=RuntimeState(running=True, tls=PublicTlsState(**ended, followed=followed))
        )
        for name, followed in (("sent", False), ("kept", True))
    }
    assert [said.partition(":")[0] for said in certificate_plan_notes({**snapshots, "gone": None}, NOW)] == ["kept"]
    assert not list(certificate_problems(None, NOW))

"""Abuse of renewals: whoever shows an identity that is not the newest, not his, or taken away gets nothing (docs/threats.md, section D)."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.paths import NodePaths
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.identity_renewal import backoff_s, due_at, install_source, renew
from sbctl.runtime.nodeops.identity_switch import take_identity
from sbctl.runtime.renewal_state import read_state, renewal_problem
from sbctl.trust.certificate_making import create_request, generate_private_key
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_client import Server, request_renewal
from sbctl.trust.enrollment_messages import EnrollmentAnswer
from sbctl.trust.enrollment_source import SOURCE_FILE
from sbctl.trust.identity import Grant
from sbctl.trust.node_identity import NodeIdentityFiles, verify_node_identity
from tests.simulators.enrollment_world import SERVER_NAME, ask, authority_in, now, serving, token_of
from tests.simulators.fleet import ManualClock


@pytest.fixture
def enrollment(tmp_path: Path) -> Enrollment:
    return authority_in(tmp_path / "cluster")


def enrolled(enrollment: Enrollment, node_id: str = "gpu-a") -> tuple[EnrollmentAnswer, Secret]:
    key = generate_private_key()
    asked = ask(token_of(enrollment), node_id=node_id, request=create_request(key, node_id))
    return enrollment.enroll(asked, source="198.51.100.7", now=now()), key


def again(enrollment: Enrollment, shown: str, request: str | None = None, **at: float) -> EnrollmentAnswer:
    wanted = request or create_request(generate_private_key(), "gpu-a")
    return enrollment.renew(shown, wanted, source="198.51.100.7", now=now() + timedelta(**at))


def files_of(answer: EnrollmentAnswer) -> NodeIdentityFiles:
    return NodeIdentityFiles(
        answer.certificate, answer.ca, answer.identity, answer.authority_key, answer.revocations, answer.delegation
    )


def test_the_newest_identity_gets_the_next_epoch_for_a_day(enrollment: Enrollment) -> None:
    first, _ = enrolled(enrollment)
    key = generate_private_key()
    second = again(enrollment, first.certificate, create_request(key, "anything"))
    identity = verify_node_identity(files_of(second), key=key, now=now())
    assert (identity.claims.identity_epoch, identity.claims.labels) == (2, {"zone": "a"})
    assert identity.certificate.not_after - now() < timedelta(days=1, minutes=1)


def test_a_lost_answer_is_given_again_to_the_same_key_and_to_no_other(enrollment: Enrollment) -> None:
    first, _ = enrolled(enrollment)
    request = create_request(generate_private_key(), "gpu-a")
    second = again(enrollment, first.certificate, request)
    assert again(enrollment, first.certificate, request).certificate == second.certificate
    with pytest.raises(RefusedError) as caught:
        again(enrollment, first.certificate)
    assert caught.value.detail["reason"] == "superseded"


def _revoked(enrollment: Enrollment, _first: EnrollmentAnswer) -> dict[str, Any]:
    enrollment.authority.revoke("gpu-a", reason="stolen", now=now())
    return {}


def _rotated(enrollment: Enrollment, _first: EnrollmentAnswer) -> dict[str, Any]:
    """Let in again on purpose: what was revoked stays so."""
    enrollment.authority.revoke("gpu-a", reason="stolen", now=now())
    enrollment.authority.rotate(["gpu-a"])
    return {}


def _enrolled_again(enrollment: Enrollment, _first: EnrollmentAnswer) -> dict[str, Any]:
    enrollment.enroll(ask(token_of(enrollment, node_id="gpu-a")), source="", now=now())
    return {}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_revoked, "node_revoked"),
        (_rotated, "node_revoked"),
        (_enrolled_again, "superseded"),
        (lambda *_: {"days": 2}, "expired"),
    ],
    ids=["revoked", "revoked and let in again", "older epoch", "expired"],
)
def test_D16_D11_an_identity_that_does_not_count_renews_nothing_and_says_enroll_again(
    enrollment: Enrollment, make: Callable[..., dict[str, Any]], reason: str
) -> None:
    first, _ = enrolled(enrollment)
    at = make(enrollment, first)
    epoch = enrollment.authority.node("gpu-a").identity_epoch
    with pytest.raises(RefusedError) as caught:
        again(enrollment, first.certificate, **at)
    assert (caught.value.code, caught.value.detail["reason"]) == ("renewal_denied", reason)
    assert "enroll again" in caught.value.message or reason == "superseded"
    assert enrollment.authority.node("gpu-a").identity_epoch == epoch
    assert reason in (enrollment.authority.directory / "enrollment-audit.jsonl").read_text()


def test_D16_a_host_that_an_apply_gave_its_identity_or_nobody_renews_nothing(
    enrollment: Enrollment, tmp_path: Path
) -> None:
    stranger = authority_in(tmp_path / "other", cluster_id="prod")
    theirs, _ = enrolled(stranger)
    with pytest.raises(RefusedError) as caught:
        again(enrollment, theirs.certificate)
    assert caught.value.detail["reason"] == "not_enrolled"


class Node:
    """A host that enrolled, with real files below a prefix."""

    def __init__(self, directory: Path, answer: EnrollmentAnswer, key: Secret, port: int) -> None:
        self.paths = NodePaths(*(directory / name for name in ("etc", "state", "cache", "opt")))
        for path in (self.paths.etc, self.paths.state):
            path.mkdir(parents=True)
        take_identity(self.paths, files_of(answer), key, now())
        (directory / SOURCE_FILE).write_bytes(Server("127.0.0.1", port, SERVER_NAME).source().to_json())
        install_source(self.paths, directory)
        self.files = IdentityFiles(self.paths)
        self.clock = ManualClock(now())

    def epoch(self) -> int:
        return self.files.verified(now()).claims.identity_epoch

    async def renew(self, *, at_once: bool = True) -> str:
        return (await asyncio.to_thread(renew, self.paths, self.clock, at_once=at_once)).outcome


async def test_a_host_renews_by_itself_before_the_half_and_tells_when_it_cannot(
    enrollment: Enrollment, tmp_path: Path
) -> None:
    answer, key = await asyncio.to_thread(enrolled, enrollment)
    async with serving(enrollment) as port:
        node = Node(tmp_path / "node", answer, key, port)
        facts = certificate_facts(answer.certificate)
        life = facts.not_after - facts.not_before
        assert facts.not_before + life * 0.4 <= due_at(facts) <= facts.not_before + life * 0.5
        assert await node.renew(at_once=False) == "not due"
        assert (await node.renew(), node.epoch()) == ("renewed", 2)
        assert not (node.files.store / "request").exists()
        await asyncio.to_thread(enrollment.authority.revoke, "gpu-a", reason="stolen", now=now())
        for _ in range(2):
            with pytest.raises(RefusedError) as caught:
                await node.renew()
            assert caught.value.code == "enroll.renewal_refused"
    used = certificate_facts((node.files.link / "node.pem").read_text()).fingerprint
    assert "was revoked" in (renewal_problem(node.paths, used) or "")
    assert read_state(node.paths).failures == 2
    assert await node.renew(at_once=False) == "waiting"
    with pytest.raises(SbctlError) as gone:
        await node.renew()
    assert gone.value.code == "enroll.unreachable"
    assert node.epoch() == 2


def test_failures_are_waited_out_longer_and_longer_up_to_an_hour() -> None:
    assert [backoff_s(count, 0) for count in (1, 2, 3, 7, 40)] == [60, 120, 240, 3600, 3600]
    assert backoff_s(40, 1) == 1800


async def test_D7_a_host_shows_its_identity_to_no_impostor_and_takes_nothing_that_is_not_a_renewal(
    enrollment: Enrollment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, key = await asyncio.to_thread(enrolled, enrollment)
    stranger = await asyncio.to_thread(authority_in, tmp_path / "other")
    async with serving(stranger) as port:
        node = Node(tmp_path / "node", answer, key, port)
        with pytest.raises(SbctlError) as caught:
            await node.renew()
        assert caught.value.code == "enroll.untrusted_server"
    async with serving(enrollment) as port:
        node = Node(tmp_path / "second", answer, key, port)
        issue = enrollment.authority.issue

        def widened(request: str, grant: Grant, **more: Any) -> Any:
            return issue(request, grant.model_copy(update={"roles": ("gateway", "worker")}), **more)

        monkeypatch.setattr(enrollment.authority, "issue", widened)
        with pytest.raises(SbctlError) as caught:
            await node.renew()
        assert caught.value.code == "identity.not_a_renewal"
        assert caught.value.detail["alarm"]
        assert node.epoch() == 1


async def test_D16_without_a_certificate_there_is_no_renewal(enrollment: Enrollment, tmp_path: Path) -> None:
    answer, key = await asyncio.to_thread(enrolled, enrollment)
    certificate, private = tmp_path / "node.pem", tmp_path / "node-key.pem"
    certificate.write_text(answer.certificate)
    private.write_bytes(key.reveal())
    async with serving(enrollment) as port:
        server = Server("127.0.0.1", port, SERVER_NAME, connect_s=60, answer_s=60)
        asked = {"certificate": certificate, "key": private, "ca": answer.ca, "now": now}
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(ssl.SSLContext, "load_cert_chain", lambda *_: None)
            with pytest.raises(RefusedError) as caught:
                await request_renewal(server, create_request(generate_private_key(), "gpu-a"), **asked)  # type: ignore[arg-type]
        assert (caught.value.code, "none was shown" in caught.value.message) == ("enroll.renewal_refused", True)

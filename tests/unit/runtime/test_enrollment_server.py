"""The enrollment server's routes: what it takes, how it answers, what it counts, and which certificate it shows."""

from __future__ import annotations

import json
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from sbctl.base.errors import SbctlError
from sbctl.base.limits import ENROLL_BODY_MAX_BYTES
from sbctl.runtime.enrollment_program import run_authority
from sbctl.runtime.enrollment_server import EnrollmentMetrics, server_tls
from sbctl.trust.authority import Authority
from sbctl.trust.certificate_making import generate_private_key
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_messages import CA_PATH, ENROLL_PATH
from sbctl.trust.identity import Grant
from sbctl.trust.revocation import RevocationList
from tests.simulators.enrollment_world import ask, asking, authority_in, now, serving, token_of

JSON = "application/json"


@pytest.fixture
def enrollment(tmp_path: Path) -> Enrollment:
    return authority_in(tmp_path / "cluster")


async def test_every_request_gets_a_code_and_every_outcome_is_counted(
    enrollment: Enrollment, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics, token = EnrollmentMetrics(), token_of(enrollment)
    good: dict[str, Any] = json.loads(ask(token).to_json())
    cases: list[tuple[str, str, Any, str, int, str]] = [
        ("POST", ENROLL_PATH, b"{", JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "admin": True}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "roles": ["root"]}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "node_id": "../etc"}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "node_id": "n" * 65}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "csr_pem": "x" * 65_537}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "token": "t" * 600}, JSON, 400, "invalid_request"),
        ("POST", ENROLL_PATH, {**good, "token": "t"}, JSON, 401, "enrollment_denied"),
        ("POST", ENROLL_PATH, b"x" * (ENROLL_BODY_MAX_BYTES + 1), JSON, 413, "request_body_too_large"),
        ("POST", ENROLL_PATH, good, "text/plain", 415, "unsupported_media_type"),
        ("GET", ENROLL_PATH, None, JSON, 405, "method_not_allowed"),
        ("GET", "/admin/model-host/status", None, JSON, 404, "not_found"),
        ("GET", CA_PATH, None, JSON, 200, ""),
        ("GET", "/healthz", None, JSON, 200, ""),
    ]
    tls = ssl.create_default_context(cadata=enrollment.pinned_ca())
    async with serving(enrollment, metrics=metrics) as port, aiohttp.ClientSession() as session:
        for method, path, body, kind, status, code in cases:
            data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
            async with session.request(
                method, f"https://127.0.0.1:{port}{path}", data=data, headers={"Content-Type": kind}, ssl=tls,
                server_hostname="mesh",
            ) as answer:  # fmt: skip
                text = await answer.text()
                assert (answer.status, code in text) == (status, True), (path, text)
                assert good["token"] not in text
                assert answer.headers["Cache-Control"] == "no-store"
        monkeypatch.setattr(
            Authority, "revocations", lambda _self: ("x" * 200_000, RevocationList(cluster_id="prod", revision=0))
        )
        with pytest.raises(SbctlError) as caught:
            await asking(port, token, ask(token))
        assert caught.value.code == "enroll.authority_unavailable"
        assert enrollment.tokens()[0].consumed_at is None
        monkeypatch.undo()
        await asking(port, token, ask(token))
    text = await _rendered(metrics)
    assert 'mesh_enrollment_total{outcome="issued",reason="ok"} 1.0' in text
    assert 'mesh_enrollment_total{outcome="refused",reason="malformed"} 1.0' in text
    assert 'mesh_enrollment_total{outcome="failed",reason="authority"} 1.0' in text
    assert token.id not in text


async def _rendered(metrics: EnrollmentMetrics) -> str:
    (route,) = [route for route in metrics.app().router.routes() if route.method == "GET"]
    response = await route.handler(None)  # type: ignore[arg-type]
    assert isinstance(response, web.Response)
    assert isinstance(response.body, bytes)
    return response.body.decode()


def test_the_server_shows_an_authority_and_mends_a_certificate_beside_another_key(
    enrollment: Enrollment, tmp_path: Path
) -> None:
    authority = enrollment.authority
    before = authority.own_fingerprint()
    assert not authority.renew_own(now=now())
    (authority.directory / "node-key.pem").write_bytes(generate_private_key().reveal())
    with pytest.raises(SbctlError) as caught:
        server_tls(authority)
    assert caught.value.code == "enroll.own_identity"
    assert authority.renew_own(now=now())
    assert authority.own_fingerprint() != before
    server_tls(authority)
    grant = Grant(node_id="gw", roles=("gateway",))
    other = Authority.create(tmp_path / "other", cluster_id="prod", grant=grant, server_name="mesh", now=now())
    with pytest.raises(SbctlError) as caught:
        server_tls(other)
    assert caught.value.code == "enroll.own_role"


async def test_during_a_rollover_a_host_gets_both_cas(enrollment: Enrollment) -> None:
    following = enrollment.authority.begin_rollover(now=now())
    token = token_of(enrollment)
    async with serving(enrollment) as port:
        got = await asking(port, token, ask(token))
    assert got.answer.ca.count("BEGIN CERTIFICATE") == 2
    assert certificate_facts(got.answer.ca[got.answer.ca.rindex("-----BEGIN") :]).fingerprint == following


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--listen", "8443"], "usage"),
        (["--listen", "gw-a:8443"], "usage"),
        (["--listen", "127.0.0.1:99999"], "usage"),
        (["--listen", "127.0.0.1:0", "--metrics-listen", "0.0.0.0:0"], "enroll.metrics_exposed"),
        (["--listen", "127.0.0.1:0", "--validity-days", "0"], "usage"),
        (["--listen"], "usage"),
        ([], "usage"),
    ],
)
def test_a_command_line_that_cannot_be_served_is_refused(
    enrollment: Enrollment, monkeypatch: pytest.MonkeyPatch, words: list[str], code: str
) -> None:
    monkeypatch.setattr("os.umask", lambda _mask: 0)
    with pytest.raises(SbctlError) as caught:
        run_authority(["--dir", str(enrollment.authority.directory), *words])
    assert caught.value.code == code

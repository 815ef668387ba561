"""Abuse of join tokens and of the enrollment server (docs/threats.md, section D). Each test is named with its case."""

from __future__ import annotations

import ast
import json
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from email.utils import format_datetime
from pathlib import Path

import aiohttp
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.limits import ENROLL_ANSWER_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.cli.enrolling import server_of
from sbctl.runtime import enrollment_server
from sbctl.runtime.enrollment_server import EnrollmentMetrics
from sbctl.trust import token_store
from sbctl.trust.certificate_making import KeyPair, create_ca, create_request, generate_private_key, issue_leaf
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.enrolled_directory import EnrolledDirectory
from sbctl.trust.enrollment import AUDIT_FILE, Enrollment
from sbctl.trust.enrollment_messages import CA_PATH, ENROLL_PATH
from sbctl.trust.identity import Grant, IdentityClaims
from sbctl.trust.join_token import JoinToken
from tests.attacks.test_identity_attacks import csr
from tests.simulators.enrollment_world import Impostor, ask, asking, authority_in, http, now, serving, token_of


@pytest.fixture
def enrollment(tmp_path: Path) -> Enrollment:
    return authority_in(tmp_path / "cluster")


def refusal(call: Callable[[], object]) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        call()
    return caught.value


def audit(enrollment: Enrollment) -> list[dict[str, object]]:
    path = enrollment.authority.directory / AUDIT_FILE
    return [json.loads(line) for line in path.read_text().splitlines()]


def give(enrollment: Enrollment, *arguments: object, **words: object) -> str:
    asked = ask(*arguments, **words)  # type: ignore[arg-type]
    return enrollment.enroll(asked, source="192.0.2.7", now=now()).certificate


def test_D1_a_used_token_is_refused_like_one_that_never_was(enrollment: Enrollment) -> None:
    token, stranger = token_of(enrollment), JoinToken.mint("00" * 32)
    give(enrollment, token)
    replayed = refusal(lambda: give(enrollment, token))
    unknown = refusal(lambda: give(enrollment, stranger))
    malformed = refusal(lambda: give(enrollment, "sbj1.a.b.c"))
    assert {(each.code, each.message) for each in (replayed, unknown, malformed)} == {
        ("enrollment_denied", "the token is not valid")
    }
    assert [row["event"] for row in audit(enrollment)] == ["token_created", "enrolled", "refused"]
    assert audit(enrollment)[-1]["reason"] == "consumed"


def test_D1_the_same_request_again_gets_the_same_certificate_and_another_name_or_label_nothing(
    enrollment: Enrollment,
) -> None:
    token, key = token_of(enrollment), create_request(generate_private_key(), "gpu-a")
    first = give(enrollment, token, request=key)
    assert give(enrollment, token, request=key) == first
    assert refusal(lambda: give(enrollment, token, request=key, node_id="gpu-b")).code == "enrollment_denied"
    enrollment.authority.rotate(["gpu-a"])
    enrollment.authority.issue(key, Grant(node_id="gpu-a", roles=("worker",), labels={"zone": "a"}), now=now())
    superseded = refusal(lambda: give(enrollment, token, request=key))
    assert superseded.detail["reason"] == "superseded"


def test_D2_of_fifty_threads_with_one_token_one_gets_a_certificate(enrollment: Enrollment) -> None:
    token = token_of(enrollment)
    requests = [ask(token, node_id=f"gpu-{number % 5}") for number in range(50)]

    def one(index: int) -> str | None:
        try:
            return (
                Enrollment.open(enrollment.authority.directory)
                .enroll(requests[index], source="", now=now())
                .certificate
            )
        except RefusedError:
            return None

    with ThreadPoolExecutor(8) as threads:
        given = [each for each in threads.map(one, range(50)) if each is not None]
    assert len(given) == 1
    assert len([each for each in enrollment.authority.facts().nodes.values() if each.certificate]) == 2


@pytest.mark.parametrize(
    ("case", "reason"),
    [
        ("expired", "expired"),
        ("revoked", "revoked"),
        ("wrong secret", "secret"),
        ("wrong role", "constraints"),
        ("the authority's role", "constraints"),
        ("wrong label", "constraints"),
        ("extra label", "constraints"),
        ("missing label", "constraints"),
        ("wrong name", "constraints"),
        ("a name in use", "name_taken"),
        ("the authority's name", "name_taken"),
        ("other cluster", "unknown"),
        ("revoked host", "node_revoked"),
    ],
)
def test_D4_a_token_gives_only_what_it_was_made_for_and_is_not_burnt_by_asking(
    enrollment: Enrollment, tmp_path: Path, case: str, reason: str
) -> None:
    token = token_of(enrollment, node_id="gpu-a" if case in ("wrong name", "revoked host") else None)
    words: dict[str, object] = {}
    moment = now()
    if case == "expired":
        moment += timedelta(seconds=901)
    elif case == "revoked":
        enrollment.revoke_token(token.id, now=now())
    elif case == "wrong secret":
        token = JoinToken(token.pin, token.id, Secret(b"x" * 32))
    elif case in ("a name in use", "revoked host"):
        give(enrollment, token_of(enrollment))
        if case == "revoked host":
            enrollment.authority.revoke("gpu-a", reason="stolen", now=now())
    elif case == "other cluster":
        token = token_of(authority_in(tmp_path / "other", cluster_id="other"))
    words |= {
        "wrong role": {"roles": ("gateway",)},
        "the authority's role": {"roles": ("worker", "authority")},
        "wrong label": {"zone": "b"},
        "missing label": {"zone": None},
        "wrong name": {"node_id": "gpu-b"},
        "the authority's name": {"node_id": "authority"},
    }.get(case, {})
    asked = ask(token, **words)  # type: ignore[arg-type]
    if case == "extra label":
        asked.grant = Grant(node_id="gpu-a", roles=("worker",), labels={"zone": "a", "more": "b"})
    refused = refusal(lambda: enrollment.enroll(asked, source="", now=moment))
    assert (refused.code, refused.detail["reason"]) == ("enrollment_denied", reason)
    assert all(row.consumed_at is None for row in enrollment.tokens() if row.id == token.id)


def test_D4_no_token_makes_an_authority_or_lives_for_long(enrollment: Enrollment) -> None:
    def create(**words: object) -> SbctlError:
        given = {"roles": ["worker"], "labels": {}, "node_id": None, "ttl_s": 900, **words}
        return refusal(lambda: enrollment.create_token(now=now(), **given))  # type: ignore[arg-type]

    assert create(roles=["authority"]).code == "enroll.authority_role"
    assert create(node_id="authority").code == "enroll.authority_name"
    assert {create(ttl_s=seconds).code for seconds in (0, -1, 604_801)} == {"enroll.bad_constraint"}
    (enrollment.authority.directory / "ca-key.pem").unlink()
    assert refusal(lambda: Enrollment.open(enrollment.authority.directory)).code == "authority.no_key"


def test_D5_secrets_are_compared_in_constant_time_and_kept_as_hashes(enrollment: Enrollment) -> None:
    token = token_of(enrollment)
    called = [
        node.func for node in ast.walk(ast.parse(Path(token_store.__file__).read_text())) if isinstance(node, ast.Call)
    ]
    assert "compare_digest" in [function.attr for function in called if isinstance(function, ast.Attribute)]
    kept = (enrollment.authority.directory / "tokens.db").read_bytes()
    assert token.secret_sha256.encode() in kept
    assert token.text().reveal().rpartition(b".")[2] not in kept
    assert token.secret.reveal() not in kept


async def test_D5_guesses_are_limited_told_apart_by_nobody_and_fill_no_disk(
    enrollment: Enrollment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(enrollment_server, "ENROLL_REQUESTS_PER_MINUTE", 5)
    real, metrics = token_of(enrollment), EnrollmentMetrics()
    wrong_secret = JoinToken(real.pin, real.id, Secret(b"y" * 32))
    tls = ssl.create_default_context(cadata=enrollment.pinned_ca())
    async with serving(enrollment, metrics=metrics) as port, aiohttp.ClientSession() as session:

        async def post(token: JoinToken) -> tuple[int, str]:
            url = f"https://127.0.0.1:{port}{ENROLL_PATH}"
            headers = {"Content-Type": "application/json"}
            async with session.post(url, data=body(token), headers=headers, ssl=tls, server_hostname="mesh") as answer:
                return answer.status, await answer.text()

        request = create_request(generate_private_key(), "gpu-a")

        def body(token: JoinToken) -> bytes:
            return ask(token, request=request).to_json()

        answers = [await post(JoinToken.mint(real.pin) if number % 2 else wrong_secret) for number in range(4)]
        assert set(answers) == {(401, '{"code": "enrollment_denied", "error": "the token is not valid"}')}
        codes = [(await post(wrong_secret))[0] for _ in range(12)]
    assert 429 in codes
    assert [row["event"] for row in audit(enrollment)] == ["token_created"], "guesses fill no disk"


def impostors(enrollment: Enrollment, directory: Path) -> dict[str, KeyPair]:
    """Other CA with the right names, and a host of this very cluster with the right name."""

    def leaf(ca: KeyPair, *roles: str) -> KeyPair:
        key = generate_private_key()
        claims = IdentityClaims.model_validate(
            {"cluster_id": "prod", "node_id": "authority", "roles": roles, "server_name": "mesh", "identity_epoch": 1}
        )
        return KeyPair(issue_leaf(ca, create_request(key, "authority"), claims, now=now()), key)

    ours = KeyPair(enrollment.pinned_ca(), Secret((directory / "cluster" / "ca-key.pem").read_bytes()))
    return {"other": leaf(create_ca("prod", now=now()), "authority"), "host": leaf(ours, "gateway", "worker")}


@pytest.mark.parametrize(
    ("case", "code"),
    [
        ("plain HTTP", "enroll.no_tls"),
        ("another CA", "enroll.ca_mismatch"),
        ("our CA shown, another key", "enroll.untrusted_server"),
        ("a host of the cluster", "enroll.not_the_authority"),
        ("redirect", "enroll.redirected"),
        ("no CA at all", "enroll.ca_mismatch"),
        ("not HTTP", "enroll.bad_answer"),
        ("endless CA", "enroll.answer_too_large"),
        ("silence", "enroll.too_slow"),
        ("another clock", "identity.clock_skew"),
    ],
)
async def test_D7_an_impostor_hears_nothing_of_the_token(
    enrollment: Enrollment, tmp_path: Path, case: str, code: str
) -> None:
    token, made = token_of(enrollment), impostors(enrollment, tmp_path)
    our_ca, other_ca = enrollment.pinned_ca().encode(), create_ca("prod", now=now()).certificate.encode()
    late = format_datetime(now() + timedelta(minutes=10), usegmt=True)
    answers, identity, stall = {
        "plain HTTP": ([http("200 OK", our_ca)], None, False),
        "another CA": ([http("200 OK", other_ca)], made["other"], False),
        "our CA shown, another key": ([http("200 OK", our_ca)], made["other"], False),
        "a host of the cluster": ([http("200 OK", our_ca)], made["host"], False),
        "redirect": (
            [http("307 Temporary Redirect", b"", "Location: https://elsewhere.example/")],
            made["other"],
            False,
        ),
        "no CA at all": (
            [http("200 OK", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")],
            made["other"],
            False,
        ),
        "not HTTP": ([b"220 smtp.example ESMTP\r\n"], made["other"], False),
        "endless CA": ([b"HTTP/1.1 200 OK\r\n\r\n" + our_ca * 200], made["other"], False),
        "silence": ([], made["other"], True),
        "another clock": ([http("200 OK", our_ca, f"Date: {late}")], made["other"], False),
    }[case]
    async with Impostor(answers, identity, tmp_path, stall).open() as impostor:
        with pytest.raises(SbctlError) as caught:
            await asking(impostor.port, token, ask(token), answer_s=2.0 if stall else 60.0)
    assert caught.value.code == code
    assert CA_PATH.encode() in impostor.heard or case == "plain HTTP"
    for part in (b"sbj1", token.id.encode(), b"POST", b"CERTIFICATE REQUEST"):
        assert part not in bytes(impostor.heard)


@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (http("302 Found", b"", "Location: https://elsewhere.example/"), "enroll.redirected"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * (ENROLL_ANSWER_MAX_BYTES + 70_000), "enroll.answer_too_large"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\ncut", "enroll.bad_answer"),
        (http("200 OK", b"{}"), "enroll.bad_answer"),
        (http("200 OK", b'{"a":' * 1000), "enroll.bad_answer"),
        (http("401 Unauthorized", b'{"code":"x","error":"\\u001b[31mno"}'), "enroll.denied"),
        (
            http("400 Bad Request", b'{"code":"invalid_request","error":"the request is wrong"}'),
            "enroll.request_refused",
        ),
        (http("429 Too Many Requests", b"{}", "Retry-After: 7"), "enroll.rate_limited"),
        (http("503 Service Unavailable", b"<html>"), "enroll.authority_unavailable"),
        (http("404 Not Found", b""), "enroll.bad_answer"),
    ],
    ids=["redirect", "too-large", "cut", "empty", "deep", "denied", "refused", "busy", "down", "elsewhere"],
)
async def test_D7_what_an_authority_answers_is_bounded_and_told_in_our_words(
    enrollment: Enrollment, tmp_path: Path, answer: bytes, code: str
) -> None:
    directory = enrollment.authority.directory
    own = KeyPair((directory / "node.pem").read_text(), Secret((directory / "node-key.pem").read_bytes()))
    token = token_of(enrollment)
    async with Impostor([answer], own, tmp_path).open() as server:
        with pytest.raises(SbctlError) as caught:
            await asking(server.port, token, ask(token), known_ca=enrollment.pinned_ca())
    assert caught.value.code == code
    assert "\x1b" not in caught.value.message


async def test_D7_a_known_ca_must_be_the_one_that_the_token_names(enrollment: Enrollment, tmp_path: Path) -> None:
    token, other = token_of(enrollment), authority_in(tmp_path / "other")
    async with serving(enrollment) as port:
        with pytest.raises(RefusedError) as caught:
            await asking(port, token, ask(token), known_ca=other.pinned_ca())
        assert caught.value.code == "enroll.ca_mismatch"
        got = await asking(port, token, ask(token), known_ca=other.pinned_ca() + enrollment.pinned_ca())
    assert certificate_facts(got.answer.certificate).claims.node_id == "gpu-a"


@pytest.mark.parametrize("change", ["other host", "other key", "other signer", "no document"])
async def test_D7_an_identity_that_is_not_the_one_asked_for_is_not_installed(
    enrollment: Enrollment, tmp_path: Path, change: str
) -> None:
    token = token_of(enrollment)
    directory = EnrolledDirectory(tmp_path / "node")
    asked = ask(token, request=directory.request("gpu-a"))
    async with serving(enrollment) as port:
        got = await asking(port, token, asked)
    stranger = authority_in(tmp_path / "other")
    if change == "other host":
        asked.grant = Grant(node_id="gpu-z", roles=("worker",), labels={"zone": "a"})
    elif change == "other key":
        (directory.stage / "node-key.pem").write_bytes(generate_private_key().reveal())
    elif change == "other signer":
        got.answer.authority_key = stranger.authority.verifying_key
    else:
        got.answer.identity = "{}"
    refusal(lambda: directory.finish(got, asked.grant, now()))
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize(
    "url", ["http://gw-a:8443", "ftp://gw-a", "gw-a:8443", "//gw-a", "", "HTTP://gw-a", "https", "http:/x"]
)
def test_D8_an_address_without_tls_is_refused(url: str) -> None:
    refused = refusal(lambda: server_of(url, "mesh"))
    assert isinstance(refused, InputError)
    assert refused.code == "enroll.https_required"


@pytest.mark.parametrize(
    "request_text",
    [
        csr(rsa.generate_private_key(65537, 2048)),
        "no request",
        "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n",
    ],
    ids=["rsa", "text", "garbage"],
)
def test_D9_a_request_with_a_weak_key_or_none_burns_no_token(enrollment: Enrollment, request_text: str) -> None:
    token = token_of(enrollment)
    assert refusal(lambda: give(enrollment, token, request=request_text)).code == "invalid_request"
    assert enrollment.tokens()[0].consumed_at is None


def test_D10_a_token_for_a_name_in_use_gives_the_next_epoch(enrollment: Enrollment) -> None:
    first = give(enrollment, token_of(enrollment))
    second = give(enrollment, token_of(enrollment, node_id="gpu-a"))
    epochs = [certificate_facts(each).claims.identity_epoch for each in (first, second)]
    assert epochs == [1, 2]

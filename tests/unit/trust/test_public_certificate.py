"""Which certificates can be served, and what is told of them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID

from sbctl.base.errors import InputError
from sbctl.base.secret import Secret
from sbctl.trust.public_certificate import PublicCertificate, check_pair, read_public_certificate, split_pair
from tests.simulators.public_ca import Issued, issue, rsa_key

SIGNED_WITH_SHA1 = b"""\
-----BEGIN CERTIFICATE-----
MIIBgDCCASagAwIBAgIUJjUFkVbgEE3V9omOkBOREFpL3vowCQYHKoZIzj0EATAR
MQ8wDQYDVQQDDAZPbGQgQ0EwIBcNMjYxMTMwMDE1MDUzWhgPMjA1MTA3MjIwMTUw
NTNaMBQxEjAQBgNVBAMMCWEuZXhhbXBsZTBZMBMGByqGSM49AgEGCCqGSM49AwEH
A0IABGoD/TWMe9IPD/uZVr+7a8/YGqk9SMxGU1YgB4yY9vK5gjDn9F6DAtr/+mHm
etIqeVy2PbYlccius+AqNnUqm5KjWDBWMBQGA1UdEQQNMAuCCWEuZXhhbXBsZTAd
BgNVHQ4EFgQUVGroKinVdmCPZnIyk1OOsM3z2kQwHwYDVR0jBBgwFoAUhT0WQr7r
WaWV6p4TIk/OgJzCgcEwCQYHKoZIzj0EAQNJADBGAiEA2NW0r074ItIBfFHgAF37
LMul2bdJtIdWc/I0uzcNBXACIQCJorrL5yKL5fUNyTIuSD+90BQnXOHl9eVgSowC
oILrWA==
-----END CERTIFICATE-----
"""

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def judge(made: Issued) -> PublicCertificate:
    return check_pair(made.chain, Secret(made.key))


@pytest.mark.parametrize(
    ("key", "kind"),
    [
        (None, "ECDSA P-256"),
        (ec.generate_private_key(ec.SECP384R1()), "ECDSA P-384"),
        (rsa_key(2048), "RSA 2048"),
        (ed25519.Ed25519PrivateKey.generate(), "Ed25519"),
    ],
)
def test_what_is_told_of_a_good_one(key: object, kind: str) -> None:
    made = issue("ai.example.com", "*.models.example.com", "192.0.2.7", begins=NOW, key=key)
    found = judge(made)
    assert (found.subject, found.issuer, found.key_kind) == ("ai.example.com", "Test Intermediate", kind)
    assert found.names == ("ai.example.com", "*.models.example.com", "192.0.2.7")
    assert (found.not_before, found.not_after) == (NOW, NOW + timedelta(days=90))
    assert len(found.chain) == 1
    assert PublicCertificate.parse(found.document()) == found
    chain, private = split_pair(made.pair)
    assert check_pair(chain, private) == found


@pytest.mark.parametrize(
    ("made", "code", "words"),
    [
        (lambda: issue(key=None), "tls.no_names", "alternative name"),
        (lambda: issue("a.example", key=rsa_key(1024)), "tls.weak_key", "RSA 1024"),
        (lambda: issue("a.example", key=ec.generate_private_key(ec.SECP256K1())), "tls.weak_key", "secp256k1"),
        (lambda: _with(chain=lambda _one: SIGNED_WITH_SHA1), "tls.weak_signature", "SHA1"),
        (lambda: issue("a.example", purposes=[ExtendedKeyUsageOID.CLIENT_AUTH]), "tls.wrong_purpose", "serverAuth"),
        (lambda: issue("a.example", passphrase=b"x"), "tls.key_encrypted", "passphrase"),
        (lambda: _with(chain=lambda one: one.intermediate + one.leaf), "tls.chain_order", "did not issue"),
        (lambda: _with(chain=lambda one: one.leaf + issue("b.example").leaf), "tls.chain_order", "did not issue"),
        (lambda: _with(chain=lambda _one: b"no PEM"), "tls.certificate_invalid", "PEM"),
        (lambda: _with(chain=lambda one: one.pair), "tls.certificate_invalid", "private key in it"),
        (lambda: _with(chain=lambda one: one.leaf + b"x" * 70_000), "tls.certificate_invalid", "more text"),
        (lambda: _with(key=lambda _one: issue("b.example").key), "tls.key_mismatch", "a.example"),
        (lambda: _with(key=lambda one: one.leaf), "tls.key_invalid", "cannot be read"),
    ],
)
def test_what_no_client_would_accept_is_refused(made: Callable[[], Issued], code: str, words: str) -> None:
    issued = made()
    with pytest.raises(InputError) as caught:
        judge(issued)
    assert caught.value.code == code
    assert words in caught.value.message
    assert caught.value.next_step
    assert b"PRIVATE" not in str(caught.value).encode()


def _with(*, chain: Callable[[Issued], bytes] | None = None, key: Callable[[Issued], bytes] | None = None) -> Issued:
    one = issue("a.example")
    return Issued(
        chain(one) if chain else one.chain, key(one) if key else one.key, leaf=one.leaf, intermediate=one.intermediate
    )


@pytest.mark.parametrize("pem", [b"", b"-----BEGIN CERTIFICATE-----\nx\n", issue("a.example").chain])
def test_a_pair_needs_both(pem: bytes) -> None:
    with pytest.raises(InputError):
        split_pair(pem)


@pytest.mark.parametrize(
    ("hostname", "is_covered"),
    [
        ("ai.example.com", True),
        ("AI.example.com.", True),
        ("x.models.example.com", True),
        ("x.y.models.example.com", False),
        ("models.example.com", False),
        ("example.com", False),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("2001:db8:0::1", True),
        ("[2001:db8::1]", True),
        ("localhost", False),
    ],
)
def test_names_are_matched_as_clients_do(hostname: str, is_covered: bool) -> None:
    found = read_public_certificate(issue("ai.example.com", "*.models.example.com", "192.0.2.7", "2001:db8::1").chain)
    assert found.covers(hostname) is is_covered


@pytest.mark.parametrize(
    ("life_days", "left_days", "problem", "warns"),
    [
        (90, 60, None, False),
        (90, 22, None, False),
        (90, 20, None, True),
        (90, -1, "tls.expired", True),
        (90, 91, "tls.not_yet_valid", False),
        (6, 3, None, False),
        (6, 1, None, True),
    ],
)
def test_dates_are_judged_by_the_clock_that_is_given(
    life_days: int, left_days: int, problem: str | None, warns: bool
) -> None:
    found = read_public_certificate(issue("a.example", begins=NOW, ends=NOW + timedelta(days=life_days)).chain)
    now = found.not_after - timedelta(days=left_days)
    error = found.time_problem(now)
    assert (error.code if error is not None else None) == problem
    assert (found.ends_soon(now) is not None) is warns

"""Abuse of node identities and of the authority that gives them (docs/threats.md, section D). Each test is named with its case."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.base import fs
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.trust.authority import Authority
from sbctl.trust.authority_keys import AuthorityKeys
from sbctl.trust.certificate_making import KeyPair, create_ca, create_request, generate_private_key, issue_leaf
from sbctl.trust.certificates import certificate_facts, verify_leaf
from sbctl.trust.identity import (
    CLOCK_SKEW_S,
    Grant,
    HighWater,
    IdentityClaims,
    admit,
    check_clocks,
    check_document,
    claims_uri,
    open_identity,
    parse_claims,
)
from sbctl.trust.node_identity import NodeIdentityFiles, verify_node_identity
from tests.simulators.failing_files import FullAt

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
CLAIMS = IdentityClaims(
    cluster_id="prod", node_id="gpu-a", roles=("worker",), labels={"zone": "a"}, server_name="mesh", identity_epoch=3
)
GRANT = Grant(node_id="gpu-a", roles=("worker",), labels={"zone": "a"})


@pytest.fixture(scope="module")
def ca() -> KeyPair:
    return create_ca("prod", now=NOW)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return made(tmp_path / "cluster")


def made(directory: Path) -> Authority:
    grant = Grant(node_id="authority", roles=("gateway", "authority"))
    return Authority.create(directory, cluster_id="prod", grant=grant, server_name="mesh", now=NOW)


def refusal(call: Callable[[], object]) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        call()
    assert caught.value.message
    return caught.value


def csr(key: Any, *extensions: x509.ExtensionType, algorithm: Any = hashes.SHA256()) -> str:  # noqa: B008
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "root-of-all")])
    builder = x509.CertificateSigningRequestBuilder().subject_name(name)
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, algorithm).public_bytes(Encoding.PEM).decode()


# D9


@pytest.mark.parametrize(
    "key",
    [
        pytest.param(rsa.generate_private_key(65537, 1024), id="RSA 1024"),
        pytest.param(rsa.generate_private_key(65537, 2048), id="RSA 2048"),
        pytest.param(ec.generate_private_key(ec.SECP192R1()), id="P-192"),
        pytest.param(ec.generate_private_key(ec.SECP256K1()), id="secp256k1"),
    ],
)
def test_D9_a_key_of_another_kind_is_refused(authority: Authority, key: Any) -> None:
    error = refusal(lambda: authority.issue(csr(key), GRANT, now=NOW))
    assert error.code in ("certificate.weak_key", "certificate.request_invalid")
    assert authority.node("gpu-a").certificate is None


def test_D9_an_ed25519_request_is_refused(authority: Authority) -> None:
    request = csr(ed25519.Ed25519PrivateKey.generate(), algorithm=None)
    assert refusal(lambda: authority.issue(request, GRANT, now=NOW)).code == "certificate.weak_key"


def test_D9_names_and_usages_of_a_request_are_ignored(authority: Authority) -> None:
    request = csr(
        ec.generate_private_key(ec.SECP256R1()),
        x509.BasicConstraints(ca=True, path_length=None),
        x509.SubjectAlternativeName([x509.DNSName("bank.example"), x509.DNSName("gpu-b")]),
        x509.KeyUsage(
            digital_signature=True, key_cert_sign=True, crl_sign=True, content_commitment=False,
            key_encipherment=False, data_encipherment=False, key_agreement=False, encipher_only=False, decipher_only=False,
        ),
    )  # fmt: skip
    issued = x509.load_pem_x509_certificate(authority.issue(request, GRANT, now=NOW).certificate.encode())
    assert not issued.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not issued.extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
    facts = certificate_facts(issued.public_bytes(Encoding.PEM).decode())
    assert (facts.subject, facts.dns_names) == ("gpu-a", ("mesh", "gpu-a"))
    assert facts.claims.roles == ("worker",)


@pytest.mark.parametrize(
    "text",
    ["", "no pem", "-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n", "x" * 70_000],
)
def test_D9_nonsense_is_no_request(authority: Authority, text: str) -> None:
    assert refusal(lambda: authority.issue(text, GRANT, now=NOW)).code == "certificate.request_invalid"


def test_D9_a_request_signed_by_another_key_is_refused(authority: Authority) -> None:
    request = csr(ec.generate_private_key(ec.SECP256R1()))
    der = bytearray(x509.load_pem_x509_csr(request.encode()).public_bytes(Encoding.DER))
    der[-1] ^= 1
    from base64 import b64encode

    broken = (
        f"-----BEGIN CERTIFICATE REQUEST-----\n{b64encode(bytes(der)).decode()}\n-----END CERTIFICATE REQUEST-----\n"
    )
    assert refusal(lambda: authority.issue(broken, GRANT, now=NOW)).code == "certificate.request_invalid"


# D10, D11, D12


def test_D10_every_certificate_of_a_node_has_the_next_epoch(authority: Authority) -> None:
    epochs = [
        authority.issue(csr(ec.generate_private_key(ec.SECP256R1())), GRANT, now=NOW).identity_epoch for _ in range(3)
    ]
    assert epochs == [1, 2, 3]
    seen = admit(HighWater(1, "a" * 64), HighWater(2, "b" * 64))
    assert refusal(lambda: admit(seen, HighWater(1, "a" * 64))).code == "identity.epoch_rollback"


def test_D10_a_restored_ledger_issues_above_what_the_host_shows(authority: Authority) -> None:
    issued = authority.issue(csr(ec.generate_private_key(ec.SECP256R1())), GRANT, now=NOW, least_epoch=41)
    assert issued.identity_epoch == 42


def test_the_same_key_gets_the_same_certificate_again(authority: Authority) -> None:
    request = create_request(generate_private_key(), "gpu-a")
    first = authority.issue(request, GRANT, now=NOW)
    assert authority.issue(request, GRANT, now=NOW + timedelta(hours=1)) == first
    other = Grant(node_id="gpu-a", roles=("gateway",))
    assert authority.issue(request, other, now=NOW).identity_epoch == 2


@pytest.mark.parametrize(
    ("seen", "shown", "code"),
    [
        (HighWater(3, "a" * 64), HighWater(2, "b" * 64), "identity.epoch_rollback"),
        (HighWater(3, "a" * 64), HighWater(3, "b" * 64), "identity.epoch_conflict"),
        (HighWater(3, "a" * 64, 7), HighWater(3, "a" * 64, 6), "identity.boot_rollback"),
    ],
)
def test_D11_D12_behind_or_beside_the_high_water_mark_is_refused(seen: HighWater, shown: HighWater, code: str) -> None:
    error = refusal(lambda: admit(seen, shown))
    assert error.code == code
    assert bool(error.detail.get("alarm")) == (code == "identity.epoch_conflict")


def test_D11_what_is_new_or_the_same_passes() -> None:
    mark = HighWater(3, "a" * 64, 7)
    assert admit(None, mark) == mark
    assert admit(mark, mark) == mark
    assert admit(mark, HighWater(3, "a" * 64, 8)).boot_epoch == 8
    assert admit(mark, HighWater(4, "b" * 64, 1)).identity_epoch == 4


# D14, D15, D16


@pytest.mark.parametrize(
    ("off", "refused"),
    [
        (timedelta(minutes=1), False),
        (timedelta(minutes=-1), False),
        (timedelta(minutes=10), True),
        (timedelta(minutes=-10), True),
        (timedelta(days=3650), True),
        (datetime(1969, 7, 20, tzinfo=UTC) - NOW, True),
    ],
)
def test_D14_a_clock_that_is_off_is_told_with_both_times(off: timedelta, refused: bool) -> None:
    here = NOW + off
    if not refused:
        check_clocks(here, NOW)
        return
    error = refusal(lambda: check_clocks(here, NOW))
    assert error.code == "identity.clock_skew"
    assert NOW.isoformat() in error.message
    assert here.isoformat() in error.message


@pytest.mark.parametrize(
    ("off", "codes"),
    [
        (timedelta(0), ()),
        (timedelta(seconds=-CLOCK_SKEW_S + 1), ()),
        (timedelta(minutes=-20), ("certificate.not_yet_valid",)),
        (timedelta(days=91), ("certificate.expired",)),
        (timedelta(days=36500), ("certificate.expired",)),
        (datetime(1970, 1, 1, tzinfo=UTC) - NOW, ("certificate.not_yet_valid",)),
    ],
)
def test_D14_D15_an_identity_counts_only_in_its_time(
    authority: Authority, off: timedelta, codes: tuple[str, ...]
) -> None:
    key = generate_private_key()
    files = installed(authority, key)
    if not codes:
        assert verify_node_identity(files, key=key, now=NOW + off).claims.node_id == "gpu-a"
        return
    assert refusal(lambda: verify_node_identity(files, key=key, now=NOW + off)).code in codes


def installed(authority: Authority, key: Secret, grant: Grant = GRANT) -> NodeIdentityFiles:
    issued = authority.issue(create_request(key, grant.node_id), grant, now=NOW)
    return NodeIdentityFiles(
        certificate=issued.certificate,
        ca=authority.bundle(authority.facts().ca),
        identity=issued.identity,
        authority_key=authority.verifying_key,
        revocations=authority.revocations()[0],
    )


def test_D16_a_revoked_node_gets_nothing_until_somebody_rotates_it(authority: Authority) -> None:
    key = generate_private_key()
    files = installed(authority, key)
    authority.revoke("gpu-a", reason="stolen", now=NOW)
    error = refusal(lambda: authority.issue(create_request(generate_private_key(), "gpu-a"), GRANT, now=NOW))
    assert error.code == "identity.revoked"
    assert "cluster rotate gpu-a" in (error.next_step or "")
    assert authority.node("gpu-a").is_shut_out
    told = NodeIdentityFiles(
        files.certificate, files.ca, files.identity, files.authority_key, authority.revocations()[0]
    )
    assert refusal(lambda: verify_node_identity(told, key=key, now=NOW)).code == "identity.revoked"
    authority.rotate(["gpu-a"])
    again = generate_private_key()
    assert verify_node_identity(installed(authority, again), key=again, now=NOW).claims.identity_epoch == 2


def test_revoking_twice_is_one_revocation_and_a_stranger_is_none(authority: Authority) -> None:
    installed(authority, generate_private_key())
    assert authority.revoke("gpu-a", reason="", now=NOW).revision == 1
    assert authority.revoke("gpu-a", reason="", now=NOW).revision == 1
    assert refusal(lambda: authority.revoke("gpu-z", reason="", now=NOW)).code == "identity.unknown"


# D18


@pytest.mark.parametrize(
    ("name", "mode", "code"),
    [
        ("ca-key.pem", 0o644, "authority.permissions"),
        ("ca-key.pem", 0o640, "authority.permissions"),
        ("authority-signing.key", 0o604, "authority.permissions"),
        ("ca.pem", 0o666, "authority.permissions"),
        (".", 0o755, "authority.permissions"),
        (".", 0o770, "authority.permissions"),
    ],
)
def test_D18_rights_for_others_are_refused_with_path_and_mode(
    authority: Authority, name: str, mode: int, code: str
) -> None:
    path = authority.directory / name
    os.chmod(path, mode)
    error = refusal(
        lambda: Authority.open(authority.directory).issue(create_request(generate_private_key(), "x"), GRANT, now=NOW)
    )
    assert error.code == code
    assert f"{mode:04o}" in error.message
    assert str(authority.directory) in (error.place or "")
    assert "chmod" in (error.next_step or "")


@pytest.mark.parametrize("name", ["ca-key.pem", "ca.pem", "authority-signing.key"])
def test_D18_a_link_is_refused(authority: Authority, tmp_path: Path, name: str) -> None:
    path = authority.directory / name
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    error = refusal(
        lambda: Authority.open(authority.directory).issue(create_request(generate_private_key(), "x"), GRANT, now=NOW)
    )
    assert error.code == "authority.permissions"


def test_D18_a_linked_directory_is_refused(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(authority.directory)
    assert refusal(lambda: Authority.open(tmp_path / "link")).code == "authority.permissions"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_D18_a_foreign_owner_is_refused(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    os.chown(authority.directory / "ca-key.pem", 12345, 12345)
    error = refusal(lambda: authority.issue(create_request(generate_private_key(), "gpu-a"), GRANT, now=NOW))
    assert error.code == "authority.permissions"


def test_a_copy_without_keys_can_plan_and_not_issue(authority: Authority) -> None:
    for name in ("ca-key.pem", "authority-signing.key"):
        (authority.directory / name).unlink()
    os.chmod(authority.directory, 0o755)
    copy = Authority.open(authority.directory)
    assert not copy.facts().keys_here
    assert (
        refusal(lambda: copy.issue(create_request(generate_private_key(), "gpu-a"), GRANT, now=NOW)).code
        == "authority.no_key"
    )


# D19


def test_D19_init_is_whole_or_nothing_whichever_call_fails(tmp_path: Path) -> None:
    directory = tmp_path / "fleet" / "cluster"
    for number in range(1, 400):
        ops = FullAt(number)
        with fs.use_ops(ops):
            try:
                made(directory)
            except SbctlError:
                pass
            else:
                assert ops.left > 0, "a failed call was swallowed"
                break
        left = sorted(os.listdir(tmp_path / "fleet")) if (tmp_path / "fleet").exists() else []
        assert left in ([], ["cluster"]), f"call {number} left {left}"
        if left:
            Authority.open(directory)  # only the fsync after the rename failed
            for name in sorted(directory.rglob("*"), reverse=True):
                name.rmdir() if name.is_dir() else name.unlink()
            directory.rmdir()
    else:
        raise AssertionError("init never came to its end")
    assert Authority.open(directory).facts().keys_here


def test_D19_a_second_init_is_refused(authority: Authority) -> None:
    before = (authority.directory / "ca.pem").read_bytes()
    assert refusal(lambda: made(authority.directory)).code == "authority.exists"
    assert (authority.directory / "ca.pem").read_bytes() == before


@pytest.mark.parametrize("name", ["authority.json", "ca.pem", "revocations.json"])
def test_D19_a_directory_that_lost_a_file_says_which(authority: Authority, name: str) -> None:
    (authority.directory / name).unlink()
    error = refusal(lambda: Authority.open(authority.directory))
    assert error.code == "authority.incomplete"
    assert name in error.message


def test_D19_a_lost_directory_says_how_to_get_one(tmp_path: Path) -> None:
    error = refusal(lambda: Authority.open(tmp_path / "none"))
    assert error.code == "authority.missing"
    assert "cluster init" in (error.next_step or "")


# D20

_ids = st.text("abcXYZ019._-", min_size=1, max_size=40).filter(lambda text: text not in (".", ".."))
_names = st.from_regex(
    r"[a-z0-9]([a-z0-9-]{0,8}[a-z0-9])?(\.[a-z0-9]{1,5}){0,2}", fullmatch=True, alphabet=st.characters(codec="ascii")
)
_labels = st.dictionaries(_ids, st.text("abc ü=,/", min_size=1, max_size=20).filter(str.isprintable), max_size=4)
_roles = st.sets(st.sampled_from(["gateway", "worker", "authority"]), min_size=1).map(
    lambda roles: tuple(sorted(roles))
)


@settings(max_examples=40, deadline=None)
@given(node=_ids, server=_names, labels=_labels, roles=_roles, epoch=st.integers(1, 2**40))
def test_D20_what_is_issued_verifies_and_says_what_was_granted(
    ca: KeyPair, node: str, server: str, labels: dict[str, str], roles: Any, epoch: int
) -> None:
    claims = IdentityClaims(
        cluster_id="prod", node_id=node, roles=roles, labels=labels, server_name=server, identity_epoch=epoch
    )
    request = create_request(generate_private_key(), node)
    leaf = issue_leaf(ca, request, claims, now=NOW)
    facts = verify_leaf(leaf, ca.certificate, server_name=server, now=NOW)
    assert facts.claims == claims
    assert facts.not_before == NOW - timedelta(minutes=5)
    assert facts.not_after == NOW + timedelta(days=90)
    assert parse_claims(claims_uri(claims)) == claims


def test_D20_serials_are_random_and_long(ca: KeyPair) -> None:
    request = create_request(generate_private_key(), "gpu-a")
    serials = {int(certificate_facts(issue_leaf(ca, request, CLAIMS, now=NOW)).serial, 16) for _ in range(64)}
    assert len(serials) == 64
    assert max(serials).bit_length() > 120
    assert max(serials).bit_length() <= 128


def test_D20_a_certificate_never_outlives_its_CA_and_an_expired_CA_issues_nothing(ca: KeyPair) -> None:
    late = NOW + timedelta(days=3640)
    leaf = issue_leaf(ca, create_request(generate_private_key(), "gpu-a"), CLAIMS, now=late)
    assert certificate_facts(leaf).not_after == certificate_facts(ca.certificate).not_after
    request = create_request(generate_private_key(), "gpu-a")
    error = refusal(lambda: issue_leaf(ca, request, CLAIMS, now=NOW + timedelta(days=3651)))
    assert error.code == "certificate.ca_expired"


def test_D20_another_CA_or_name_is_not_believed(ca: KeyPair) -> None:
    leaf = issue_leaf(ca, create_request(generate_private_key(), "gpu-a"), CLAIMS, now=NOW)
    other = create_ca("prod", now=NOW)
    for bundle, name in ((other.certificate, "mesh"), (ca.certificate, "elsewhere")):
        error = refusal(lambda bundle=bundle, name=name: verify_leaf(leaf, bundle, server_name=name, now=NOW))
        assert error.code == "certificate.untrusted"


def test_D20_a_CA_key_that_is_not_the_CA_s_is_found_before_anything_leaves(ca: KeyPair) -> None:
    mixed = KeyPair(ca.certificate, generate_private_key())
    request = create_request(generate_private_key(), "gpu-a")
    assert refusal(lambda: issue_leaf(mixed, request, CLAIMS, now=NOW)).code == "certificate.untrusted"


# D21


def _uri(body: str) -> str:
    from base64 import urlsafe_b64encode

    return "urn:sbproxy:identity:v1:" + urlsafe_b64encode(body.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "uri",
    [
        pytest.param("https://example.org/", id="another URI"),
        pytest.param("urn:sbproxy:identity:v1:", id="empty"),
        pytest.param("urn:sbproxy:identity:v1:***", id="not base64"),
        pytest.param(claims_uri(CLAIMS) + "=", id="padded"),
        pytest.param(_uri('{"node_id":"a"}'), id="fields missing"),
        pytest.param(_uri("[]"), id="not an object"),
        pytest.param(_uri('{"a":1,"a":2}'), id="a field twice"),
        pytest.param(
            _uri(
                '{"cluster_id":"c","identity_epoch":1,"labels":{},"node_id":"n","roles":["worker"],"schema_version":1,"server_name":"s","x":1}'
            ),
            id="unknown field",
        ),
        pytest.param(
            _uri(
                '{"cluster_id":"c","identity_epoch":0,"labels":{},"node_id":"n","roles":["worker"],"schema_version":1,"server_name":"s"}'
            ),
            id="epoch 0",
        ),
        pytest.param(
            _uri(
                '{"cluster_id":"c","identity_epoch":1,"labels":{},"node_id":"n","roles":["root"],"schema_version":1,"server_name":"s"}'
            ),
            id="unknown role",
        ),
    ],
)
def test_D21_claims_that_are_not_exactly_right_are_refused(uri: str) -> None:
    error = refusal(lambda: parse_claims(uri))
    assert isinstance(error, InputError)


def own_pki(ca: KeyPair, key: Any, *, uris: list[str], dns: list[str], subject: str = "gpu-a") -> str:
    """A certificate as a PKI of the user's own might issue it."""
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    issuer = x509.load_pem_x509_certificate(ca.certificate.encode())
    names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns]
    names += [x509.UniformResourceIdentifier(uri) for uri in uris]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(NOW - timedelta(days=1))
        .not_valid_after(NOW + timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH, x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)  # type: ignore[arg-type]
    )
    signer = load_pem_private_key(ca.key.reveal(), None)
    return builder.sign(signer, hashes.SHA256()).public_bytes(Encoding.PEM).decode()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("uris", "dns", "code"),
    [
        ([claims_uri(CLAIMS)], ["mesh", "gpu-a"], None),
        ([], ["mesh", "gpu-a"], "identity.claims_invalid"),
        ([claims_uri(CLAIMS)] * 2, ["mesh", "gpu-a"], "identity.claims_invalid"),
        ([claims_uri(CLAIMS)], ["mesh", "gpu-b"], "identity.claims_invalid"),
        ([claims_uri(CLAIMS)], ["gpu-a"], "identity.claims_invalid"),
    ],
)
def test_D21_a_certificate_of_an_own_PKI_says_who_the_node_is(
    ca: KeyPair, uris: list[str], dns: list[str], code: str | None
) -> None:
    private = generate_private_key()
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(private.reveal(), None)
    files = NodeIdentityFiles(own_pki(ca, key, uris=uris, dns=dns), ca.certificate)
    if code is None:
        assert verify_node_identity(files, key=private, now=NOW).attestation == "manual_pki"
    else:
        assert refusal(lambda: verify_node_identity(files, key=private, now=NOW)).code == code


# D22


@pytest.mark.parametrize("missing", ["identity", "authority_key", "revocations"])
def test_D22_one_file_alone_is_an_error(authority: Authority, missing: str) -> None:
    key = generate_private_key()
    files = installed(authority, key)
    kept = {name: getattr(files, name) for name in files.__slots__} | {missing: None}
    assert (
        refusal(lambda: verify_node_identity(NodeIdentityFiles(**kept), key=key, now=NOW)).code == "identity.incomplete"
    )


@pytest.mark.parametrize("name", ["identity.json", "authority-verifying.key"])
def test_D22_the_authority_itself_refuses_to_start_on_half_of_it(authority: Authority, name: str) -> None:
    (authority.directory / name).unlink()
    assert refusal(lambda: Authority.open(authority.directory)).code in ("identity.incomplete", "authority.incomplete")


def test_a_document_of_another_authority_or_certificate_is_refused(authority: Authority, tmp_path: Path) -> None:
    key, other_key = generate_private_key(), generate_private_key()
    files, other = installed(authority, key), installed(made(tmp_path / "other"), key)
    swapped = NodeIdentityFiles(files.certificate, files.ca, other.identity, files.authority_key, files.revocations)
    assert refusal(lambda: verify_node_identity(swapped, key=key, now=NOW)).code == "envelope.bad_signature"
    assert refusal(lambda: verify_node_identity(files, key=other_key, now=NOW)).code == "certificate.key_mismatch"
    newer = installed(authority, other_key)
    mixed = NodeIdentityFiles(newer.certificate, newer.ca, files.identity, files.authority_key, files.revocations)
    assert refusal(lambda: verify_node_identity(mixed, key=other_key, now=NOW)).code == "identity.mismatch"
    document = open_identity(str(files.identity), AuthorityKeys((authority.verifying_key,)))
    with pytest.raises(RefusedError):
        check_document(document, CLAIMS, certificate_sha256="0" * 64, now=NOW)


# The CA rollover


def test_a_rollover_never_leaves_a_host_that_another_does_not_trust(authority: Authority) -> None:
    first = authority.facts().issuer
    following = authority.begin_rollover(now=NOW)
    assert authority.begin_rollover(now=NOW) == following
    hosts: list[dict[str, Any]] = [{"ca": [first], "issuer": first} for _ in range(3)]
    steps: list[str | None] = []
    for _ in range(3):
        facts = authority.facts(hosts)
        steps.append(facts.rollover)
        for host in hosts:  # an apply reaches one host after the other
            host.update(ca=list(facts.ca), issuer=facts.issuer)
            assert all(one["issuer"] in other["ca"] for one in hosts for other in hosts)
            between = authority.facts(hosts)
            assert between.rollover in (
                facts.rollover,
                {"add": "reissue", "reissue": "remove"}.get(str(facts.rollover), "remove"),
            )
    assert steps == ["add", "reissue", "remove"]
    assert authority.finish_rollover(hosts, now=NOW)
    assert authority.facts(hosts).ca == (following,)
    assert not authority.finish_rollover(hosts, now=NOW)
    own = certificate_facts((authority.directory / "node.pem").read_text())
    assert (
        verify_leaf(
            (authority.directory / "node.pem").read_text(), authority.bundle([following]), server_name="mesh", now=NOW
        )
        == own
    )


def test_a_rollover_waits_for_the_last_host(authority: Authority) -> None:
    first = authority.facts().issuer
    following = authority.begin_rollover(now=NOW)
    late = {"ca": [first], "issuer": first}
    done = {"ca": [first, following], "issuer": first}
    assert authority.facts([done, late]).rollover == "add"
    assert not authority.finish_rollover([done, late], now=NOW)

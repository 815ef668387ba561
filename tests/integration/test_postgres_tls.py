"""The `postgres` backend over TCP: TLS whose name is checked, passwords, and a link that is cut under the lock."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sbctl.base.errors import LockedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.state.model import LockInfo
from sbctl.state.settings import StateSettings
from sbctl.state_backends.port import Ticket
from sbctl.state_backends.postgres import PostgresBackend
from tests.simulators.cut_link import cut_link
from tests.simulators.fleet import ManualClock
from tests.simulators.operator_world import until
from tests.simulators.ports import free_port
from tests.simulators.postgres_cluster import Cluster, postgres_cluster

pytestmark = pytest.mark.integration

PASSWORD = "correct horse battery"
HEAD = {"lineage": "L", "serial": 1}
RULES = """
local all all trust
hostssl all all 127.0.0.1/32 scram-sha-256
"""


@dataclass
class Server:
    """`wrong_ca` issued nothing here."""

    cluster: Cluster
    port: int
    ca: Path
    wrong_ca: Path

    def backend(
        self, password: str = PASSWORD, *, host: str = "127.0.0.1", port: int = 0, ca: Path | None = None
    ) -> PostgresBackend:
        address = f"postgresql://{host}:{port or self.port}/sbctl"
        return PostgresBackend(
            StateSettings("postgres", address, "ops", ca_file=str(ca or self.ca)), Secret(password.encode())
        )


def _issued(
    name: str, issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer[0].subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer is not None:
        names = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key if issuer is None else issuer[1], hashes.SHA256()), key


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    directory: Path = tmp_path_factory.mktemp("ca")
    authority, other = _issued("ca of the tests", None), _issued("another ca", None)
    leaf, key = _issued("database", authority)
    for name, (certificate, _) in (("ca.pem", authority), ("wrong.pem", other)):
        (directory / name).write_text(_pem(certificate))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    port = free_port()
    files = {"server.crt": _pem(leaf), "server.key": private, "pg_hba.conf": RULES}
    with postgres_cluster("-c listen_addresses=127.0.0.1 -c ssl=on", files, port=port) as cluster:
        cluster.sql(f"ALTER ROLE ops PASSWORD '{PASSWORD}'", "postgres")
        yield Server(cluster, port, directory / "ca.pem", directory / "wrong.pem")


@pytest.fixture
def fresh(server: Server) -> Server:
    server.cluster.sql("DROP SCHEMA IF EXISTS sbctl CASCADE")
    return server


def ticket(who: str) -> Ticket:
    clock = ManualClock()
    return Ticket.issue(LockInfo(who, 1, "sbctl apply", clock.now()), "there", clock)


def test_two_operators_share_a_state_over_tls(fresh: Server) -> None:
    with contextlib.closing(fresh.backend()) as one, contextlib.closing(fresh.backend()) as two:
        mine = ticket("a@desk")
        one.lock(mine)
        assert fresh.cluster.sql(
            "SELECT DISTINCT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE usename = 'ops'"
        ) == [(True,)]
        one.store(b"a document", head=HEAD, expected_sha256="")
        with pytest.raises(SbctlError, match="a@desk"):
            two.lock(ticket("b@desk"))
        one.unlock(mine.id)
        two.lock(ticket("b@desk"))
        assert two.fetch() == b"a document"


@pytest.mark.parametrize(
    ("case", "code", "said"),
    [
        ({"password": "wrong"}, "state.denied", "fleet.state.password"),
        ({"ca": "wrong"}, "state.server_untrusted", "fleet.state.ca_file"),
        ({"host": "localhost"}, "state.server_untrusted", "the name in the address"),
        ({"ca": "missing"}, "state.ca_file", "relative to sb.yml"),
        ({"port": "closed"}, "state.unreachable", "check the address"),
    ],
)  # fmt: skip
def test_who_cannot_get_in_is_told_why_and_no_password_is_shown(
    fresh: Server, tmp_path: Path, case: dict[str, str], code: str, said: str
) -> None:
    files = {"wrong": fresh.wrong_ca, "missing": tmp_path / "missing.pem"}
    password = case.get("password", PASSWORD)
    backend = fresh.backend(
        password,
        host=case.get("host", "127.0.0.1"),
        port=free_port() if "port" in case else 0,
        ca=files.get(case.get("ca", "")),
    )
    with pytest.raises(SbctlError) as caught, contextlib.closing(backend):
        backend.fetch()
    assert caught.value.code == code, caught.value
    assert said in str(caught.value.next_step)
    assert password not in f"{caught.value} {caught.value.next_step}"


def test_a_server_without_tls_gets_no_password(tmp_path: Path, server: Server) -> None:
    port = free_port()
    rules = {"pg_hba.conf": "local all all trust\nhost all all 127.0.0.1/32 password\n"}
    with (
        postgres_cluster("-c listen_addresses=127.0.0.1", rules, port=port),
        pytest.raises(SbctlError) as caught,
        contextlib.closing(server.backend(port=port)) as backend,
    ):
        backend.fetch()
    assert caught.value.code == "state.server_untrusted"
    assert "does not support SSL" in caught.value.message


def test_a_link_cut_under_the_lock_stops_the_writer_and_frees_the_lock(fresh: Server) -> None:
    with cut_link("127.0.0.1", fresh.port) as link, contextlib.closing(fresh.backend(port=link.port)) as cut:
        cut.lock(ticket("a@desk"))
        cut.store(b"first", head=HEAD, expected_sha256="")
        link.cut_after(0)
        with pytest.raises(LockedError) as caught:
            cut.store(b"second", head=HEAD, expected_sha256="")
        assert caught.value.code == "state.lock_lost"
        with contextlib.closing(fresh.backend()) as other:

            def taken() -> bool:
                with contextlib.suppress(SbctlError):
                    other.lock(ticket("b@desk"))
                    return True
                return False

            until(taken, "the lock of a vanished holder is free")
            assert other.fetch() == b"first"

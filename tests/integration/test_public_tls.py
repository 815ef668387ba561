"""TLS on the API of a real runtime: a renewal under load, what http still offers, and what is refused."""

from __future__ import annotations

import base64
import http.client
import json
import os
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.node.identity_messages import RuntimeCertificate
from sbctl.node.paths import PREFIX_VARIABLE
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.public_tls_ops import install_public_certificate
from sbctl.runtime.public_tls_files import pair_path
from sbctl.trust.bundle import OriginMember
from tests.simulators.public_ca import Issued, issue, public_ca
from tests.simulators.runtime_world import (
    LINEAGE,
    Operator,
    RuntimeProcess,
    content,
    engine_program,
    member,
    prepare_node,
    running,
    weights,
)

pytestmark = pytest.mark.integration

NAME = "ai.example.com"


class Client:
    """Knows the CA, and connects to the runtime whatever the name resolves to."""

    def __init__(self, runtime: RuntimeProcess) -> None:
        url = runtime.status()["https_url"]
        assert url.startswith("https://127.0.0.1:")
        self.port = int(url.rpartition(":")[2])
        self.context = ssl.create_default_context(cadata=public_ca().decode())
        self.context.set_alpn_protocols(["h2", "http/1.1"])

    def shake(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=30)
        try:
            return (context or self.context).wrap_socket(plain, server_hostname=NAME)
        except BaseException:
            plain.close()
            raise

    def fingerprint(self) -> str:
        from hashlib import sha256

        with self.shake() as secured:
            shown = secured.getpeercert(binary_form=True)
        assert shown is not None
        return sha256(shown).hexdigest()

    def ask(self, connection: http.client.HTTPConnection | None = None) -> int:
        own = connection is None
        if connection is None:
            connection = self.connection()
        try:
            body = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True})
            connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json", "Host": NAME})
            response = connection.getresponse()
            data = response.read()
            assert data.endswith(b"data: [DONE]\n\n"), data
            return response.status
        finally:
            if own:
                connection.close()

    def connection(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(NAME, timeout=30)
        connection.sock = self.shake()
        return connection


def install(prefix: Path, made: Issued) -> dict[str, Any]:
    """As `runtime.certificate` does on a host."""
    from sbctl.node.paths import node_paths

    environ = {PREFIX_VARIABLE: str(prefix)}
    paths = node_paths(os.getuid(), environ)
    context = NodeContext(paths, environ, os.getuid(), secrets={"tls_key": Secret(made.key)})
    return install_public_certificate(context, RuntimeCertificate(lineage=LINEAGE, chain=made.chain.decode()))


def until(condition: Callable[[], bool], deadline_s: float = 60.0) -> None:
    end_s = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end_s, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    prepare_node(tmp_path, Operator(), https_bind_port=0)
    return tmp_path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, RuntimeProcess, Client]]:
    """A runtime with TLS, one model, and an origin that is served over https alone."""
    operator = Operator()
    prepare_node(tmp_path, operator, https_bind_port=0)
    install(tmp_path, issue(NAME))
    origins = {NAME: OriginMember(models={"m": "q"}, default_model="m", force_ssl=True)}
    desired = content({"q": member(weights(tmp_path), engine_program(tmp_path))}, origins=origins)
    with running(tmp_path) as runtime:
        assert "result" in runtime.apply(operator.bundle(desired, 1), None)
        yield tmp_path, runtime, Client(runtime)


def test_three_renewals_under_load_lose_no_request_and_restart_nothing(
    served: tuple[Path, RuntimeProcess, Client],
) -> None:
    prefix, runtime, client = served
    pid, engines = runtime.status()["pid"], runtime.engine_pids()
    answers: list[int] = []
    faults: list[BaseException] = []
    stop = threading.Event()

    def load(*, keeps: bool) -> None:
        connection = client.connection() if keeps else None
        while not stop.is_set():
            try:
                answers.append(client.ask(connection))
            except Exception as error:
                faults.append(error)
                return
        if connection is not None:
            connection.close()

    threads = [threading.Thread(target=load, kwargs={"keeps": keeps}) for keeps in (True, False, False)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        done = len(answers)
        made = issue(NAME)
        result = install(prefix, made)
        assert result["used"]
        assert client.fingerprint() == result["fingerprint"] == runtime.status()["tls"]["used"]
        until(lambda done=done: bool(faults) or len(answers) > done + 20)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not faults
    assert set(answers) == {200}
    assert (runtime.status()["pid"], runtime.engine_pids()) == (pid, engines)


def test_http_leads_to_https_and_refuses_what_came_in_the_clear(served: tuple[Path, RuntimeProcess, Client]) -> None:
    _, runtime, client = served
    status, _, headers = runtime.http("GET", "/v1/models", headers={"Host": NAME})
    assert (status, headers["Location"]) == (308, f"https://{NAME}:{client.port}/v1/models")
    for method, body, extra in (
        ("POST", {"messages": []}, {}),
        ("GET", None, {"Authorization": "Bearer canary-key"}),
    ):
        path = "/v1/chat/completions" if method == "POST" else "/v1/models"
        status, answer, _ = runtime.http(method, path, body, {"Host": NAME, **extra})
        assert (status, answer["error"]["code"]) == (403, "https_required")
        assert "canary" not in json.dumps(answer)
    assert runtime.http("GET", "/healthz")[0] == 200
    assert client.ask() == 200


def test_only_modern_handshakes_and_none_is_waited_for_without_end(served: tuple[Path, RuntimeProcess, Client]) -> None:
    _, _, client = served
    with client.shake() as secured:
        assert (secured.version(), secured.selected_alpn_protocol()) == ("TLSv1.3", "http/1.1")
    old = ssl.create_default_context(cadata=public_ca().decode())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, OSError)):
        client.shake(old).close()
    weak = ssl.create_default_context(cadata=public_ca().decode())
    weak.maximum_version = ssl.TLSVersion.TLSv1_2
    weak.set_ciphers("ECDHE-ECDSA-AES128-SHA256")
    with pytest.raises((ssl.SSLError, OSError)):
        client.shake(weak).close()
    silent = [socket.create_connection(("127.0.0.1", client.port), timeout=60) for _ in range(300)]
    try:
        assert client.ask() == 200
        assert _all_cut(silent)
    finally:
        for one in silent:
            one.close()


def _all_cut(connections: list[socket.socket]) -> bool:
    """Whether each was closed by the other side, within a minute."""
    for one in connections:
        try:
            if one.recv(1):
                return False
        except ConnectionResetError:
            continue
        except TimeoutError:
            return False
    return True


def test_what_cannot_be_shown_changes_nothing(served: tuple[Path, RuntimeProcess, Client]) -> None:
    prefix, runtime, client = served
    before, installed = client.fingerprint(), pair_path(runtime.paths).read_bytes()
    good, other = issue(NAME), issue(NAME)
    ended = issue(NAME, begins=datetime.now(UTC) - timedelta(days=90), ends=datetime.now(UTC) - timedelta(days=1))
    for bad, code in (
        (Issued(good.chain, other.key, good.leaf, good.intermediate), "tls.key_mismatch"),
        (ended, "tls.expired"),
    ):
        with pytest.raises(InputError) as caught:
            install(prefix, bad)
        assert caught.value.code == code
    status, answer = runtime.call("POST", "/control/v1/tls", {"pem": good.chain.decode() + other.key.decode()})
    assert (status, json.loads(answer)["error"]["code"]) == (409, "tls.key_mismatch")
    assert (client.fingerprint(), pair_path(runtime.paths).read_bytes()) == (before, installed)
    assert runtime.status()["tls"]["problem"]


def test_a_runtime_without_a_usable_certificate_serves_http_and_says_why(node: Path) -> None:
    with running(node) as runtime:
        told = runtime.status()["tls"]
        assert told["used"] is None
        assert told["problem"]
        assert runtime.http("GET", "/healthz")[0] == 200
        client = Client(runtime)
        with pytest.raises((ssl.SSLError, OSError)):
            client.shake().close()
        made = issue(NAME)
        assert install(node, made)["used"]
        assert client.fingerprint() == runtime.status()["tls"]["used"]


def test_files_that_somebody_else_keeps_are_followed(tmp_path: Path) -> None:
    live = tmp_path / "live"
    live.mkdir()

    def renew(number: int) -> None:
        """As certbot does: new files, then links that are replaced one after the other."""
        made = issue(NAME)
        for name, data in (("fullchain", made.chain), ("privkey", made.key)):
            (tmp_path / f"{name}{number}.pem").write_bytes(data)
            (live / f".{name}").symlink_to(tmp_path / f"{name}{number}.pem")
            (live / f".{name}").rename(live / f"{name}.pem")

    renew(1)
    prepare_node(
        tmp_path,
        Operator(),
        https_bind_port=0,
        tls_cert_file=str(live / "fullchain.pem"),
        tls_key_file=str(live / "privkey.pem"),
    )
    with running(tmp_path) as runtime:
        client = Client(runtime)
        until(lambda: runtime.status()["tls"]["used"] is not None)
        first = client.fingerprint()
        renew(2)
        until(lambda: runtime.status()["tls"]["used"] != first)
        assert client.fingerprint() == runtime.status()["tls"]["used"] != first
        (live / "privkey.pem").write_bytes(b"gone wrong")
        until(lambda: runtime.status()["tls"]["problem"] is not None)
        assert client.fingerprint() == runtime.status()["tls"]["used"]


def test_the_key_is_in_one_file_and_nowhere_else(served: tuple[Path, RuntimeProcess, Client]) -> None:
    """Canary: a line of the private key, over every file of the node, its log, its status and its processes' arguments."""
    prefix, runtime, _ = served
    made = issue(NAME)
    install(prefix, made)
    with pytest.raises(SbctlError):
        install(prefix, Issued(made.chain, issue(NAME).key, made.leaf, made.intermediate))
    canary = made.key.splitlines()[1]
    found = [path for path in prefix.rglob("*") if path.is_file() and canary in path.read_bytes()]
    assert found == [pair_path(runtime.paths)]
    assert found[0].stat().st_mode & 0o777 == 0o600
    assert canary.decode() not in json.dumps(runtime.status())
    for pid in (runtime.process.pid, *runtime.engine_pids()):
        for name in ("cmdline", "environ"):
            assert canary not in Path(f"/proc/{pid}/{name}").read_bytes()


def test_the_admin_api_over_tls_alone_by_the_names_of_its_certificate(tmp_path: Path) -> None:
    prepare_node(tmp_path, Operator(), admin_enabled=True, admin_tls=True, admin_bind="0.0.0.0")
    install(tmp_path, issue(NAME))
    basic = "Basic " + base64.b64encode(b"admin:correct horse").decode()
    with running(tmp_path) as runtime:
        url = runtime.status()["admin_url"]
        assert url.startswith("https://")
        assert runtime.status()["https_url"] is None
        port = int(url.rpartition(":")[2])
        context = ssl.create_default_context(cadata=public_ca().decode())
        seen = []
        for host in (f"{NAME}:{port}", f"127.0.0.1:{port}", f"evil.com:{port}"):
            connection = http.client.HTTPConnection(NAME, timeout=30)
            connection.sock = context.wrap_socket(
                socket.create_connection(("127.0.0.1", port), timeout=30), server_hostname=NAME
            )
            connection.request("GET", "/metrics", headers={"Host": host, "Authorization": basic})
            answer = connection.getresponse()
            text = answer.read().decode()
            seen.append(answer.status)
            connection.close()
        assert seen == [200, 200, 403], text
        plain = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        plain.request("GET", "/healthz")
        with pytest.raises((http.client.HTTPException, OSError)):
            plain.getresponse()
        plain.close()


def test_no_admin_api_off_loopback_without_tls(tmp_path: Path) -> None:
    prepare_node(tmp_path, Operator(), admin_enabled=True, admin_bind="0.0.0.0")
    runtime = RuntimeProcess(tmp_path)
    assert runtime.process.wait(60) != 0
    assert "runtime.admin_needs_tls" in runtime.log.read_text()

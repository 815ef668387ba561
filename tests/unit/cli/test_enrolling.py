"""`cluster token …` and `cluster enroll`: what their words mean, and where a token may come from."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.base.secret import Secret
from sbctl.cli import enrolling
from sbctl.cli.app import app
from sbctl.cli.enrolling import enroll, grant_of, server_of
from sbctl.trust.enrollment_client import Authenticated, Server
from sbctl.trust.enrollment_messages import EnrollmentRequest
from sbctl.trust.join_token import JoinToken
from tests.simulators.enrollment_world import authority_in, now

pytestmark = pytest.mark.flow

SERVER = Server("127.0.0.1", 1, "mesh")
TOKENS = [JoinToken("ab" * 32, f"{number:016x}", Secret(b"s" * 32)) for number in range(3)]
TEXTS = [token.text().reveal().decode() for token in TOKENS]


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    capsys.readouterr()
    assert int(app(args=[*words, "--format", "json"], prog_name="sbctl", standalone_mode=False)) == 0
    return json.loads(capsys.readouterr().out)


def test_a_token_is_made_listed_and_revoked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = ("--dir", str(authority_in(tmp_path / "c").authority.directory))
    made = told(
        capsys, "cluster", "token", "create", *place, "--label", "zone=a", "--ttl-secs", "60", "--node-id", "gpu-a"
    )
    assert made["constraints"] == {"allowed_roles": ["worker"], "labels": {"zone": "a"}, "node_id": "gpu-a"}
    assert made["token"].startswith("sbj1.")
    assert made["token_id"] in made["token"]
    assert 0 <= made["expires_at_unix_secs"] - now().timestamp() <= 60
    (listed,) = told(capsys, "cluster", "token", "list", *place)["tokens"]
    assert (listed["token_id"], listed["state"]) == (made["token_id"], "open")
    assert made["token"].rpartition(".")[2] not in json.dumps(listed)
    assert told(capsys, "cluster", "token", "revoke", made["token_id"], *place)["state"] == "revoked"
    assert int(app(args=["cluster", "token", "list", *place], prog_name="sbctl", standalone_mode=False)) == 0
    assert "revoked" in capsys.readouterr().out
    assert int(app(args=["cluster", "token", "create", *place], prog_name="sbctl", standalone_mode=False)) == 0
    assert JoinToken.parse(capsys.readouterr().out.strip())
    with pytest.raises(SbctlError) as caught:
        app(args=["cluster", "token", "revoke", "0" * 16, *place], prog_name="sbctl", standalone_mode=False)
    assert caught.value.code == "enroll.token_unknown"


@pytest.mark.parametrize(
    ("file", "environ", "stdin", "used"),
    [
        (0, {}, None, 0),
        (0, {"SBCTL_CLUSTER_TOKEN": 1}, 2, 0),
        (None, {"SBCTL_CLUSTER_TOKEN": 1}, 2, 1),
        (None, {"SBPROXY_CLUSTER_TOKEN": 1}, None, 1),
        (None, {"SBCTL_CLUSTER_TOKEN": 1, "SBPROXY_CLUSTER_TOKEN": 1}, None, 1),
        ("-", {"SBCTL_CLUSTER_TOKEN": 1}, 2, 2),
        (None, {}, 2, 2),
        (None, {}, None, "enroll.no_token"),
        (None, {"SBCTL_CLUSTER_TOKEN": 1, "SBPROXY_CLUSTER_TOKEN": 2}, None, "usage"),
        ("missing", {}, None, "file.missing"),
    ],
)
def test_a_token_comes_from_a_file_a_variable_or_stdin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: Any, environ: dict[str, int], stdin: int | None, used: Any
) -> None:
    seen: list[str] = []

    async def no_server(_server: Server, token: JoinToken, asked: EnrollmentRequest, **_more: Any) -> Authenticated:
        assert asked.token == token.text().reveal().decode()
        seen.append(asked.token)
        raise UnreachableError("enroll.unreachable", "nobody there")

    monkeypatch.setattr(enrolling, "request_identity", no_server)
    (tmp_path / "token").write_text(f"\n{TEXTS[0]}\n")
    token_file = {0: tmp_path / "token", "-": Path("-"), "missing": tmp_path / "none"}.get(file)
    with pytest.raises(SbctlError) as caught:
        enroll(
            SERVER,
            grant_of("gpu-a", ["worker"], []),
            tmp_path / "out",
            token_file=token_file,
            ca_file=None,
            clock=SYSTEM_CLOCK,
            environ={name: TEXTS[number] for name, number in environ.items()},
            stdin=_Terminal() if stdin is None else io.StringIO(f"{TEXTS[stdin]}\n"),
        )
    if isinstance(used, int):
        assert seen == [TEXTS[used]]
        assert (tmp_path / ".out.enrolling" / "node-key.pem").is_file(), "the key is kept for the next try"
    else:
        assert caught.value.code == used
        assert not seen
        assert not (tmp_path / ".out.enrolling").exists()


@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("https://gw-a", "gw-a", 443),
        ("https://10.0.0.1:8443/", "10.0.0.1", 8443),
        ("https://[fd00::1]:8443/a/b?c#d", "fd00::1", 8443),
    ],
)
def test_of_an_address_host_and_port_count(url: str, host: str, port: int) -> None:
    server = server_of(url, "mesh")
    assert (server.host, server.port) == (host, port)


@pytest.mark.parametrize(
    ("url", "name"), [("https://user@gw-a", "mesh"), ("https://u:p@gw-a", "mesh"), ("https://gw-a", "no name")]
)
def test_an_address_with_credentials_or_a_name_that_is_none_is_wrong_usage(url: str, name: str) -> None:
    with pytest.raises(SbctlError) as caught:
        server_of(url, name)
    assert caught.value.code == "usage"


@pytest.mark.parametrize("stage", ["link", "open to others"])
def test_a_private_key_is_made_only_where_nobody_else_reads(tmp_path: Path, stage: str) -> None:
    place = tmp_path / ".out.enrolling"
    if stage == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "elsewhere")
    else:
        place.mkdir()
        place.chmod(0o755)
    with pytest.raises(SbctlError) as caught:
        enroll(
            SERVER, grant_of("gpu-a", ["worker"], []), tmp_path / "out", token_file=None, ca_file=None,
            clock=SYSTEM_CLOCK, environ={}, stdin=io.StringIO(TEXTS[0]),
        )  # fmt: skip
    assert caught.value.code == "enroll.unsafe_stage"


def test_what_stands_there_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(SbctlError) as caught:
        enroll(
            SERVER, grant_of("gpu-a", ["worker"], []), tmp_path / "out", token_file=None, ca_file=None,
            clock=SYSTEM_CLOCK, environ={}, stdin=io.StringIO(TEXTS[0]),
        )  # fmt: skip
    assert caught.value.code == "enroll.exists"

"""Every way to a real host: through jumps, as root through sudo, with a key of the agent, with a certificate."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.base.secret import Secret
from sbctl.node.snapshot import NodeSnapshot
from sbctl.remote.observe import observe_fleet
from sbctl.remote.session import HostSession, open_session
from sbctl.remote.ssh_links import SshLinks
from tests.lab.fixture import ROOT, SUDO_PASSWORD, Lab, LabHost

pytestmark = [pytest.mark.lab, pytest.mark.timeout(240)]

DEADLINE_S = 60.0
MIB = 1024 * 1024


def _password(_reference: str, _what: str) -> Secret:
    return Secret(SUDO_PASSWORD.encode())


def _wrong(_reference: str, _what: str) -> Secret:
    return Secret(b"wrong horse")


def _jump(host: LabHost, user: str = "ops") -> Jump:
    return replace(host.connection(user).path(host.name)[-1], name=f"via-{host.name}")


def _snapshot(host: LabHost, connection: Connection, **more: object) -> NodeSnapshot:
    session = open_session(host.name, connection, clock=SYSTEM_CLOCK, **more)  # type: ignore[arg-type]
    try:
        return session.snapshot(DEADLINE_S)
    finally:
        session.close()


def _failure(host: LabHost, connection: Connection, **more: object) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        _snapshot(host, connection, **more)
    return caught.value


@pytest.fixture
def hidden(lab: Lab) -> Iterator[LabHost]:
    """h3, which only its siblings reach."""
    lab.hide(lab.hosts[2])
    yield lab.hosts[2]
    lab.show(lab.hosts[2])


def _connections(host: LabHost) -> set[str]:
    """Where SSH connections that stand come from, address and port, as the host sees them; the one that asks is not among them."""
    own, *lines = host.ssh("echo $SSH_CONNECTION; ss -Htn state established '( sport = :22 )'").splitlines()
    address, port = own.split()[:2]
    return {line.split()[3] for line in lines} - {f"{address}:{port}"}


def test_a_hidden_host_is_reached_through_a_jump_and_not_without(lab: Lab, hidden: LabHost) -> None:
    connection = replace(hidden.connection(), jumps=(_jump(lab.hosts[0]),))
    assert _snapshot(hidden, connection).host.hostname == "h3"
    links = SshLinks(SYSTEM_CLOCK)
    with pytest.raises(UnreachableError) as caught:
        links.connect(hidden.connection().path("h3"), deadline_s=1)
    assert caught.value.code == "ssh.no_answer"


def test_a_chain_of_two_jumps_ends_at_the_right_host(lab: Lab, hidden: LabHost) -> None:
    connection = replace(hidden.connection("deploy"), jumps=(_jump(lab.hosts[0]), _jump(lab.hosts[1], "deploy")))
    found = _snapshot(hidden, replace(connection, become="sudo"))
    assert (found.host.hostname, found.host.uid) == ("h3", 0)


@pytest.mark.parametrize("broken", ["first", "second", "host"])
def test_the_hop_with_another_key_is_named_and_nothing_is_sent_beyond_it(
    lab: Lab, hidden: LabHost, broken: str
) -> None:
    other = lab.hosts[2].fingerprint if broken != "host" else lab.hosts[0].fingerprint
    jumps = [_jump(lab.hosts[0]), _jump(lab.hosts[1])]
    connection = hidden.connection()
    if broken == "host":
        connection = replace(connection, host_keys=(other,))
    else:
        jumps[broken == "second"] = replace(jumps[broken == "second"], host_keys=(other,))
    error = _failure(hidden, replace(connection, jumps=tuple(jumps)))
    assert error.code == "ssh.host_key_changed"
    assert not error.retryable
    assert {"first": "jump via-h1", "second": "jump via-h2", "host": "h3 (ssh"}[broken] in str(error.place)


def test_hosts_behind_one_jump_share_its_connection(lab: Lab, hidden: LabHost) -> None:
    jump = _jump(lab.hosts[0])
    hosts = {
        f"host-{number}": replace(host.connection(), jumps=(jump,))
        for number, host in enumerate([hidden, lab.hosts[1]] * 5)
    }
    before = _connections(lab.hosts[0])
    with observe_fleet(hosts, clock=SYSTEM_CLOCK, deadline_s=DEADLINE_S) as observed:
        assert {host: error.message for host, error in observed.unreachable.items()} == {}
        assert len(_connections(lab.hosts[0]) - before) == 1


def test_a_host_that_the_jump_does_not_reach_says_so_while_its_neighbours_answer(lab: Lab, hidden: LabHost) -> None:
    jump = _jump(lab.hosts[0])
    nobody = replace(hidden.connection(), port=2, jumps=(jump,))
    with observe_fleet(
        {"nobody": nobody, "h3": replace(hidden.connection(), jumps=(jump,))}, clock=SYSTEM_CLOCK
    ) as observed:
        assert set(observed.snapshots) == {"h3"}
        error = observed.unreachable["nobody"]
    assert (error.code, error.retryable) == ("ssh.jump_cannot_reach", True)
    assert "through via-h1" in str(error.place)


def test_a_jump_that_may_not_forward_is_told_what_to_allow(lab: Lab, hidden: LabHost) -> None:
    first = lab.hosts[0]
    first.ssh("echo 'AllowTcpForwarding no' > /etc/ssh/sshd_config.d/aa.conf; systemctl reload ssh")
    try:
        error = _failure(hidden, replace(hidden.connection(), jumps=(_jump(first),)))
    finally:
        first.ssh("rm /etc/ssh/sshd_config.d/aa.conf; systemctl reload ssh")
    assert (error.code, error.retryable) == ("ssh.jump_forbids", False)
    assert "AllowTcpForwarding" in (error.next_step or "")


# sudo


def _become(host: LabHost, user: str, *, password: bool = False) -> Connection:
    return replace(host.connection(user), become="sudo", become_password="prompt" if password else "")


@pytest.mark.parametrize("user", ["deploy", "pw"])
def test_E6_a_login_becomes_root_with_and_without_a_password(lab: Lab, user: str) -> None:
    found = _snapshot(lab.hosts[0], _become(lab.hosts[0], user, password=user == "pw"), secrets=_password)
    assert found.host.uid == 0
    assert found.paths is not None
    assert found.paths.opt == "/opt/sbctl"


def test_E6_a_password_that_sudo_does_not_ask_for_is_sent_nowhere(lab: Lab) -> None:
    found = _snapshot(lab.hosts[0], _become(lab.hosts[0], "deploy", password=True), secrets=_password)
    assert found.host.uid == 0
    assert SUDO_PASSWORD not in lab.hosts[0].ssh(
        "journalctl -b --no-pager; cat /home/deploy/.*history 2>/dev/null; true"
    )


@pytest.mark.parametrize(
    ("user", "password", "rule", "code"),
    [
        ("ops", False, "", "ssh.become_not_allowed|ssh.become_password_needed"),
        ("pw", False, "", "ssh.become_password_needed"),
        ("pw", True, "", "ssh.become_password_wrong"),
        ("deploy", False, "Defaults:deploy requiretty", "ssh.become_needs_terminal"),
    ],
)
def test_E6_what_sudo_wants_is_told_apart(lab: Lab, user: str, password: bool, rule: str, code: str) -> None:
    host = lab.hosts[0]
    host.ssh(f"echo '{rule}' > /etc/sudoers.d/zz; chmod 440 /etc/sudoers.d/zz")
    try:
        error = _failure(host, _become(host, user, password=password), secrets=_wrong)
    finally:
        host.ssh("rm /etc/sudoers.d/zz")
    assert error.code in code.split("|")
    assert not error.retryable
    assert error.next_step
    assert "wrong horse" not in f"{error} {error.next_step}"


def test_E6_a_lecture_is_passed_over(lab: Lab) -> None:
    host = lab.hosts[0]
    host.ssh("echo 'Defaults lecture=always' > /etc/sudoers.d/zz; chmod 440 /etc/sudoers.d/zz")
    try:
        assert _snapshot(host, _become(host, "pw", password=True), secrets=_password).host.uid == 0
    finally:
        host.ssh("rm /etc/sudoers.d/zz")


@pytest.fixture
def claimed(lab: Lab) -> Iterator[LabHost]:
    lab.pristine(lab.hosts[0])
    yield lab.hosts[0]
    lab.pristine(lab.hosts[0])


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("weights") / "weights"
    path.write_bytes(os.urandom(MIB) * 24)
    return path


def _put(session: HostSession, source: Path, seen: list[int]) -> str:
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    session.put(digest, source, deadline_s=DEADLINE_S, progress=lambda done, _total: seen.append(done))
    return digest


def test_E9_an_upload_by_a_login_lands_in_a_directory_of_root_alone(lab: Lab, claimed: LabHost, weights: Path) -> None:
    session = open_session("h1", _become(claimed, "pw", password=True), clock=SYSTEM_CLOCK, secrets=_password)
    seen: list[int] = []
    digest = _put(session, weights, seen)
    session.close()
    blob = f"/var/lib/sbctl/staging/blobs/{digest}"
    assert claimed.ssh(f"sha256sum < {blob}").split()[0] == digest
    assert claimed.ssh("stat -c '%U %a' /var/lib/sbctl/staging /var/lib/sbctl/staging/blobs").split() == [
        "root", "700", "root", "700",
    ]  # fmt: skip
    assert claimed.ssh(f"cat {blob}", user="pw", check=False) == ""
    assert seen[-1] == weights.stat().st_size


def test_E9_a_link_in_the_place_of_a_cut_upload_is_not_followed(claimed: LabHost, weights: Path) -> None:
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    claimed.ssh(
        "install -d -m 755 /var/lib/sbctl; install -d -m 700 /var/lib/sbctl/staging /var/lib/sbctl/staging/blobs;"
        f"echo precious > /root/precious; ln -s /root/precious /var/lib/sbctl/staging/blobs/{digest}.part"
    )
    session = open_session("h1", _become(claimed, "deploy"), clock=SYSTEM_CLOCK)
    with pytest.raises(SbctlError):
        _put(session, weights, [])
    session.close()
    assert claimed.ssh("cat /root/precious") == "precious\n"


def test_an_upload_as_root_goes_on_where_a_cut_ended_it(lab: Lab, claimed: LabHost, weights: Path) -> None:
    half = weights.stat().st_size // 2
    connection = _become(claimed, "deploy")
    session = open_session("h1", connection, clock=SYSTEM_CLOCK)
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()

    def power_loss(done: int, _total: int | None) -> None:
        if done >= half:
            lab.kill(claimed)

    with pytest.raises(SbctlError) as caught:
        session.put(digest, weights, deadline_s=DEADLINE_S, progress=power_loss)
    assert caught.value.retryable
    lab.start(claimed)
    there = int(claimed.ssh(f"stat -c %s /var/lib/sbctl/staging/blobs/{digest}.part"))
    seen: list[int] = []
    _put(session, weights, seen)
    session.close()
    assert there > 0
    assert seen[0] > there


def test_a_full_disk_ends_an_upload_as_root_with_the_host_and_the_path(claimed: LabHost, weights: Path) -> None:
    claimed.ssh("install -d -m 755 /var/lib/sbctl; mount -t tmpfs -o size=30m,mode=755 small /var/lib/sbctl")
    session = open_session("h1", _become(claimed, "deploy"), clock=SYSTEM_CLOCK)

    def fill(done: int, _total: int | None) -> None:
        if done < MIB:
            claimed.ssh("head -c 25000000 /dev/zero > /var/lib/sbctl/filler || true")

    try:
        with pytest.raises(SbctlError) as caught:
            session.put(hashlib.sha256(weights.read_bytes()).hexdigest(), weights, deadline_s=DEADLINE_S, progress=fill)
    finally:
        session.close()
        claimed.ssh("umount -l /var/lib/sbctl")
    assert caught.value.code == "disk.full"
    assert "h1" in str(caught.value.place)


# keys


@pytest.fixture
def agent(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An agent with three keys, the last of which the hosts know: comments decoy-1, decoy-2, operator."""
    socket = tmp_path / "agent"
    with subprocess.Popen(
        ["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as running:
        try:
            monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
            for name in ("decoy-1", "decoy-2"):
                subprocess.run(
                    ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(tmp_path / name)], check=True
                )
            keys = [str(tmp_path / "decoy-1"), str(tmp_path / "decoy-2"), lab.hosts[0].identity_file]
            for _ in range(600):
                if socket.exists():
                    break
                running.poll()
                os.sched_yield()
            subprocess.run(["ssh-add", "-q", *keys], check=True, timeout=60, stderr=subprocess.DEVNULL)
            yield socket
        finally:
            running.terminate()
            running.wait(30)


def _by_agent(host: LabHost, key: str) -> Connection:
    return replace(host.connection(), identity_file="", agent_key=key)


@pytest.mark.parametrize("name", ["comment", "fingerprint"])
def test_E14_one_key_of_the_agent_is_offered_and_no_other(lab: Lab, agent: Path, name: str) -> None:
    host = lab.hosts[0]
    shown = subprocess.run(["ssh-add", "-l"], check=True, capture_output=True, text=True).stdout
    key = (
        "operator" if name == "comment" else next(line for line in shown.splitlines() if "operator" in line).split()[1]
    )
    assert _snapshot(host, _by_agent(host, key)).host.hostname == "h1"
    refused = _failure(host, _by_agent(host, "decoy-1"))
    assert refused.code == "ssh.authentication_failed"
    assert "decoy-1" in refused.message


def test_an_agent_without_the_key_says_which_it_has(lab: Lab, agent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    error = _failure(lab.hosts[0], _by_agent(lab.hosts[0], "somebody"))
    assert error.code == "ssh.agent_key_missing"
    assert "decoy-1" in error.message
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent) + ".gone")
    assert _failure(lab.hosts[0], _by_agent(lab.hosts[0], "operator")).code == "ssh.agent_unavailable"


def _signed(directory: Path, principals: str, *more: str) -> tuple[str, str]:
    key = directory / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    sign = ["ssh-keygen", "-q", "-s", str(ROOT / "user_ca"), "-I", "operator@test", "-n", principals, *more]
    subprocess.run([*sign, f"{key}.pub"], check=True)
    moved = directory / "certificate.pub"
    (directory / "id-cert.pub").rename(moved)
    return str(key), str(moved)


def test_a_certificate_lets_a_key_in_that_no_host_knows(lab: Lab, tmp_path: Path) -> None:
    key, certificate = _signed(tmp_path, "root")
    connection = replace(lab.hosts[0].connection(), identity_file=key)
    assert _failure(lab.hosts[0], connection).code == "ssh.authentication_failed"
    found = _snapshot(lab.hosts[0], replace(connection, certificate_file=certificate))
    assert found.host.uid == 0


@pytest.mark.parametrize("flaw", ["expired", "other principal"])
def test_a_certificate_that_is_not_for_this_login_points_to_how_to_read_it(lab: Lab, tmp_path: Path, flaw: str) -> None:
    more = ["-V", "20200101:20200102"] if flaw == "expired" else []
    key, certificate = _signed(tmp_path, "root" if flaw == "expired" else "nobody", *more)
    connection = replace(lab.hosts[0].connection(), identity_file=key, certificate_file=certificate)
    error = _failure(lab.hosts[0], connection)
    assert error.code == "ssh.authentication_failed"
    assert "ssh-keygen -Lf" in (error.next_step or "")


def test_a_key_with_a_passphrase_is_opened_once_for_all_hosts(lab: Lab, tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.write_bytes(Path(lab.hosts[0].identity_file).read_bytes())
    key.chmod(0o600)
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "open sesame", "-f", str(key)], check=True)
    asked: list[str] = []

    def secrets(reference: str, _what: str) -> Secret:
        asked.append(reference)
        return Secret(b"open sesame")

    hosts = {
        host.name: replace(host.connection(), identity_file=str(key), passphrase="env:PASSPHRASE") for host in lab.hosts
    }
    with observe_fleet(hosts, clock=SYSTEM_CLOCK, deadline_s=DEADLINE_S, secrets=secrets) as observed:
        assert set(observed.snapshots) == {"h1", "h2", "h3"}
    assert asked == ["env:PASSPHRASE"]
    assert _failure(lab.hosts[0], hosts["h1"], secrets=_wrong).code == "ssh.passphrase_wrong"

"""What the system's ssh is told for a shell on a host."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import InputError, RefusedError
from sbctl.remote.system_ssh import KnownHop, known_hops, ssh_configuration, write_ssh_files
from tests.simulators.hostile_ssh import HostileSsh
from tests.simulators.ssh_keys import ed25519_key

KEY = ed25519_key("a")
WAY = (
    KnownHop(Jump("bastion", "bastion.corp", 2222, "hop"), (KEY.text,), "/keys/hop"),
    KnownHop(
        Jump("-oProxyCommand=x", "fe80::1%eth0", 22, "ops", certificate_file="/c with space"), (KEY.text,), "~/.ssh/id"
    ),
)


def test_every_hop_has_its_own_block_and_leads_through_the_one_before(tmp_path: Path) -> None:
    text = ssh_configuration(WAY, tmp_path / "known_hosts")
    first, second = text.split("Host ")[1:]
    assert "  ProxyJump none\n" in first
    assert "  HostName bastion.corp\n  HostKeyAlias sbctl-bastion\n  Port 2222\n  User hop\n" in first
    assert "  ProxyJump sbctl-bastion\n" in second
    assert "  HostName fe80::1%%eth0\n" in second
    assert '  CertificateFile "/c with space"\n' in second
    for block in (first, second):
        for line in (
            "StrictHostKeyChecking yes",
            "GlobalKnownHostsFile /dev/null",
            "ForwardAgent no",
            "IdentitiesOnly yes",
        ):
            assert f"  {line}\n" in block


def test_the_arguments_hold_no_option_that_a_name_could_smuggle_in(tmp_path: Path) -> None:
    arguments = write_ssh_files(WAY, tmp_path)
    assert arguments == ("-F", f"{tmp_path}/config", "--", "sbctl--oProxyCommand=x")
    assert (tmp_path / "known_hosts").read_text() == f"sbctl-bastion {KEY.text}\nsbctl--oProxyCommand=x {KEY.text}\n"
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


@pytest.mark.parametrize("address", ['a"b', "a\nProxyCommand x", "-x", "a\\b"])
def test_E15_what_the_file_cannot_hold_is_refused(tmp_path: Path, address: str) -> None:
    with pytest.raises(InputError):
        ssh_configuration((KnownHop(Jump("h", address), (KEY.text,), "k"),), tmp_path / "k")


def test_the_system_ssh_reads_it_as_it_is_meant(tmp_path: Path) -> None:
    ssh = shutil.which("ssh")
    if ssh is None:
        pytest.skip("needs ssh")
    arguments = write_ssh_files((WAY[0],), tmp_path)
    told = subprocess.run(
        [ssh, "-G", *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout.splitlines()
    assert {
        "hostname bastion.corp",
        "port 2222",
        "user hop",
        f"userknownhostsfile {tmp_path}/known_hosts",
        "identitiesonly yes",
    } <= set(told)
    assert "stricthostkeychecking true" in told


def test_a_fingerprint_is_completed_by_the_key_that_the_host_shows(tmp_path: Path) -> None:
    with HostileSsh(tmp_path) as hostile:
        (known,) = known_hops(hostile.connection.path("h"), tmp_path, SYSTEM_CLOCK)
        assert known.host_keys == (f"{hostile.host_key.get_name()} {hostile.host_key.get_base64()}",)
        assert hostile.seen.auth_attempts == []


def test_E2_another_key_than_the_pinned_one_ends_before_ssh_is_started(tmp_path: Path) -> None:
    with HostileSsh(tmp_path) as hostile:
        connection = Connection("ssh", "127.0.0.1", hostile.port, "ops", (KEY.fingerprint,), str(hostile.identity_file))
        with pytest.raises(RefusedError) as caught:
            known_hops(connection.path("h"), tmp_path, SYSTEM_CLOCK)
        assert caught.value.code == "shell.key_not_known"
        assert hostile.host_key.fingerprint in caught.value.message

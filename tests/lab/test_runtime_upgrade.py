"""A runtime is upgraded under load on a real host: no request is lost; a broken one is taken back; who dies midway leaves a host that heals."""

from __future__ import annotations

import base64
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.secret import Secret
from sbctl.remote.session import HostSession, open_session
from tests.lab.callers import Load
from tests.lab.fixture import Lab, LabHost
from tests.lab.runtime_host import LINEAGE, activation, await_healthy, call, install, no_progress
from tests.lab.serving_host import WHEEL, Host
from tests.simulators.other_wheel import BROKEN_SERVE, other_wheel
from tests.simulators.public_ca import Issued, issue, public_ca
from tests.simulators.runtime_world import weights

pytestmark = pytest.mark.lab

NEXT, AFTER_NEXT, BROKEN = "0.1.90", "0.1.91", "0.1.92"
OPEN: dict[str, Any] = {"http_bind_address": "0.0.0.0"}


@pytest.fixture(scope="module")
def host(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabHost]:
    """This version and three others are installed, the last of which does not serve."""
    chosen = lab.hosts[-1]
    lab.pristine(chosen)
    directory: Path = tmp_path_factory.mktemp("operator")
    session = open_session("h", chosen.connection(), clock=SYSTEM_CLOCK)
    for own in (other_wheel(BROKEN, BROKEN_SERVE), other_wheel(AFTER_NEXT), other_wheel(NEXT), None):
        install(session, directory, own=own)
    session.close()
    yield chosen
    lab.pristine(chosen)


@pytest.fixture
def session(host: LabHost) -> Iterator[HostSession]:
    opened = open_session("h", host.connection(), clock=SYSTEM_CLOCK)
    yield opened
    opened.close()


def reinstall(session: HostSession, directory: Path, *versions: str) -> None:
    """Those that an activation of others has pruned."""
    there = session.snapshot(60.0).runtime.installed_versions
    for version in versions:
        if version not in there:
            own = None if version == __version__ else other_wheel(version, BROKEN_SERVE if version == BROKEN else None)
            install(session, directory, own=own)


def test_three_upgrades_in_a_row_lose_no_request(session: HostSession, host: LabHost, tmp_path: Path) -> None:
    call(session, "runtime.activate", activation(**OPEN))
    with Load(host.address) as load:
        for version in (NEXT, AFTER_NEXT, NEXT):
            reinstall(session, tmp_path, version)
            call(session, "runtime.activate", activation(version, **OPEN))
            await_healthy(session, version)
    assert load.failures == []
    assert load.answered > 100
    state = session.snapshot(60.0).runtime
    assert state.installed_versions == (NEXT, AFTER_NEXT)


def test_engines_answer_through_three_upgrades_and_a_broken_one_and_keep_their_pids(
    session: HostSession, host: LabHost, tmp_path: Path
) -> None:
    reinstall(session, tmp_path, NEXT, AFTER_NEXT)
    call(session, "runtime.activate", activation(NEXT, **OPEN))
    serving = Host(host, session, weights(tmp_path))
    serving.install_engine()
    serving.bring_weights(tmp_path)
    serving.apply(policy=WHEEL)
    pid = serving.await_engine()
    with Load(host.address, model="chat-model") as load:
        for version in (AFTER_NEXT, NEXT, AFTER_NEXT):
            reinstall(session, tmp_path, version)
            call(session, "runtime.activate", activation(version, **OPEN))
            assert serving.await_engine() == pid
        reinstall(session, tmp_path, BROKEN)
        with pytest.raises(HostError) as caught:
            call(session, "runtime.activate", activation(BROKEN, **OPEN))
        assert caught.value.code == "runtime.rolled_back"
        assert serving.await_engine() == pid
    assert load.failures == [], host.ssh("journalctl -u sbctl-runtime --no-pager -n 80 -o short-precise")
    assert load.answered > 50
    call(session, "bundle.clear", {})


NAME = "ai.example.com"
SECURED: dict[str, Any] = {**OPEN, "https_bind_port": 8443}
LIVE = "/etc/letsencrypt/live/ai"


def send_certificate(session: HostSession, made: Issued) -> str:
    params = {"lineage": LINEAGE, "chain": made.chain.decode()}
    secrets = {"tls_key": Secret(made.key)}
    told = session.call("runtime.certificate", params, secrets=secrets, deadline_s=120.0, progress=no_progress)
    return str(told["fingerprint"])


def keep_on_host(host: LabHost, made: Issued) -> None:
    """As certbot does: files that only root may read, and links that are replaced one after the other."""
    for name, data in (("fullchain", made.chain), ("privkey", made.key)):
        host.ssh(
            f"umask 077; mkdir -p {LIVE} && n=$(mktemp /etc/letsencrypt/{name}.XXXXXX) && "
            f"echo {base64.b64encode(data).decode()} | base64 -d > $n && "
            f"ln -s $n {LIVE}/.{name} && mv -T {LIVE}/.{name} {LIVE}/{name}.pem",
        )


def test_https_through_an_upgrade_and_renewals_loses_no_request(
    session: HostSession, host: LabHost, tmp_path: Path
) -> None:
    """The socket unit owns the port, root's file comes as a credential, and files that only root may read are watched."""
    trusted = ssl.create_default_context(cadata=public_ca().decode())
    trusted.check_hostname = False
    reinstall(session, tmp_path, __version__)
    first = send_certificate(session, issue(NAME))
    call(session, "runtime.activate", activation(**SECURED))
    assert session.snapshot(60.0).runtime.tls.used == first  # type: ignore[union-attr]
    assert host.ssh("stat -c '%U %a' /etc/sbctl/secrets/tls_api.pem").strip() == "root 600"
    with Load(host.address, port=8443, tls=trusted) as load:
        reinstall(session, tmp_path, NEXT)
        call(session, "runtime.activate", activation(NEXT, **SECURED))
        second = send_certificate(session, issue(NAME))
        assert session.snapshot(60.0).runtime.tls.used == second  # type: ignore[union-attr]
        keep_on_host(host, issue(NAME))
        files = {"tls_cert_file": f"{LIVE}/fullchain.pem", "tls_key_file": f"{LIVE}/privkey.pem"}
        call(session, "runtime.activate", activation(NEXT, **SECURED, **files))
        before = session.snapshot(60.0).runtime.tls
        assert before is not None
        assert before.followed
        assert before.used not in (first, second)
        keep_on_host(host, issue(NAME))
        end_s = SYSTEM_CLOCK.monotonic_s() + 120.0
        while (found := session.snapshot(60.0).runtime.tls) is None or found.used == before.used:
            assert SYSTEM_CLOCK.monotonic_s() < end_s, host.ssh(
                "systemctl status sbctl-public-tls.* --no-pager -l; true"
            )
            SYSTEM_CLOCK.sleep_s(0.5)
        assert found.used == found.installed
    assert load.failures == [], host.ssh("journalctl -u sbctl-runtime --no-pager -n 80 -o short-precise")
    assert load.answered > 50
    exposure = host.ssh("systemd-analyze security sbctl-public-tls.service --no-pager | tail -1")
    assert float(exposure.split(":")[1].split()[0]) <= 2.0, exposure
    call(session, "runtime.activate", activation(NEXT, **OPEN))
    assert host.ssh("ls /etc/sbctl/secrets; ls /etc/systemd/system").split().count("tls_api.pem") == 0
    assert "sbctl-public-tls" not in host.ssh("ls /etc/systemd/system")


def test_a_broken_upgrade_is_taken_back_and_no_request_is_lost(
    session: HostSession, host: LabHost, tmp_path: Path
) -> None:
    reinstall(session, tmp_path, NEXT, BROKEN)
    call(session, "runtime.activate", activation(NEXT, **OPEN))
    before = host.ssh("cat /etc/sbctl/runtime.json /etc/systemd/system/sbctl-runtime.*")
    reinstall(session, tmp_path, BROKEN)
    with Load(host.address) as load, pytest.raises(HostError) as caught:
        call(session, "runtime.activate", activation(BROKEN, **OPEN, max_parallel_prepares=7))
    assert (caught.value.code, int(caught.value.exit_code)) == ("runtime.rolled_back", 1)
    assert "broken on purpose" in caught.value.message
    assert load.failures == []
    await_healthy(session, NEXT)
    assert host.ssh("cat /etc/sbctl/runtime.json /etc/systemd/system/sbctl-runtime.*") == before
    assert "activation" not in host.ssh("ls /etc/sbctl").split()


@pytest.mark.parametrize("death", ["the node process is killed", "the link is cut", "power is lost"])
def test_E12_who_dies_in_a_broken_upgrade_leaves_a_host_that_heals_itself(
    session: HostSession, host: LabHost, lab: Lab, tmp_path: Path, death: str
) -> None:
    reinstall(session, tmp_path, NEXT)
    call(session, "runtime.activate", activation(NEXT, **OPEN))
    reinstall(session, tmp_path, BROKEN)
    failed: list[SbctlError] = []

    def upgrade() -> None:
        try:
            call(session, "runtime.activate", activation(BROKEN, **OPEN))
        except SbctlError as error:
            failed.append(error)

    thread = threading.Thread(target=upgrade)
    thread.start()
    host.ssh("while ! test -e /etc/sbctl/activation/switched; do sleep 0.01; done")
    if death == "power is lost":
        lab.kill(host)
        lab.start(host)
    elif death == "the link is cut":
        host.ssh("pkill -KILL -f '[s]shd: root@notty' || true", check=False)
    else:
        host.ssh("pkill -KILL -f '[n]ode --stdio'")
    thread.join()
    assert len(failed) == 1
    session.close()
    again = open_session("h", host.connection(), clock=SYSTEM_CLOCK)
    try:
        await_healthy(again, NEXT)
        call(again, "runtime.activate", activation(NEXT, **OPEN))
        assert again.snapshot(60.0).runtime.version_running == NEXT
    finally:
        again.close()


def test_removal_under_load_leaves_nothing(session: HostSession, host: LabHost) -> None:
    with Load(host.address):
        call(session, "runtime.remove", {"lineage": LINEAGE})
        call(session, "host.unmark", {"lineage": LINEAGE})
    assert (
        host.ssh("ls -d /etc/sbctl /opt/sbctl /var/lib/sbctl /etc/systemd/system/sbctl-*.s* 2>/dev/null", check=False)
        == ""
    )
    assert host.ssh("systemctl list-units --all --no-legend 'sbctl-*.s*'").strip() == ""

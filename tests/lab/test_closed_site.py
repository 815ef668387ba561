"""A closed site: three hosts that reach nobody, a login that needs sudo, an operator without a package index and with an empty cache, one
pack, one relay."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import openai
import pytest

from sbctl.pack.manifest import PackEntry
from sbctl.pack.reader import Pack, open_pack
from sbctl.trust.keys import SigningKey, save_key_file
from tests.lab.fixture import LAB_NUMBER, Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(600)]

PORT = 8080
KEY = "a key of the tests"
ORIGIN = "ai.internal"
NO_NETWORK = {
    "SBCTL_PACKAGE_INDEX": "http://127.0.0.1:9/",
    "HF_ENDPOINT": "http://127.0.0.1:9",
    "http_proxy": "http://127.0.0.1:9",
    "https_proxy": "http://127.0.0.1:9",
    "no_proxy": "10.78.0.0/16",
}
RELAY, *NEIGHBOURS = "h1", "h2", "h3"


@pytest.fixture(scope="module")
def hosts(lab: Lab) -> Iterator[tuple[LabHost, ...]]:
    for host in lab.hosts:
        lab.pristine(host)
    yield lab.hosts
    for host in lab.hosts:
        lab.pristine(host)


@pytest.fixture(scope="module")
def site(hosts: tuple[LabHost, ...], tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorWorld]:
    """An operator with a key and a pack; from here on nothing can be fetched."""
    with new_world() as world:
        key = SigningKey.generate()
        save_key_file(world.root / "operator.key", key)
        deployment = {"model": "smollm2-135m-instruct", "variant": "q4_1", "warm": True, "max_concurrency": 2}
        world.config = {
            "fleet": {
                "name": "site",
                "trust": {"signers": {"ops": key.public_text}},
                "ssh": {"user": "deploy", "become": "sudo", "identity_file": hosts[0].identity_file},
                "groups": {"rack": {"relay": RELAY}},
                "hosts": {
                    host.name: {"address": host.address, "host_key": host.fingerprint, "group": "rack"}
                    for host in hosts
                },
                "api_keys": {"app": {"sha256": hashlib.sha256(KEY.encode()).hexdigest(), "models": ["small"]}},
            },
            "proxy": {
                "http_bind_port": PORT,
                "bind_address": "0.0.0.0",
                "model_host": {"shutdown_deadline_ms": 3000, "deployments": {"chat": deployment}},
            },
            "origins": {ORIGIN: {"action": world.serving(chat=["small"])}},
        }
        world.env = {"SBCTL_SIGNING_KEY_FILE": str(world.root / "operator.key")}
        minor = hosts[0].ssh("/usr/bin/python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'").strip()
        world.sbctl("pack", "--out", str(_pack_path(world)), "--python", minor, expect=0)
        world.env |= {**NO_NETWORK, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        yield world


def _pack_path(world: OperatorWorld) -> Path:
    return world.root / "site.sbpack"


def _weights(pack: Path) -> list[PackEntry]:
    return [entry for entry in open_pack(pack).manifest.entries if entry.role == "weights"]


def _bytes_sent() -> int:
    """What this machine itself has sent to the hosts of the lab; what they send to each other is not counted."""
    return int(Path(f"/sys/class/net/sbctl-lab{LAB_NUMBER}/statistics/tx_bytes").read_text())


def _most_bytes(pack: Pack, hosts: int) -> int:
    """One copy of weights and engine, a runtime for each host, a quarter more for everything that is said."""
    once = sum(entry.size_bytes for entry in pack.manifest.entries if entry.role in ("engine", "weights"))
    each = sum(entry.size_bytes for entry in pack.manifest.entries if entry.role == "runtime")
    return (once + hosts * each) * 5 // 4


def test_a_pack_and_a_relay_serve_a_site_with_one_copy(site: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    pack = _pack_path(site)
    site.sbctl("pack", "verify", str(pack), expect=0)
    begun = _bytes_sent()
    applied = site.sbctl("apply", "--yes", "--from", str(pack), expect=0)
    sent = _bytes_sent() - begun
    assert "sent directly" not in applied.text
    assert sent < _most_bytes(open_pack(pack), len(hosts)), f"{sent} bytes were sent"
    for host in hosts:
        client = openai.OpenAI(
            base_url=f"http://{host.address}:{PORT}/v1", api_key=KEY, default_headers={"Host": ORIGIN}, timeout=120
        )
        question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
        answer = client.chat.completions.create(model="small", messages=question, max_tokens=24, temperature=0)  # type: ignore[arg-type]
        assert "Paris" in str(answer.choices[0].message.content)
    site.sbctl("plan", "--from", str(pack), expect=0)
    weights = {entry.sha256 for entry in _weights(pack)}
    cached = [path for path in Path(site.env["XDG_CACHE_HOME"]).rglob("*") if weights & set(path.parts)]
    assert cached == [], "weights are sent from the pack, not copied out of it first"


def test_nobody_listens_for_neighbours_after_the_run(site: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    ours = hosts[0].ssh("ps -eo args | grep -c '[n]ode --stdio' || true").strip()
    assert ours == "0"


def test_a_neighbour_that_lost_its_weights_gets_them_from_the_relays_cache(
    site: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    hosts[1].ssh("rm -rf /var/cache/sbctl/models")
    begun = _bytes_sent()
    applied = site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=0)
    assert "sent directly" not in applied.text
    weights = sum(entry.size_bytes for entry in _weights(_pack_path(site)))
    assert _bytes_sent() - begun < weights // 10


def test_a_relay_that_cannot_be_reached_by_its_neighbours_is_gone_around(
    site: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    hosts[2].ssh("rm -rf /var/cache/sbctl/models; ip route add blackhole " + hosts[0].address)
    try:
        applied = site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=0)
    finally:
        hosts[2].ssh("ip route del blackhole " + hosts[0].address)
    assert "h3: sent directly, not through h1" in applied.text
    site.sbctl("plan", "--from", str(_pack_path(site)), expect=0)


def test_what_the_pack_lacks_is_said_before_anything_is_sent(site: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    deployments = site.config["proxy"]["model_host"]["deployments"]
    deployments["more"] = {"model": "qwen2.5-0.5b-instruct", "variant": "q4_k_m"}
    begun = _bytes_sent()
    try:
        lacking = site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=3)
        packing = site.sbctl("pack", "--out", str(site.root / "other.sbpack"), expect=1)
    finally:
        del deployments["more"]
    assert "pack.lacks" in lacking.text
    assert "qwen2.5-0.5b-instruct:q4_k_m" in lacking.text
    assert "sbctl pack -f" in lacking.text
    assert _bytes_sent() - begun < 1 << 20
    assert "the connection failed" in packing.text, "a pack is made where there is a network"
    assert not (site.root / "other.sbpack").exists()
    site.sbctl("plan", "--from", str(_pack_path(site)), expect=0)


def test_a_host_that_left_and_kept_its_weights_is_taken_over_without_sending_them(
    site: OperatorWorld, hosts: tuple[LabHost, ...]
) -> None:
    taken = site.config["fleet"]["hosts"]
    mine = taken.pop(NEIGHBOURS[1]) | {"keep": ["weights"]}
    taken[NEIGHBOURS[1]] = mine
    site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=0)
    del taken[NEIGHBOURS[1]]
    site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=0)
    assert hosts[2].ssh("ls -d /opt/sbctl /etc/sbctl", check=False) == ""
    assert hosts[2].ssh("ls /var/cache/sbctl/models/blobs").split()
    taken[NEIGHBOURS[1]] = mine
    pack = open_pack(_pack_path(site))
    weights = sum(entry.size_bytes for entry in _weights(_pack_path(site)))
    begun = _bytes_sent()
    site.sbctl("apply", "--yes", "--from", str(_pack_path(site)), expect=0)
    others = sum(entry.size_bytes for entry in pack.manifest.entries if entry.role != "weights")
    assert _bytes_sent() - begun < others * 5 // 4 + weights // 10
    site.sbctl("plan", "--from", str(_pack_path(site)), expect=0)
    del mine["keep"]


def test_destroy_needs_no_pack(site: OperatorWorld, hosts: tuple[LabHost, ...]) -> None:
    site.sbctl("destroy", "--yes", expect=0)
    assert hosts[0].ssh("ls", "-d", "/opt/sbctl", check=False) == ""

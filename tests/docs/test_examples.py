"""Every example is valid, and those that can run here do."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from ruamel.yaml import YAML

from sbctl.trust.authority import Authority
from sbctl.trust.cluster_bundle import CLUSTER_BUNDLE_PAYLOAD_TYPE, ClusterBundlePayload
from sbctl.trust.envelope import open_envelope
from sbctl.trust.identity import Grant
from tests.lab.fixture import Lab
from tests.simulators.doc_pages import Command, Session, blocks_of
from tests.simulators.provider_world import ProviderWorld

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
NOT_PINNED = "lab/sb.yml"
"""Its hosts have new keys with each boot."""
FILES = sorted({path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.rglob("sb.yml")} - {NOT_PINNED})
QUESTION = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 8, "temperature": 0}


@pytest.mark.parametrize("file", FILES)
def test_it_is_valid(file: str, sessions: Callable[[], Session]) -> None:
    session = sessions()
    session.run_in(f"examples/{Path(file).parent}")
    session.run(Command("sbctl validate", "sb.yml is valid", 0))


def test_every_example_says_what_it_is() -> None:
    assert [path.name for path in EXAMPLES.iterdir() if path.is_dir() and not (path / "README.md").is_file()] == []


def test_the_gate_of_a_pull_request_passes_a_small_change_and_stops_a_large_one(
    sessions: Callable[[], Session],
) -> None:
    session = sessions()
    session.run_in("examples/ci-gate")
    gate = "sbctl plan --against base.yml --max-blast-radius reload --format markdown"
    session.run(Command("cp sb.yml base.yml", "", 0))
    session.run(Command(gate, "", 0))
    session.run(Command("sed -i 's/max_concurrency: 2/max_concurrency: 3/' sb.yml", "", 0))
    session.run(Command(gate, "### Plan: 0 to add, 1 to change, 0 to remove. Blast radius: reload. …", 2))
    session.run(Command("sed -i 's/models: .smollm2./models: [other]/' sb.yml", "", 0))
    session.run(Command(gate, "", 4))
    session.run(Command("sed -i 's/max_concurrency/max_concurency/' sb.yml", "", 0))
    session.run(Command(gate, "", 3))


@pytest.fixture
def quickstart(sessions: Callable[[], Session]) -> Session:
    session = sessions()
    session.run_in("examples/quickstart")
    return session


@pytest.mark.engine
def test_make_run_answers_and_says_how_to_go_on_and_openai_s_client_gets_both_forms(quickstart: Session) -> None:
    shown = """
$ sbctl plan
…
Plan: 7 to add, 0 to change, 0 to remove. …
$ sbctl apply --yes
…
Apply: 7 done in 30 s, serial 1.
…
Q: What is the capital of France? Answer in one sentence.
A: …
It keeps serving. Use it with any OpenAI client, model smollm2:
  OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none
Remove it:
  make stop
"""
    quickstart.run(Command("python run.py", shown.strip(), 0))
    again = "$ sbctl plan\n…\nNo changes: the fleet is as sb.yml says.\n\nQ: …"
    quickstart.run(Command("python run.py", again, 0))
    ask = "OPENAI_BASE_URL=http://127.0.0.1:8080/v1 OPENAI_API_KEY=none python ../openai-client/ask.py"
    quickstart.run(Command(ask, "whole: …\nstream: …", 0))
    quickstart.run(Command("sbctl destroy --yes", "", 0))


@pytest.mark.engine
def test_run_leaves_nothing_but_weights_in_the_cache(quickstart: Session) -> None:
    quickstart.run(Command("sbctl run smollm2-135m-instruct --port 8080", "", 0), interrupted=True)
    node = quickstart.directory.parent / "node"
    assert {path.name for path in node.iterdir()} == {"cache"}
    assert [path.name for path in node.rglob("*.gguf")] == ["SmolLM2-135M-Instruct.Q4_1.gguf"]


def test_make_run_names_a_taken_port_before_anything_is_installed(quickstart: Session) -> None:
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", int(quickstart.moved["8080"])))
        other.listen()
        shown = "…refused: local: port of the API: 127.0.0.1:8080 is…This machine cannot serve it yet. …sb.yml."
        quickstart.run(Command("python run.py", shown, 4))
    assert not (quickstart.directory.parent / "node").exists()


@pytest.mark.lab
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_host_over_ssh_serves_with_a_key_and_is_given_up_whole(lab: Lab, sessions: Callable[[], Session]) -> None:
    host, key = lab.hosts[0], os.urandom(18).hex()
    session = sessions()
    session.run_in("examples/ssh-host")
    file = session.directory / "examples" / "ssh-host" / "sb.yml"
    text = file.read_text(encoding="utf-8")
    for found, placed in (
        ("10.10.0.21", host.address),
        (r"SHA256:[A-Za-z0-9+/]{43}", host.fingerprint),
        ("~/.ssh/id_ed25519", host.identity_file),
        (r'sha256: "[0-9a-f]{64}"', f'sha256: "{hashlib.sha256(key.encode()).hexdigest()}"'),
    ):
        text = re.sub(found, placed, text)
    file.write_text(text, encoding="utf-8")
    try:
        session.run(Command("sbctl plan", "…Plan: 7 to add, 0 to change, 0 to remove. …", 2))
        session.run(Command("sbctl apply --yes", "…Apply: 7 done in 60 s, serial 1.…", 0))
        session.run(Command("sbctl plan", "…No changes: the fleet is as sb.yml says.", 0))
        found = _output_of(session)["endpoints"][0]
        headers = {"Host": found["hostname"], "Authorization": f"Bearer {key}"}
        url = f"{found['base_url']}/chat/completions"
        answer = httpx.post(
            url, json={"model": found["model"], **QUESTION}, headers=headers, timeout=60, trust_env=False
        )
        assert answer.status_code == 200
        assert answer.json()["choices"][0]["message"]["content"].strip()
        refused = httpx.post(
            url, json={"model": found["model"], **QUESTION}, headers={"Host": found["hostname"]}, trust_env=False
        )
        assert refused.status_code == 401
        session.run(Command("sbctl destroy --yes", "…Destroy: 7 done in 9 s, serial 2.…", 0))
        assert host.ssh("ls -d /etc/sbctl /opt/sbctl /var/lib/sbctl 2>/dev/null", check=False) == ""
    finally:
        lab.pristine(host)


@pytest.mark.lab
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_the_lab_for_people_runs_as_its_page_says(lab: Lab, sessions: Callable[[], Session]) -> None:
    """One host behind the jump stands for the three."""
    host, others = lab.hosts[1], ("h3", "h4")
    number = host.address.split(".")[2]
    session = sessions()
    session.run_in("examples/lab")
    file = session.directory / "examples" / "lab" / "sb.yml"
    kept = [line for line in file.read_text(encoding="utf-8").splitlines() if not line.strip().startswith(others)]
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")
    session.run(Command(f"SBCTL_LAB={number}", "", 0))
    subprocess.run(
        [EXAMPLES / "lab" / "lab.sh", "pins"], env={**os.environ, "SBCTL_LAB": number}, check=True, timeout=60
    )
    try:
        for block in (one for one in blocks_of(EXAMPLES / "lab" / "README.md") if one.is_run):
            for command in block.commands():
                moved = command.line.replace("10.78.0.", f"10.78.{number}.").replace(
                    "sbctl-lab-0/", f"sbctl-lab-{number}/"
                )
                session.run(Command(moved, command.shown, command.exit_code))
        assert host.ssh("ls -d /etc/sbctl /opt/sbctl /var/lib/sbctl 2>/dev/null", check=False) == ""
    finally:
        lab.pristine(host)


CLUSTERS = {
    "cluster-symmetric": {"store": 3, "engine": 3, "bundle": 3, "certificate": 3},
    "cluster-split": {"store": 3, "engine": 3, "bundle": 3, "certificate": 8},
}


@pytest.mark.parametrize("example", CLUSTERS)
def test_a_cluster_of_the_examples_comes_about_by_one_apply_on_simulated_hosts(example: str, tmp_path: Path) -> None:
    text = (EXAMPLES / example / "sb.yml").read_text(encoding="utf-8")
    world = ProviderWorld(tmp_path, *re.findall(r"^    ([a-z]+-[a-c]):", text, re.MULTILINE))
    world.authority = Authority.create(
        tmp_path / "cluster",
        cluster_id=example.removeprefix("cluster-"),
        grant=Grant(node_id="authority", roles=("authority",)),
        server_name="mesh",
        now=world.fleet.clock.now(),
    )
    world.configure(text)
    added = Counter(change.address.kind for change in world.plan().actionable)
    assert {kind: added[kind] for kind in CLUSTERS[example]} == CLUSTERS[example]
    assert {one.status for one in world.apply().changes} == {"done"}
    assert world.plan().actionable == ()
    (envelope,) = set(world.fleet.cluster.envelopes)
    payload = open_envelope(envelope, CLUSTER_BUNDLE_PAYLOAD_TYPE, world.signers, max_bytes=10**6).payload
    assert ClusterBundlePayload.model_validate_json(payload).content.deployments["chat"].replicas == 2


@pytest.mark.lab
@pytest.mark.engine
@pytest.mark.timeout(900)
def test_three_hosts_become_one_service_as_the_page_says(lab: Lab, sessions: Callable[[], Session]) -> None:
    session = sessions()
    session.run_in("examples/cluster-symmetric")
    file = session.directory / "examples" / "cluster-symmetric" / "sb.yml"
    text = file.read_text(encoding="utf-8").replace("~/.ssh/id_ed25519", lab.hosts[0].identity_file)
    for number, host in enumerate(lab.hosts, 11):
        line = f'address: {host.address}, host_key: "{host.fingerprint}"'
        text = re.sub(rf'address: 10\.10\.0\.{number}, host_key: "[^"]+"', line, text)
    file.write_text(text, encoding="utf-8")
    try:
        for block in blocks_of(EXAMPLES / "cluster-symmetric" / "README.md"):
            for command in block.commands():
                line = command.line.replace("10.10.0.11", lab.hosts[0].address)
                session.run(Command(line, command.shown, command.exit_code))
        for host in lab.hosts:
            assert host.ssh("ls -d /etc/sbctl /opt/sbctl /var/lib/sbctl 2>/dev/null", check=False) == ""
    finally:
        for host in lab.hosts:
            lab.pristine(host)


@pytest.mark.parametrize("example", CLUSTERS)
def test_a_cluster_of_the_examples_is_written_anew_for_hosts_of_the_lab(example: str, tmp_path: Path) -> None:
    script, file = EXAMPLES / "lab" / "lab.sh", EXAMPLES / example / "sb.yml"
    done = subprocess.run(
        [script, "onto", file], env={**os.environ, "SBCTL_LAB": "7"}, check=True, capture_output=True, text=True
    )
    before, after = (YAML(typ="safe").load(text) for text in (file.read_text(encoding="utf-8"), done.stdout))
    for number, host in enumerate(before["fleet"]["hosts"].values(), 2):
        host["address"] = f"10.78.7.{number}"
        del host["host_key"]
    before["fleet"]["ssh"]["identity_file"] = "/run/sbctl-lab-7/operator_key"
    assert after == before


def test_the_lab_says_what_it_needs_where_it_cannot_run() -> None:
    starts_nothing = {"PATH": "/usr/bin:/bin", "SBCTL_LAB": "98"}
    argv = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.geteuid() == 0 else []
    script = (EXAMPLES / "lab" / "lab.sh").read_text(encoding="utf-8")
    done = subprocess.run(
        [*argv, "bash", "-s", "up"],
        input=script,
        env=starts_nothing,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 4
    assert done.stderr == "the lab cannot run here: it boots hosts in namespaces, which needs root: sudo make lab\n"


def _output_of(session: Session) -> dict[str, Any]:
    name = session.directory / "examples" / "ssh-host" / "endpoints.json"
    session.run(Command("sbctl output --format json > endpoints.json", "", 0))
    return dict(json.loads(name.read_text(encoding="utf-8")))

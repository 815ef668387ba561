"""A plain Debian host over SSH, without internet, with the real engine and model: everything is pushed to it, and taken away again."""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.lab.fixture import Lab, LabHost
from tests.simulators.operator_world import OperatorWorld, new_world, until

pytestmark = [pytest.mark.lab, pytest.mark.engine, pytest.mark.timeout(600)]

PORT = 8080
KEY = "a key of the tests"
ORIGIN = "ai.internal"
UNIT = "/etc/systemd/system/sbctl-runtime.service"
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
OURS = "/etc/sbctl /opt/sbctl /var/lib/sbctl /var/cache/sbctl"


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    chosen = lab.hosts[0]
    lab.pristine(chosen)
    yield chosen
    lab.pristine(chosen)


def _named_after_us(host: LabHost) -> set[str]:
    """Every path of the host with our name in it; the lab has some of its own."""
    return set(host.ssh("find / -xdev -name '*sbctl*' -not -path '/proc/*'").splitlines())


@pytest.fixture(scope="module")
def before(host: LabHost) -> set[str]:
    return _named_after_us(host)


@pytest.fixture(scope="module")
def fleet(host: LabHost, before: set[str]) -> Iterator[OperatorWorld]:
    """Applied to the host."""
    with new_world() as world:
        deployment = {
            "model": "smollm2-135m-instruct",
            "variant": "q4_1",
            "pull": "on_boot",
            "warm": True,
            "max_concurrency": 2,
        }
        world.config = {
            "fleet": {
                "name": "lab",
                "ssh": {"user": "root", "identity_file": host.identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint}},
                "api_keys": {"app": {"sha256": hashlib.sha256(KEY.encode()).hexdigest(), "models": ["small"]}},
            },
            "proxy": {
                "http_bind_port": PORT,
                "bind_address": "0.0.0.0",
                "admin": {"enabled": True, "port": 9090},
                "model_host": {"shutdown_deadline_ms": 3000, "deployments": {"chat": deployment}},
            },
            "origins": {ORIGIN: {"action": world.serving(chat=["small"])}},
        }
        planned = world.sbctl("plan", expect=2)
        assert f"host.{host.name}" in planned.out
        assert host.ssh("ls", "-d", *OURS.split(), check=False) == "", "a plan leaves nothing on a host"
        world.sbctl("apply", "--yes", expect=0)
        yield world


def _client(host: LabHost, key: str = KEY, origin: str = ORIGIN) -> openai.OpenAI:
    return openai.OpenAI(
        base_url=f"http://{host.address}:{PORT}/v1",
        api_key=key,
        default_headers={"Host": origin},
        timeout=120,
        max_retries=0,
    )


def _settled(fleet: OperatorWorld) -> None:
    fleet.sbctl("drift", expect=0)
    fleet.sbctl("plan", expect=0)


def test_the_model_answers_the_official_client_from_another_machine(fleet: OperatorWorld, host: LabHost) -> None:
    answer = _client(host).chat.completions.create(model="small", messages=QUESTION, max_tokens=24, temperature=0)  # type: ignore[arg-type]
    assert "Paris" in str(answer.choices[0].message.content)
    stream: Any = _client(host).chat.completions.create(
        model="small",
        messages=QUESTION,  # type: ignore[arg-type]
        max_tokens=24,
        temperature=0,
        stream=True,
    )
    chunks = list(stream)
    assert "Paris" in "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert len(chunks) > 4


def test_only_listed_keys_and_the_named_origin_get_in(fleet: OperatorWorld, host: LabHost) -> None:
    with pytest.raises(openai.AuthenticationError):
        _client(host, key="another").chat.completions.create(model="small", messages=QUESTION)  # type: ignore[arg-type]
    with pytest.raises(openai.NotFoundError):
        _client(host, origin="other.internal").chat.completions.create(model="small", messages=QUESTION)  # type: ignore[arg-type]
    with pytest.raises(httpx.TransportError):
        httpx.get(f"http://{host.address}:9090/admin/model-host/status", timeout=5)


def test_status_logs_and_events_over_ssh_with_the_journal_of_systemd(fleet: OperatorWorld, host: LabHost) -> None:
    (told,) = fleet.sbctl("status", "--format", "json", expect=0).json()["hosts"]
    assert (told["host"], told["condition"], told["revision"]) == (host.name, "healthy", told["recorded_revision"])
    assert told["deployments"][0]["memory_bytes"] > 10_000_000
    kinds = [json.loads(line)["kind"] for line in fleet.sbctl("events", "--format", "json", expect=0).out.splitlines()]
    assert {"runtime.activated", "runtime.started", "engine.started", "bundle.accepted"} <= set(kinds)
    lines = [
        json.loads(line) for line in fleet.sbctl("logs", "-n", "500", "--format", "json", expect=0).out.splitlines()
    ]
    assert {line["source"] for line in lines} >= {"runtime", "engine"}
    assert {line["deployment"] for line in lines if line["source"] == "engine"} == {"chat"}
    following = fleet.start("logs", "-f", "-n", "1")
    following.until_said(host.name)
    fleet.sbctl("host", "drain", host.name, expect=0)
    following.until_said("drain: draining")
    fleet.sbctl("host", "resume", host.name, expect=0)
    following.signal(signal.SIGINT)
    assert following.finish().code == 130


def test_weights_by_hand_over_ssh(fleet: OperatorWorld, host: LabHost) -> None:
    """The host fetches nothing itself: what is pulled goes there from here, and belongs to the runtime's account."""

    def models(*words: str, expect: int = 0) -> Any:
        asked = ("models", *words, "--host", host.name, "--catalog-file", "models.yaml", "--format", "json")
        return fleet.sbctl(*asked, expect=expect).json()

    (pulled,) = models("pull", "small")["artifacts"]
    owners = host.ssh("stat", "-c", "%U:%a", pulled["snapshot_path"], f"{pulled['snapshot_path']}/small.gguf")
    assert owners.split() == ["sbctl:755", "sbctl:444"]
    rows = {row["id"]: row for row in models("list")["models"]}
    assert (rows["small"]["status"], rows["small"]["in_use"]) == ("cached", False)
    assert (rows["smollm2-135m-instruct"]["status"], rows["smollm2-135m-instruct"]["in_use"]) == ("cached", True)
    assert models("show", "smollm2-135m-instruct", "--verify")["hosts"][0]["verified"]["is_good"]
    (error,) = models("remove", "smollm2-135m-instruct", "--force", expect=4)["errors"]
    assert error["code"] == "artifact.in_use"
    assert models("remove", "small")["artifacts"][0]["removed"]
    pruned = fleet.sbctl("models", "prune", "--host", host.name, "--format", "json", expect=0).json()
    assert pruned["caches"][0]["orphan_blobs"] == []
    fleet.sbctl("models", "lock", expect=0)
    fleet.sbctl("models", "verify-lock", "--host", host.name, expect=0)


def test_output_names_the_address_the_origin_and_that_a_key_is_needed(fleet: OperatorWorld, host: LabHost) -> None:
    (endpoint,) = fleet.sbctl("output", "--format", "json", expect=0).json()["endpoints"]
    assert endpoint["base_url"] == f"http://{host.address}:{PORT}/v1"
    assert ORIGIN in str(endpoint)
    said = fleet.sbctl("output", expect=0).text
    assert f"host: {ORIGIN}" in said
    assert KEY not in said


def test_an_applied_host_has_nothing_to_change(fleet: OperatorWorld) -> None:
    _settled(fleet)
    document = fleet.sbctl("doctor", "--format", "json", expect=0).json()
    assert document["ready"] is True


def _edit_unit(host: LabHost) -> None:
    host.ssh(f"sed -i 's/^Restart=.*/Restart=no/' {UNIT}")


def _stop_service(host: LabHost) -> None:
    host.ssh("systemctl stop sbctl-runtime")


def _remove_engine(host: LabHost) -> None:
    host.ssh("rm -rf /opt/sbctl/engines")


def _remove_weights(host: LabHost) -> None:
    """Of a runtime that runs, which looks for them every half a minute, the next apply would perhaps find nothing to do."""
    _stop_service(host)
    host.ssh("rm -rf /var/cache/sbctl/models")


EVENTS: dict[str, tuple[Callable[[LabHost], None], str]] = {
    "the unit is edited": (_edit_unit, "runtime.h1"),
    "the service is stopped": (_stop_service, "runtime.h1"),
    "the engine is removed": (_remove_engine, "engine.h1/llama_cpp"),
    "the weights are removed": (_remove_weights, "artifact.h1/smollm2-135m-instruct:q4_1"),
}


@pytest.mark.parametrize("event", EVENTS)
def test_a_change_behind_our_back_is_named_and_repaired(fleet: OperatorWorld, host: LabHost, event: str) -> None:
    happen, address = EVENTS[event]
    happen(host)
    assert address in fleet.sbctl("drift", expect=2).out
    fleet.sbctl("apply", "--yes", expect=0)
    fleet.sbctl("drift", expect=0)
    assert _client(host).chat.completions.create(model="small", messages=QUESTION, max_tokens=2).choices  # type: ignore[arg-type]


def test_a_reboot_serves_again_by_itself(fleet: OperatorWorld, host: LabHost, lab: Lab) -> None:
    lab.kill(host)
    fleet.sbctl("plan", expect=7)
    lab.start(host)

    def answers() -> bool:
        try:
            return bool(_client(host).chat.completions.create(model="small", messages=QUESTION, max_tokens=2).choices)  # type: ignore[arg-type]
        except openai.APIError:
            return False

    until(answers, "answers after the reboot", 120)
    _settled(fleet)


def test_destroy_leaves_no_process_port_or_file_on_the_host(
    fleet: OperatorWorld, host: LabHost, before: set[str]
) -> None:
    fleet.sbctl("destroy", "--yes", expect=0)
    assert host.ssh("ls", "-d", *OURS.split(), check=False) == ""
    assert _named_after_us(host) == before
    assert "sbctl-runtime" not in host.ssh(
        "systemctl list-units --all --no-legend; systemctl list-unit-files --no-legend"
    )
    assert "/opt/sbctl" not in host.ssh("ps -eo args | grep -v 'ps -eo'")
    listening = host.ssh("cat /proc/net/tcp /proc/net/tcp6")
    assert f":{PORT:04X} " not in "".join(line for line in listening.splitlines() if " 0A " in line)
    fleet.sbctl("destroy", "--yes", expect=0)

"""The way out of each host: what is set, without a secret, and whether what has to be fetched answers there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.egress_probe import ask_sources
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.artifacts.source_answer import SourceAnswer
from sbctl.base.errors import HostError
from sbctl.base.limits import GIB
from sbctl.cli.egress_checks import egress_line, needed_artifacts, source_checks
from sbctl.config.compiled import CompiledHost
from sbctl.config.load import load
from sbctl.node.snapshot import ArtifactState, HostFacts, NodeSnapshot
from tests.simulators.download_server import DownloadServer
from tests.simulators.runtime_world import weights

MODEL = "smollm2-135m-instruct"


def host(tmp_path: Path, egress: str = "{}", delivery: str = "pull") -> CompiledHost:
    file = tmp_path / "sb.yml"
    file.write_text(
        f"fleet: {{defaults: {{delivery: {delivery}, egress: {egress}}}}}\n"
        f"proxy: {{model_host: {{deployments: {{chat: {{model: {MODEL}}}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: p, provider_type: managed_model, deployment: chat, models: [m]}]}}}\n"
    )
    (found,) = load(file, environ={"T": "hf_secret"}, keyed=None).hosts.values()
    return found


def told(*artifacts: ArtifactState) -> NodeSnapshot:
    return NodeSnapshot(bootstrapped=True, host=HostFacts(memory_total_bytes=64 * GIB), artifacts=artifacts)


@pytest.mark.parametrize(
    ("egress", "said"),
    [
        ("{}", "direct: no proxy"),
        (
            "{proxy: 'http://proxy.corp:3128', no_proxy: [hub.corp]}",
            "proxy http://proxy.corp:3128 (not for hub.corp); auth",
        ),
        (
            "{ca_file: /etc/ssl/corp.pem, hf_endpoint: 'https://hub.corp'}",
            "authorities /etc/ssl/corp.pem; hub https://hub.corp",
        ),
        ("{hf_token: 'env:T'}", "with hf_token"),
    ],
)
def test_what_is_set_is_said_without_a_secret(tmp_path: Path, egress: str, said: str) -> None:
    line = egress_line(host(tmp_path, egress), {})
    assert said in line
    assert "hf_secret" not in line


def test_this_machine_fetches_for_who_is_pushed_to(tmp_path: Path) -> None:
    pushed = host(tmp_path, delivery="push")
    line = egress_line(pushed, {"HTTPS_PROXY": "http://user:secret@proxy.corp:1", "HF_ENDPOINT": "https://hub.corp"})
    assert line.startswith("this machine fetches for it: proxy http://proxy.corp:1")
    assert "hub https://hub.corp" in line
    assert "secret" not in line


def _answers(found: CompiledHost, *answered: bool) -> tuple[SourceAnswer, ...]:
    (facts,) = needed_artifacts(found, told())
    name = f"{facts.model}:{facts.variant}"
    return tuple(
        SourceAnswer(source=f"s{number}", model=name, answered=one, said="" if one else "no answer")
        for number, one in enumerate(answered)
    )


@pytest.mark.parametrize(
    ("answered", "here", "verdicts"),
    [
        ((True,), False, ["pass"]),
        ((False,), False, ["fail"]),
        ((False, True), False, ["warn", "pass"]),
        ((False, False), False, ["fail", "fail"]),
        ((False,), True, ["warn"]),
    ],
)
def test_only_what_is_needed_and_nowhere_to_be_had_is_a_failure(
    tmp_path: Path, answered: tuple[bool, ...], here: bool, verdicts: list[str]
) -> None:
    found = host(tmp_path)
    (facts,) = needed_artifacts(found, told())
    state: Any = {"model": facts.model, "variant": facts.variant, "state": "ready", "size_bytes": facts.total_bytes}
    snapshot = told(ArtifactState(artifact=facts.artifact, **state)) if here else told()
    checks = list(source_checks(found, snapshot, _answers(found, *answered)))
    assert [check.verdict for check in checks] == verdicts
    assert all("egress" in check.next_step for check in checks if check.verdict != "pass")


def test_a_host_that_cannot_be_asked_is_no_failure(tmp_path: Path) -> None:
    (skipped,) = source_checks(host(tmp_path), told(), None)
    assert (skipped.verdict, skipped.detail) == ("skip", "asked once a runtime is there (sbctl apply)")
    (warned,) = source_checks(host(tmp_path), told(), HostError("node.unknown_method", "its runtime is older"))
    assert warned.verdict == "warn"
    assert not list(source_checks(host(tmp_path), told(), ()))


async def test_a_source_is_asked_for_one_byte_with_the_settings_of_a_pull(tmp_path: Path) -> None:
    facts = weights(tmp_path)
    settings = FetchSettings.from_environ({})
    settings = FetchSettings(settings.index, settings.hf_endpoint, hosts=frozenset({"127.0.0.1"}))
    with DownloadServer({"/w": b"x" * 4096}) as server:
        mirrors = (server.url("/gone"), f"file:{tmp_path}/nothing", "http://10.0.0.1/x", facts.source)
        facts = facts.model_copy(update={"source": server.url("/w"), "mirrors": mirrors})
        good, gone, nothing, private, local = await ask_sources([facts], settings)
        assert server.sent_bytes < 1024
    assert (good.answered, good.said, good.model) == (True, "", "tiny:q4")
    assert (gone.answered, nothing.answered, private.answered, local.answered) == (False, False, False, True)
    assert "404" in gone.said
    assert "no such regular file" in nothing.said
    assert private.said

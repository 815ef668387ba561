from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.artifacts.lockfile import LOCK_NAME
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import ExitCode, InputError
from sbctl.cli import running
from sbctl.cli.main import main
from sbctl.cli.models_lock import write_models_lock
from sbctl.cli.running import RunRequest, configuration_of
from sbctl.config.load import load


def test_the_configuration_of_a_run_is_an_ordinary_one(tmp_path: Path) -> None:
    request = RunRequest("smollm2-135m-instruct", name="tiny", max_concurrency=3, cache_directory=tmp_path / "cache")
    file = tmp_path / "sb.yml"
    file.write_text(json.dumps(configuration_of(request, 18080, 19090)))
    config = load(file, environ={}, keyed=None)
    host = config.hosts["local"]
    assert (host.proxy.bind_address, host.proxy.http_bind_port) == ("127.0.0.1", 18080)
    assert (host.proxy.admin.enabled, host.proxy.admin.bind, host.proxy.admin.port) == (True, "127.0.0.1", 19090)
    assert sorted(host.origins) == ["127.0.0.1", "localhost"]
    assert {route.model for origin in host.origins.values() for route in origin.routes} == {"tiny"}
    deployment = host.deployments["local"]
    assert (deployment.model.pull, deployment.model.warm, deployment.max_concurrency) == ("on_boot", True, 3)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (RunRequest("hf:Org/Repo"), "run.model"),
        (RunRequest("Org/Repo"), "run.model"),
        (RunRequest("smollm2-135m-instruct:q4_1"), "run.model"),
        (RunRequest("smollm2-135m-instruct", engine="vllm"), "run.engine"),
        (RunRequest("smollm2-135m-instruct", acceleration="vulkan"), "run.acceleration"),
        (RunRequest("smollm2-135m-instruct", acceleration="cuda"), "run.acceleration"),
    ],
)
def test_what_cannot_be_run_is_refused_with_a_way_out(request_: RunRequest, code: str) -> None:
    with pytest.raises(InputError) as refused:
        configuration_of(request_, 18080, 19090)
    assert refused.value.code == code
    assert refused.value.next_step


def test_a_run_that_is_locked_starts_what_was_locked_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBCTL_NODE_PREFIX", str(tmp_path / "node"))
    started: list[str] = []
    monkeypatch.setattr(running, "_carry_out", lambda _workspace, command: started.append(command) or ExitCode.FAILED)
    words = ["run", "smollm2-135m-instruct", "--locked", "--port", "0"]
    assert main(words) == ExitCode.INVALID, "there is no lockfile"
    config = configuration_of(RunRequest("smollm2-135m-instruct"), 18080, 19090)
    (tmp_path / "sb.yml").write_text(json.dumps(config))
    lock = tmp_path / LOCK_NAME
    write_models_lock(load(tmp_path / "sb.yml", environ={}, keyed=None), lock, SYSTEM_CLOCK)
    assert main(words) == ExitCode.FAILED, "it came as far as starting"
    assert started == ["apply"]
    document = json.loads(lock.read_text())
    for file in document["models"][0]["files"]:
        file["sha256"] = "0" * 64
    lock.write_text(json.dumps(document))
    assert main(words) == ExitCode.REFUSED
    assert started == ["apply"], "nothing was started"

"""Engines and runtimes that die, and candidates that are no good: what serves goes on serving, and says what happened."""

from __future__ import annotations

import threading
import time

import pytest

from tests.simulators.operator_world import OperatorWorld, until

pytestmark = pytest.mark.integration


def _row(world: OperatorWorld) -> dict[str, object]:
    (row,) = world.status()
    return row


def test_a_killed_engine_is_started_again_and_status_says_why(changing: OperatorWorld) -> None:
    before = changing.engine.pid
    restarts = _row(changing)["restarts"]
    changing.behaves(loads_until_told=True)
    changing.engine.kill()
    row = until(lambda: (found := _row(changing))["state"] != "ready" and found, "the failure in the status")
    assert row["reason_code"] == "engine_exited"
    assert "SIGKILL" in str(row["last_error"])
    changing.behaves()
    until(lambda: _row(changing)["state"] == "ready", "the engine again")
    assert changing.engine.pid != before
    assert _row(changing)["restarts"] == int(str(restarts)) + 1
    assert changing.answers()
    changing.sbctl("drift", expect=0)
    changing.settled = True


def test_an_engine_that_does_not_start_is_tried_again_by_itself_and_is_no_drift(changing: OperatorWorld) -> None:
    changing.behaves(exit_at_once=3)
    changing.engine.kill()
    row = until(lambda: "exit code 3" in str((found := _row(changing))["last_error"]) and found, "the cause")
    assert row["reason_code"] == "engine_early_exit"
    changing.behaves()
    changing.sbctl("drift", expect=0)
    until(lambda: _row(changing)["state"] == "ready", "the engine again")
    assert changing.answers()
    changing.settled = True


def test_a_killed_runtime_comes_back_by_itself_without_a_second_engine(changing: OperatorWorld) -> None:
    (serve,) = changing.running("main serve")
    engine = changing.engine.pid
    serve.kill()
    until(lambda: not any(process.pid == serve.pid for process in changing.running("main serve")), "its end")
    until(changing.answers, "answers again")
    assert changing.engine.pid != engine
    assert len(changing.running("main serve")) == 1
    changing.check_settled()


def test_with_the_whole_runtime_killed_no_engine_is_left_and_the_next_apply_serves_again(
    changing: OperatorWorld,
) -> None:
    for word in ("main supervise", "main serve"):
        for process in changing.running(word):
            process.kill()
    until(lambda: not changing.processes(), "no process of ours")
    assert "runtime.local" in changing.sbctl("drift", expect=2).out
    changing.sbctl("apply", "--yes", expect=0)
    assert changing.answers()
    assert len(changing.running("--model")) == 1
    changing.check_settled()


@pytest.mark.parametrize(
    "behave", [{"exit_at_once": 3}, {"other_port": True, "never_ready": True, "crash_after_s": 1.0}]
)
def test_a_candidate_that_does_not_start_changes_nothing(changing: OperatorWorld, behave: dict[str, object]) -> None:
    engine = changing.engine.pid
    answers: list[bool] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            answers.append(changing.answers())
            time.sleep(0.02)

    asking = threading.Thread(target=ask)
    changing.behaves(**behave)
    changing.deployments["chat"]["max_concurrency"] = 3
    # The program's faults apply to what starts from now on; what runs reads only `never_ready` anew, so it is asked elsewhere.
    if "never_ready" not in behave:
        asking.start()
    failed = changing.sbctl("apply", "--yes", expect=1)
    stop.set()
    if asking.ident is not None:
        asking.join()
        assert answers
        assert all(answers)
    said = failed.text
    assert "local" in said
    assert "apply bundle to local" in said
    assert "deployment.local/chat" in said
    assert "meanwhile the host stays at revision" in " ".join(said.split()), "what still serves"
    assert changing.engine.pid == engine
    changing.behaves()
    assert changing.answers()
    assert "1 to change" in changing.sbctl("plan", expect=2).text
    document = changing.sbctl("apply", "--yes", "--format", "json", expect=0).json()
    assert document["status"] == "applied"
    assert "--parallel 3" in " ".join(changing.engine.cmdline())


def test_a_failed_apply_as_json_names_host_step_cause_and_next_step(changing: OperatorWorld) -> None:
    changing.behaves(exit_at_once=3)
    changing.deployments["chat"]["max_concurrency"] = 3
    document = changing.sbctl("apply", "--yes", "--format", "json", expect=1).json()
    assert document["exit_code"] == 1
    assert document["status"] in ("failed", "partial")
    failed = {row["address"]: row for row in document["changes"] if row["status"] == "failed"}
    row = failed["bundle.local"]
    assert row["host"] == "local"
    assert row["step"]
    assert row["error"]["code"]
    assert row["error"]["message"]
    assert row["next_step"] or row["error"]["next_step"]


def test_what_a_killed_run_had_only_intended_is_settled_by_the_next_one_that_finds_nothing_to_do(
    changing: OperatorWorld,
) -> None:
    changing.deployments["chat"]["max_concurrency"] = 5
    killed = changing.sbctl("apply", "--yes", env={"SBCTL_TESTING": "1", "SBCTL_CRASH_AT": "2"})
    assert killed.code == -9
    assert changing.sbctl("state", "list", "--format", "json", expect=0).json()["open_intents"]
    changing.deployments["chat"]["max_concurrency"] = changing.base["proxy"]["model_host"]["deployments"]["chat"][
        "max_concurrency"
    ]
    changing.sbctl("apply", "--yes", expect=0)
    assert changing.sbctl("state", "list", "--format", "json", expect=0).json()["open_intents"] == []
    serial = changing.sbctl("state", "list", "--format", "json", expect=0).json()["serial"]
    changing.sbctl("apply", "--yes", expect=0)
    assert changing.sbctl("state", "list", "--format", "json", expect=0).json()["serial"] == serial

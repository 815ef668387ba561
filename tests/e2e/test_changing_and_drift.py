"""From an edit to a served change, and from a change behind our back to its repair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable

import pytest

from tests.simulators.operator_world import OperatorWorld, until

pytestmark = pytest.mark.integration


def test_an_applied_fleet_has_nothing_to_change_and_applying_it_again_does_nothing(served: OperatorWorld) -> None:
    before = served.engine.pid
    serial = served.sbctl("state", "pull", expect=0).json()["serial"]
    assert "No changes" in served.sbctl("plan", expect=0).out
    assert "No changes" in served.sbctl("apply", "--yes", expect=0).text
    assert "No drift" in served.sbctl("drift", expect=0).out
    assert served.sbctl("state", "pull", expect=0).json()["serial"] == serial
    assert served.engine.pid == before


def test_an_edit_of_max_concurrency_is_one_reload_that_loses_no_request(changing: OperatorWorld) -> None:
    changing.deployments["chat"]["max_concurrency"] = 5
    planned = changing.sbctl("plan", expect=2)
    assert "0 to add, 1 to change, 0 to remove" in planned.text
    assert "Blast radius: reload" in planned.text
    assert "max_concurrency 2 → 5" in planned.text
    document = changing.sbctl("plan", "--format", "json", expect=2).json()
    updated = [row["address"] for row in document["resource_changes"] if row["action"] == "update"]
    assert "deployment.local/chat" in updated
    changing.sbctl("apply", "--yes", expect=0)
    assert "--parallel 5" in " ".join(changing.engine.cmdline())
    assert changing.answers()
    changing.sbctl("plan", expect=0)


def test_an_edit_of_the_file_is_no_drift(served: OperatorWorld) -> None:
    served.deployments["chat"]["max_concurrency"] = 7
    served.sbctl("plan", expect=2)
    served.sbctl("drift", expect=0)


def test_a_typo_in_a_limit_does_not_go_further_than_asked(served: OperatorWorld) -> None:
    served.deployments["chat"]["max_concurrency"] = 7
    refused = served.sbctl("apply", "--yes", "--max-blast-radius", "hitless", expect=4)
    assert "reload" in refused.text
    served.sbctl("drift", expect=0)


def _stop_deployment(world: OperatorWorld) -> None:
    assert world.admin("POST", "/admin/model-host/stop", {"deployment": "chat"})[0] == 202
    until(lambda: not world.running("--model"), "the engine's end")


def _edit_runtime_configuration(world: OperatorWorld) -> None:
    document = json.loads(world.paths.runtime_config.read_text())
    document["shutdown_deadline_ms"] = 1234
    world.paths.runtime_config.write_text(json.dumps(document))


def _stop_daemon(world: OperatorWorld) -> None:
    for process in world.running("main supervise"):
        process.terminate()
    until(lambda: not world.running("main serve"), "the runtime's end")


def _remove_runtime_program(world: OperatorWorld) -> None:
    (version,) = (path for path in world.paths.opt.iterdir() if path.is_dir() and not path.is_symlink())
    shutil.rmtree(version)


def _forget_bundle(world: OperatorWorld) -> None:
    _stop_daemon(world)
    world.paths.bundle.unlink()


BEHIND_OUR_BACK: dict[str, tuple[Callable[[OperatorWorld], None], str]] = {
    "the deployment is stopped through the admin API": (_stop_deployment, "deployment.local/chat"),
    "the runtime's configuration is edited": (_edit_runtime_configuration, "runtime.local"),
    "the runtime is stopped": (_stop_daemon, "runtime.local"),
    "the runtime's program is removed": (_remove_runtime_program, "runtime.local"),
    "the accepted bundle is removed": (_forget_bundle, "bundle.local"),
}


@pytest.mark.parametrize("event", BEHIND_OUR_BACK)
def test_a_change_behind_our_back_is_named_and_the_next_apply_repairs_it(changing: OperatorWorld, event: str) -> None:
    happen, address = BEHIND_OUR_BACK[event]
    happen(changing)
    assert address in changing.sbctl("drift", expect=2).out
    planned = changing.sbctl("apply", "--yes", expect=0)
    assert address in planned.out
    assert changing.answers()
    changing.check_settled()


def test_deleted_weights_are_named_and_had_again_by_the_next_apply_unless_the_runtime_was_first(
    changing: OperatorWorld,
) -> None:
    """It looks for them every half a minute."""
    shutil.rmtree(changing.paths.models)
    drift, applied = changing.sbctl("drift"), changing.sbctl("apply", "--yes", expect=0)
    first = "weights.quarantined" in changing.sbctl("events", "--format", "json", expect=0).out
    for said in (drift.out, applied.out):
        assert "artifact.local/tiny:q4" in said or first
    # An engine that runs on what was deleted is drained and started anew at the next look; here it is done at once.
    _stop_deployment(changing)
    assert changing.admin("POST", "/admin/model-host/load", {"deployment": "chat"})[0] == 202
    until(changing.answers, "answers again")
    changing.check_settled()

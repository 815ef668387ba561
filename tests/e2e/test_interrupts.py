"""Ctrl-C: once, the running step finishes; twice, everything stops at once; never is anything lost."""

from __future__ import annotations

import signal

import pytest

from tests.simulators.operator_world import OperatorWorld, until

pytestmark = pytest.mark.integration


def _replace_model(world: OperatorWorld) -> None:
    """After the slow bundle there is one more step: the old weights are removed."""
    world.deployments["chat"]["model"] = "small"
    world.config["origins"]["localhost"]["action"] = world.serving(chat=["small"])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_once_lets_the_running_step_finish_and_starts_no_other(
    changing: OperatorWorld, number: signal.Signals, code: int
) -> None:
    _replace_model(changing)
    changing.behaves(never_ready=True)
    running = changing.start("apply", "--yes")
    running.until_said("apply bundle to local")
    running.signal(number)
    running.until_said("stop")
    changing.behaves()
    done = running.finish()
    assert done.code == code
    summary = [line for line in done.out.splitlines() if line.startswith("Interrupted:")]
    assert len(summary) == 1
    assert "not started" in summary[0]
    assert changing.answers("small")
    history = changing.sbctl("state", "history", "--format", "json", expect=0).json()
    assert history["runs"][0]["status"] == "interrupted"
    planned = changing.sbctl("plan", expect=2)
    assert "- artifact.local/tiny:q4" in planned.text
    assert "1 to remove" in planned.text
    changing.sbctl("apply", "--yes", expect=0)
    changing.check_settled()


def test_twice_stops_at_once_and_the_next_apply_finds_out_what_became_of_it(changing: OperatorWorld) -> None:
    _replace_model(changing)
    changing.behaves(never_ready=True)
    running = changing.start("apply", "--yes")
    running.until_said("apply bundle to local")
    running.signal(signal.SIGINT)
    running.until_said("stop")
    running.signal(signal.SIGINT)
    done = running.finish(60)
    assert done.code == 130
    changing.behaves()
    assert changing.sbctl("state", "list", expect=0).out
    until(lambda: changing.answers() or changing.answers("small"), "one of both serves")
    changing.sbctl("apply", "--yes", expect=0)
    assert changing.answers("small")
    assert len(changing.running("--model")) == 1
    changing.check_settled()


def test_SIGKILL_in_the_middle_is_found_out_by_the_next_apply(changing: OperatorWorld) -> None:
    _replace_model(changing)
    changing.behaves(never_ready=True)
    running = changing.start("apply", "--yes")
    running.until_said("apply bundle to local")
    running.signal(signal.SIGKILL)
    assert running.finish().code == -signal.SIGKILL
    changing.behaves()
    assert "nobody holds" in changing.sbctl("state", "unlock", expect=0).err
    assert changing.sbctl("plan").code == 2
    changing.sbctl("apply", "--yes", expect=0)
    assert changing.answers("small")
    assert len(changing.running("--model")) == 1
    changing.check_settled()


def test_before_anything_was_begun_an_interrupt_leaves_nothing(world: OperatorWorld) -> None:
    running = world.start("apply", "--yes")
    running.signal(signal.SIGINT)
    assert running.finish().code in (130, -signal.SIGINT)
    assert world.leftovers() == []

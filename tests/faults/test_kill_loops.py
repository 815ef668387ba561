"""B1, F23, F24 over real processes: whatever is killed whenever, the next command ends what was begun, and nothing finished is forgotten.

Every boundary of an apply over simulated hosts is in tests/attacks/test_apply_attacks.py; here each round is the whole product. A failed
round prints its seed: SBCTL_KILL_SEED=<seed> draws the same moments again.
"""

from __future__ import annotations

import copy
import random
import signal
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from tests.simulators.kill_loop import (
    CHANGED_MINDS,
    LAP,
    KillLoop,
    Moment,
    Operation,
    Round,
    Victim,
    every_nth,
    fresh_seed,
    quick_world,
)
from tests.simulators.operator_world import OperatorWorld, until

SEED = fresh_seed()
FIRST, STRIDE = every_nth()
pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]


def changed_of(world: OperatorWorld) -> dict[str, Any]:
    """Touches the runtime, an artifact, both kinds of members: one deployment is reloaded, one is new."""
    changed = copy.deepcopy(world.base)
    model_host = changed["proxy"]["model_host"]
    model_host["shutdown_deadline_ms"] = 2000
    model_host["deployments"]["chat"]["max_concurrency"] = 3
    model_host["deployments"]["code"] = {**model_host["deployments"]["chat"], "model": "small"}
    changed["origins"]["localhost"]["action"] = world.serving(chat=["tiny"], code=["small"])
    return changed


@pytest.fixture
def loop() -> Iterator[KillLoop]:
    with quick_world() as world:
        yield KillLoop(world, changed_of(world), {"create": 1, "update": 2, "rollback": 1, "destroy": 0})


def play(
    loop: KillLoop, draw: random.Random, rounds: Sequence[Round], victims: dict[Operation, Victim], *, boundaries: bool
) -> None:
    """From an empty machine to an empty machine."""
    loop.told.append(f"seed {SEED}")
    for operation, instead in rounds:
        at_random = Moment.at_random(draw, loop.about_s[operation])
        moment = Moment.at_boundary(draw, loop.about_boundaries[operation]) if boundaries else at_random
        loop.play(operation, victims[operation], moment, instead=instead)


SBCTL: dict[Operation, Victim] = dict.fromkeys(("create", "update", "rollback", "destroy"), "sbctl")
NODE_AND_RUNTIME: dict[Operation, Victim] = {
    "create": "node interface", "update": "runtime", "rollback": "node interface", "destroy": "runtime",
}  # fmt: skip
SUPERVISOR_AND_ENGINE: dict[Operation, Victim] = {
    "create": "engine", "update": "supervisor", "rollback": "engine", "destroy": "supervisor",
}  # fmt: skip
VICTIMS = [
    pytest.param(LAP, SBCTL, True, id="sbctl at step boundaries", marks=pytest.mark.soak),
    pytest.param(CHANGED_MINDS, SBCTL, False, id="sbctl at random moments"),
    pytest.param(LAP, NODE_AND_RUNTIME, False, id="node interface and runtime"),
    pytest.param(LAP, SUPERVISOR_AND_ENGINE, False, id="supervisor and engine"),
]


@pytest.mark.parametrize(("rounds", "victims", "boundaries"), VICTIMS)
def test_B1_killed_anywhere_the_next_command_converges_and_nothing_finished_is_forgotten(
    loop: KillLoop, rounds: Sequence[Round], victims: dict[Operation, Victim], boundaries: bool
) -> None:
    draw = random.Random(f"{SEED} {sorted(victims.items())} {boundaries}")
    play(loop, draw, rounds, victims, boundaries=boundaries)
    assert loop.reader.reads > 20
    assert loop.victims >= 3, loop.story()


@pytest.mark.parametrize("then", ["update", "rollback"])
def test_B1_a_runtime_that_goes_on_after_its_operator_was_killed_is_waited_for(loop: KillLoop, then: Operation) -> None:
    loop.bring("create")
    loop.world.behaves(loads_until_told=True)
    loop.prepare("update")
    command = loop.world.start("apply", "--yes")
    until(lambda: loop.world.running("--parallel 3"), "the runtime at work on the new bundle", 240)
    command.signal(signal.SIGKILL)
    command.finish()
    loop.prepare(then)
    command = loop.world.start(*loop.arguments(then))
    command.until_said("waiting for the runtime")
    loop.world.behaves()
    done = command.finish()
    assert done.code == 0, loop.story(done)
    loop.bring(then)


BACK: dict[Operation, Operation] = {
    "create": "destroy", "update": "rollback", "rollback": "update", "destroy": "create",
}  # fmt: skip


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("operation", BACK)
def test_B1_sbctl_killed_at_every_step_boundary(loop: KillLoop, operation: Operation) -> None:
    for earlier in ("create", "update", "rollback", "destroy"):
        if earlier == operation:
            break
        loop.bring(earlier)
    boundary = FIRST
    while loop.play(operation, "sbctl", Moment(boundary=boundary)):
        loop.bring(BACK[operation])
        boundary += STRIDE
    assert boundary > 20, loop.story()


@pytest.fixture
def real() -> Iterator[KillLoop]:
    """llama.cpp and the small model."""
    with quick_world() as world:
        model_host = world.base["proxy"]["model_host"]
        del model_host["catalog_file"]
        model_host["engines"] = {"llama_cpp": {"launch": "wheel"}}
        model_host["deployments"]["chat"] |= {"model": "smollm2-135m-instruct", "variant": "q4_1"}
        changed = changed_of(world)
        changed["proxy"]["model_host"]["deployments"]["code"]["model"] = "smollm2-135m-instruct"
        loop = KillLoop(world, changed, {"create": 1, "update": 2, "rollback": 1, "destroy": 0})
        loop.about_boundaries |= {"update": 17, "rollback": 17}
        yield loop


LONG_LAP: tuple[Operation, ...] = ("create", *(("update", "rollback") * 9), "destroy")


@pytest.mark.soak
@pytest.mark.engine
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("lap", range(10))
def test_B1_two_hundred_rounds_with_the_real_engine(real: KillLoop, lap: int) -> None:
    draw = random.Random(f"{SEED} {lap}")
    real.told.append(f"seed {SEED}, lap {lap}")
    for operation in LONG_LAP:
        victim = draw.choice(("sbctl", "sbctl", "sbctl", "node interface", "runtime", "supervisor", "engine"))
        at_boundary = victim == "sbctl" and draw.random() < 0.5
        at_random = Moment.at_random(draw, real.about_s[operation])
        boundary = Moment.at_boundary(draw, real.about_boundaries[operation])
        real.play(operation, victim, boundary if at_boundary else at_random)
    assert real.world.leftovers() == []

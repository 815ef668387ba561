"""B1, E over a real host and a shared state: sbctl dies at a step boundary, the link breaks at some byte, the host loses its power,
and another checkout goes on.

    round = operation: killed at a boundary ► another checkout, link cut at a random byte ► a third checkout converges
    afterwards: plan and drift agree, one runtime, the engines asked for, nothing temporary; after a removal nothing at all

A failed round prints its seed; SBCTL_KILL_SEED=<seed> draws the same boundaries and bytes again, and SBCTL_SOAK_PART=2/5
plays a fifth of the loop over all boundaries.
"""

from __future__ import annotations

import base64
import copy
import math
import random
import shutil
from collections.abc import Iterator
from typing import Final, Literal

import pytest

from tests.lab.fixture import Lab, LabHost
from tests.simulators.cut_link import CutLink, cut_link
from tests.simulators.kill_loop import every_nth, fresh_seed
from tests.simulators.operator_world import FAKE, Done, OperatorWorld, new_world, until
from tests.simulators.state_server import StateServer, serving

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

Operation = Literal["create", "update", "destroy"]

SEED = fresh_seed()
FIRST, STRIDE = every_nth()
PROGRAM = "/usr/local/bin/llama-server"
ENGINES: Final[dict[Operation, int]] = {"create": 1, "update": 2, "destroy": 0}
ABOUT_BOUNDARIES: Final[dict[Operation, int]] = {"create": 40, "update": 24, "destroy": 26}
ABOUT_BYTES: Final[dict[Operation, int]] = {"create": 20_000_000, "update": 150_000, "destroy": 100_000}
BACK: Final[dict[Operation, tuple[Operation, ...]]] = {
    "create": ("destroy",), "update": ("destroy", "create"), "destroy": ("create",),
}  # fmt: skip
BEFORE: Final[dict[Operation, tuple[Operation, ...]]] = {
    "create": (), "update": ("create",), "destroy": ("create",),
}  # fmt: skip
FIND: Final = "find / -xdev -name '*sbctl*' -not -path '/proc/*'"


@pytest.fixture(scope="module")
def host(lab: Lab) -> Iterator[LabHost]:
    chosen = lab.hosts[1]
    lab.pristine(chosen)
    chosen.ssh(f"echo {base64.b64encode(FAKE.read_bytes()).decode()} | base64 -d > {PROGRAM}; chmod 755 {PROGRAM}")
    yield chosen
    lab.pristine(chosen)
    chosen.ssh(f"rm -f {PROGRAM}*")


class Loop:
    """One host behind a link that can be cut, and as many checkouts as there were accidents."""

    def __init__(self, world: OperatorWorld, lab: Lab, host: LabHost, link: CutLink, server: StateServer) -> None:
        self.world, self.lab, self.host, self.link, self.server = world, lab, host, link, server
        self.before = self.paths()
        self.told = [f"seed {SEED}"]
        self.kills = self.cuts = self._checkouts = 0
        self.changed = copy.deepcopy(world.config)
        model_host = self.changed["proxy"]["model_host"]
        model_host["shutdown_deadline_ms"] = 2000
        model_host["deployments"]["chat"]["max_concurrency"] = 3
        model_host["deployments"]["code"] = {**model_host["deployments"]["chat"], "model": "small"}
        self.changed["origins"]["localhost"]["action"] = world.serving(chat=["tiny"], code=["small"])
        self.base = copy.deepcopy(world.config)

    def paths(self) -> set[str]:
        """Every path of the host with our name in it."""
        return set(self.host.ssh(FIND).splitlines())

    def play(
        self,
        operation: Operation,
        *,
        boundary: int | None = None,
        cut_bytes: int | None = None,
        dark_at: int | None = None,
    ) -> bool:
        """False: the operation ended before the boundary, the cut and the step that begins or ends when the host's power goes."""
        self.world.config = copy.deepcopy(self.changed if operation == "update" else self.base)
        struck = False
        if boundary is not None:
            struck = self._killed(operation, boundary)
        if cut_bytes is not None:
            struck = self._cut(operation, cut_bytes) or struck
        if dark_at is not None:
            struck = self._dark(operation, dark_at) or struck
        self.converge(operation)
        return struck

    def _killed(self, operation: Operation, boundary: int) -> bool:
        done = self._run(operation, {"SBCTL_TESTING": "1", "SBCTL_CRASH_AT": str(boundary)})
        self.told.append(f"{operation}: ended with {done.code} at boundary {boundary}")
        assert done.code in (0, -9), self.story(done)
        self.kills += done.code == -9
        self.another_checkout()
        return done.code == -9

    def _cut(self, operation: Operation, count: int) -> bool:
        self.link.cut_after(count)
        try:
            done = self._run(operation, {})
        finally:
            was_cut = self.link.is_cut
            self.link.heal()
        self.told.append(
            f"{operation}: ended with {done.code}, the link {'cut' if was_cut else 'whole'} after {count} bytes"
        )
        assert done.code in (0, 1, 7), self.story(done)
        assert was_cut or done.code == 0, self.story(done)
        assert not any(word in done.text for word in ("Traceback", "internal.error")), self.story(done)
        assert done.code == 0 or self.host.name in done.out + done.err, self.story(done)
        self.cuts += was_cut
        self.another_checkout()
        return was_cut

    def _dark(self, operation: Operation, number: int) -> bool:
        command = self.world.start(*_arguments(operation), "--format", "json")
        until(lambda: command.times_said('"step_') >= number or command.process.poll() is not None, "a step", 400)
        goes = command.process.poll() is None
        if goes:
            self.lab.kill(self.host)
        done = command.finish(400)
        if goes:
            self.lab.start(self.host)
        self.told.append(
            f"{operation}: ended with {done.code}, the power {'lost' if goes else 'kept'} at step event {number}"
        )
        assert done.code in ((0, 1, 7) if goes else (0,)), self.story(done)
        assert not any(word in done.text for word in ("Traceback", "internal.error")), self.story(done)
        self.another_checkout()
        return goes

    def _run(self, operation: Operation, env: dict[str, str]) -> Done:
        return self.world.sbctl(*_arguments(operation), env=env)

    def another_checkout(self) -> None:
        """What `git clone` gives; a lock that the dead left on the server is taken by the id it names."""
        self._checkouts += 1
        target = self.world.root / f"checkout{self._checkouts}"
        shutil.copytree(self.world.fleet, target, ignore=shutil.ignore_patterns(".sbctl"))
        self.world.fleet = target
        holder = self.server.place().holder
        if holder is not None:
            self.world.sbctl("state", "unlock", holder["ID"], expect=0)

    def converge(self, operation: Operation) -> None:
        """The same again, to its end; then everything agrees."""
        self.world.config = copy.deepcopy(self.changed if operation == "update" else self.base)
        done = self._run(operation, {})
        assert done.code == 0, self.story(done)
        assert self.server.place().holder is None, self.story()
        if operation == "destroy":
            assert self.paths() == self.before, self.story()
            assert self._count("[/]opt/sbctl") == 0, self.story()
        else:
            for command in ("drift", "plan"):
                looked = self.world.sbctl(command)
                assert looked.code == 0, self.story(looked)
            assert self._count("[m]ain serve") == 1, self.story()
            temporaries = self.host.ssh(
                "find /opt/sbctl /var/lib/sbctl /etc/sbctl /var/cache/sbctl -name '.sbctl-tmp-*'"
            )
            assert temporaries == "", self.story()
        assert self._count("[-]-model") == ENGINES[operation], self.story()

    def _count(self, pattern: str) -> int:
        return int(self.host.ssh(f"pgrep -fc -- '{pattern}' || true"))

    def story(self, done: Done | None = None) -> str:
        said = "" if done is None else f"\n{done.argv} ended with {done.code}\n{done.out}\n{done.err}"
        return "\n".join(self.told) + said


def _arguments(operation: Operation) -> tuple[str, ...]:
    return ("destroy" if operation == "destroy" else "apply", "--yes", "--lock-timeout", "120")


@pytest.fixture
def loop(host: LabHost, lab: Lab) -> Iterator[Loop]:
    with serving(gitlab=False) as server, cut_link(host.address) as link, new_world() as world:
        world.config = {
            **copy.deepcopy(world.base),
            "fleet": {
                "name": "loop",
                "state": {"backend": "http", "address": server.url()},
                "ssh": {"user": "deploy", "become": "sudo", "identity_file": host.identity_file},
                "defaults": {"delivery": "push"},
                "hosts": {
                    host.name: {"address": "127.0.0.1", "host_key": host.fingerprint, "ssh": {"port": link.port}}
                },
            },
        }
        world.config["proxy"]["model_host"]["engines"] = {"llama_cpp": {"launch": "binary", "path": PROGRAM}}
        yield Loop(world, lab, host, link, server)
        lab.pristine(host)


def some_bytes(draw: random.Random, operation: Operation) -> int:
    """As often early (handshakes, messages) as late (uploads)."""
    return int(math.exp(draw.uniform(math.log(500), math.log(ABOUT_BYTES[operation]))))


def test_B1_killed_and_cut_anywhere_another_checkout_converges_without_a_duplicate_or_leftover(loop: Loop) -> None:
    draw = random.Random(SEED)
    operations: tuple[Operation, ...] = ("create", "update", "destroy")
    for operation in operations:
        boundary = draw.randint(1, ABOUT_BOUNDARIES[operation])
        loop.play(operation, boundary=boundary, cut_bytes=some_bytes(draw, operation))
    assert loop.kills + loop.cuts >= 2, loop.story()


@pytest.mark.soak
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("operation", BACK)
def test_B1_killed_at_every_step_boundary_another_checkout_converges(loop: Loop, operation: Operation) -> None:
    for earlier in BEFORE[operation]:
        loop.converge(earlier)
    boundary = FIRST
    while loop.play(operation, boundary=boundary):
        for other in BACK[operation]:
            loop.converge(other)
        boundary += STRIDE
    assert boundary > 15, loop.story()


@pytest.mark.soak
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("operation", BACK)
def test_D_the_power_lost_at_every_begin_and_end_of_a_step(loop: Loop, operation: Operation) -> None:
    for earlier in BEFORE[operation]:
        loop.converge(earlier)
    number = FIRST
    while loop.play(operation, dark_at=number):
        for other in BACK[operation]:
            loop.converge(other)
        number += STRIDE
    assert number > 3, loop.story()


@pytest.mark.soak
@pytest.mark.timeout(14400)
@pytest.mark.parametrize("lap", range(20))
def test_E_the_link_cut_at_random_bytes(loop: Loop, lap: int) -> None:
    draw = random.Random(f"{SEED} {lap}")
    operations: tuple[Operation, ...] = ("create", "update", "destroy")
    for operation in operations:
        loop.play(operation, cut_bytes=some_bytes(draw, operation))
    assert loop.cuts >= 1, loop.story()

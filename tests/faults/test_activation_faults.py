"""An activation that fails or dies before its n-th operation, for every n: the host runs the old one or the new one, whole, and says which."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base import fs
from sbctl.base.errors import HostError, SbctlError
from sbctl.runtime.nodeops.side_units import ENROLLMENT_UNIT
from sbctl.runtime.nodeops.units import UNIT_NAME
from tests.simulators.activation_world import ActivationWorld, Died, strike_at
from tests.simulators.state_world import fast_directory

OLD, NEW = "0.1.0", "0.2.0"
CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("another version", NEW, {}),
    ("another configuration", OLD, {"max_parallel_prepares": 5}),
    ("another port", OLD, {"http_bind_port": 8099}),
    ("another version on another port", NEW, {"http_bind_port": 8099}),
]
ids = [name for name, _, _ in CHANGES]
AFTER = ["guard", "reboot and guard", "next activation"]
"""Who ends it. Each takes another third of the points, together all."""


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], ActivationWorld]]:
    """Worlds in which the old version runs and the new one is installed."""
    with fast_directory() as root:

        def one() -> ActivationWorld:
            world = ActivationWorld(Path(tempfile.mkdtemp(dir=root)), monkeypatch)
            world.install(OLD, NEW)
            world.activate(OLD)
            return world

        yield one


def die() -> None:
    raise Died


def disk_fails() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def points(make: Callable[[], ActivationWorld], version: str, config: dict[str, Any]) -> int:
    """How many operations an undisturbed activation has."""
    world = make()
    files = strike_at(world, -1, die)
    with fs.use_ops(files):
        world.activate(version, **config)
    return files.count


@pytest.mark.parametrize(("name", "version", "config"), CHANGES, ids=ids)
@pytest.mark.parametrize("after", AFTER)
def test_E12_a_node_process_that_dies_anywhere_leaves_a_host_that_heals_itself(
    make: Callable[[], ActivationWorld], name: str, version: str, config: dict[str, Any], after: str
) -> None:
    for when in range(1 + AFTER.index(after), points(make, version, config) + 1, len(AFTER)):
        world = make()
        old = world.facts()
        with fs.use_ops(strike_at(world, when, die)), pytest.raises(Died):
            world.activate(version, **config)
        world.tick = lambda: None
        if after == "reboot and guard":
            world.reboot()
        if after != "next activation":
            world.guard()
            assert not world.paths.activation_journal.exists(), (name, when)
            found = world.facts()
            if found["running"] != old["running"]:
                assert world.running is not None
                assert os.readlink(world.paths.current) == version == os.readlink(world.paths.proven), (name, when)
            else:
                assert os.readlink(world.paths.current) == OLD
            whole(world)
        world.activate(version, **config)
        whole(world)
        assert world.running is not None
        assert world.running.version == version
        assert not world.paths.activation.exists()


def whole(world: ActivationWorld) -> None:
    """What runs is what stands on the disk, units included."""
    from sbctl.runtime.nodeops.snapshot import stored_config
    from sbctl.runtime.nodeops.units import socket_addresses

    running = world.running
    assert running is not None
    assert running.version == os.readlink(world.paths.current)
    assert running.config_sha256 == stored_config(world.paths)[1]
    assert f"/opt/{running.version}/bin/python" in world.systemd.installed()[UNIT_NAME].decode()
    assert world.loaded == world.systemd.installed()
    assert running.addresses == socket_addresses(world.loaded)


@pytest.mark.parametrize(("name", "version", "config"), CHANGES, ids=ids)
def test_a_disk_that_fails_once_leaves_the_old_one_serving_or_the_new_one(
    make: Callable[[], ActivationWorld], name: str, version: str, config: dict[str, Any]
) -> None:
    for when in range(1 + len(name) % 3, points(make, version, config) + 1, 3):
        world = make()
        old = world.facts()
        files = strike_at(world, when, disk_fails)
        world.tick = lambda: None
        with fs.use_ops(files):
            try:
                world.activate(version, **config)
            except SbctlError as error:
                assert error.code.startswith(("disk.", "runtime.rolled_back")), (name, when, error.code)
                if not world.paths.activation_journal.exists():
                    assert world.facts()["running"] == old["running"], (name, when)
        world.guard()
        whole(world)
        world.activate(version, **config)
        whole(world)
        assert not world.paths.activation.exists()


@pytest.mark.parametrize("state", ["exploding", "hanging"])
@pytest.mark.parametrize("config", [{}, {"http_bind_port": 8099}])
def test_a_new_version_that_does_not_become_healthy_is_taken_back(
    make: Callable[[], ActivationWorld], state: str, config: dict[str, Any]
) -> None:
    world = make()
    old = world.facts()
    getattr(world, state).add(NEW)
    with pytest.raises(HostError) as caught:
        world.activate(NEW, **config)
    error = caught.value
    assert (error.code, int(error.exit_code)) == ("runtime.rolled_back", 1)
    assert "runtime 0.2.0 did not prove itself, and the former one serves again" in error.message
    assert "it exploded" in error.message
    assert world.facts() == old
    assert world.leftovers() == []
    whole(world)


@pytest.mark.parametrize("state", ["exploding", "hanging"])
@pytest.mark.parametrize("after", AFTER)
def test_E12_a_node_process_that_dies_anywhere_in_a_broken_upgrade(
    make: Callable[[], ActivationWorld], state: str, after: str
) -> None:
    for when in range(1 + AFTER.index(after), 400, len(AFTER)):
        world = make()
        old = world.facts()
        getattr(world, state).add(NEW)
        try:
            with fs.use_ops(strike_at(world, when, die)):
                world.activate(NEW)
        except Died:
            world.tick = lambda: None
        except HostError:
            break
        if after == "reboot and guard":
            world.reboot()
        if after == "next activation":
            world.activate(OLD)
        else:
            world.guard()
        assert world.facts() == old, when
        assert not world.paths.activation.exists()
        whole(world)
    else:
        pytest.fail("the activation has no end")


def test_when_the_old_one_does_not_come_back_either_both_are_said(make: Callable[[], ActivationWorld]) -> None:
    world = make()
    world.exploding = {OLD, NEW}
    with pytest.raises(HostError) as caught:
        world.activate(NEW)
    assert caught.value.code == "runtime.rollback_failed"
    assert "0.2.0 did not prove itself" in caught.value.message
    assert "the former one does not serve again" in caught.value.message
    assert os.readlink(world.paths.current) == OLD
    assert not world.paths.activation.exists()


def test_without_a_healthy_one_before_nothing_is_taken_back(make: Callable[[], ActivationWorld]) -> None:
    world = make()
    world.running = None
    world.exploding = {NEW}
    with pytest.raises(HostError) as caught:
        world.activate(NEW)
    assert caught.value.code == "runtime.not_healthy"
    world.exploding = set()
    world.activate(NEW)
    whole(world)


def test_a_rejected_signer_set_says_the_way_out(make: Callable[[], ActivationWorld]) -> None:
    from sbctl.trust.keys import SigningKey

    world = make()
    before = world.facts()
    world.key = SigningKey.generate()
    with pytest.raises(SbctlError) as caught:
        world.activate(OLD)
    assert "ops" in caught.value.message
    assert "destroy --target runtime.h" in (caught.value.next_step or "")
    assert world.facts() == before


def test_the_version_before_is_kept_and_older_ones_go(make: Callable[[], ActivationWorld]) -> None:
    world = make()
    world.install("0.3.0")
    world.activate(NEW)
    assert sorted(world.paths.opt.glob("0.*")) == [world.paths.version(OLD), world.paths.version(NEW)]
    world.install("0.3.0")
    world.activate("0.3.0")
    assert sorted(world.paths.opt.glob("0.*")) == [world.paths.version(NEW), world.paths.version("0.3.0")]
    world.activate("0.3.0", max_parallel_prepares=4)
    assert sorted(world.paths.opt.glob("0.*")) == [world.paths.version(NEW), world.paths.version("0.3.0")]


def test_a_version_that_the_enrollment_server_still_begins_stays(make: Callable[[], ActivationWorld]) -> None:
    world = make()
    unit = world.systemd.directory / ENROLLMENT_UNIT
    unit.write_text(f"[Service]\nExecStart={world.paths.version(OLD)}/bin/python -I -m sbctl.runtime.main authority\n")
    world.activate(NEW)
    world.install("0.3.0")
    world.activate("0.3.0")
    assert world.paths.version(OLD).is_dir()
    unit.unlink()
    world.install("0.4.0")
    world.activate("0.4.0")
    assert sorted(world.paths.opt.glob("0.*")) == [world.paths.version("0.3.0"), world.paths.version("0.4.0")]


def test_an_activation_with_nothing_to_do_asks_systemd_nothing(make: Callable[[], ActivationWorld]) -> None:
    world = make()
    world.commands.clear()
    assert world.activate(OLD) == world.activate(OLD)
    assert [command for command in world.commands if command[0] != "is-active"] == []
    assert world.leftovers() == []

"""`state mv`: a deployment gets another name within its host, a host does not, and nothing that exists is overwritten."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from sbctl.base.errors import SbctlError
from sbctl.base.ids import Address
from sbctl.base.truths import Recorded
from tests.simulators.state_world import StateWorld, desired, recorded


def entry(text: str, *after: str, member_of: str | None = None) -> Recorded:
    address = Address.parse(text)
    return replace(
        recorded(1),
        address=address,
        host=address.scope,
        after=frozenset(Address.parse(each) for each in after),
        member_of=None if member_of is None else Address.parse(member_of),
    )


def world_with(tmp_path: Path) -> StateWorld:
    world = StateWorld(tmp_path)
    with world.running(desired(1)) as run:
        run.record(entry("host.gpu-a"))
        run.record(entry("runtime.gpu-a", "host.gpu-a"))
        run.record(entry("bundle.gpu-a", "runtime.gpu-a"))
        run.record(entry("deployment.gpu-a/chat", "bundle.gpu-a", member_of="bundle.gpu-a"))
        run.record(entry("deployment.gpu-a/embed", member_of="bundle.gpu-a"))
        run.record(entry("host.gpu-b"))
        run.allocate_revision("gpu-a")
        run.allocate_revision("gpu-a")
        run.finish("applied")
    return world


def test_a_deployment_moves_within_its_host(tmp_path: Path) -> None:
    world = world_with(tmp_path)
    with world.locked() as store:
        store.rename(Address.parse("deployment.gpu-a/chat"), Address.parse("deployment.gpu-a/talk"))
    view = world.store().read()
    assert Address.parse("deployment.gpu-a/talk") in view.resources
    assert Address.parse("deployment.gpu-a/chat") not in view.resources
    assert view.revisions == {"gpu-a": 2}


def test_what_was_asked_for_is_renamed_too(tmp_path: Path) -> None:
    world = world_with(tmp_path)
    old, new = Address.parse("deployment.gpu-a/chat"), Address.parse("deployment.gpu-a/talk")
    with world.locked() as store:
        store.remove(old)
        store.adopt(entry(str(old)))
        store.rename(old, new)
    asked = [one.address for one in world.store().snapshot(world.store().read().serial).desired]
    assert new in asked
    assert old not in asked


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("host.gpu-a", "host.gpu-a", "state.cannot_move"),
        ("host.gpu-a", "runtime.gpu-a", "state.cannot_move"),
        ("runtime.gpu-a", "runtime.gpu-c", "state.cannot_move"),
        ("deployment.gpu-a/chat", "deployment.gpu-b/chat", "state.cannot_move"),
        ("host.gpu-a", "host.gpu-c", "state.cannot_move"),
        ("deployment.gpu-a/chat", "deployment.gpu-a/embed", "state.exists_already"),
        ("deployment.gpu-a/none", "deployment.gpu-a/other", "state.no_resource"),
    ],
)
def test_what_cannot_be_renamed_is_refused_and_nothing_changes(tmp_path: Path, old: str, new: str, code: str) -> None:
    world = world_with(tmp_path)
    before = world.store().read()
    with world.locked() as store, pytest.raises(SbctlError) as refused:
        store.rename(Address.parse(old), Address.parse(new))
    assert refused.value.code == code
    assert refused.value.next_step
    assert world.store().read() == before

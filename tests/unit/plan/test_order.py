from __future__ import annotations

from collections.abc import Iterable

import pytest

from sbctl.base.errors import InputError
from sbctl.base.ids import Address
from sbctl.plan.model import Action, Change
from sbctl.plan.order import address_key, dependants_of, execution_graph, run_order
from tests.simulators.planners import LOCAL, address, desired, recorded


def change(text: str, action: Action = "create", *, after: Iterable[str] = (), member_of: str | None = None) -> Change:
    one = desired(text, after=after, member_of=member_of)
    removes = action in ("delete", "forget")
    return Change(
        one.address,
        action,
        "",
        one.host,
        LOCAL,
        after=one.after,
        member_of=one.member_of,
        desired=None if removes else one,
        recorded=None if action == "create" else recorded(one),
    )


def ordered(*changes: Change) -> list[str]:
    by_address = {one.address: one for one in changes}
    return [str(one.address) for one in run_order(by_address, execution_graph(by_address))]


def test_hosts_stand_together_and_kinds_in_creation_order() -> None:
    kinds = ["bundle.b", "host.b", "runtime.a", "engine.b/x", "artifact.b/y", "host.a", "runtime.b"]
    assert ordered(*(change(kind) for kind in kinds)) == [
        "host.a", "runtime.a", "host.b", "runtime.b", "engine.b/x", "artifact.b/y", "bundle.b",
    ]  # fmt: skip


def test_edges_win_over_kinds() -> None:
    assert ordered(change("host.a", after=["bundle.a"]), change("bundle.a")) == ["bundle.a", "host.a"]


def test_deletes_follow_what_is_made_and_run_backwards() -> None:
    rows = [
        change("host.a", "no-op"),
        change("artifact.a/old", "delete", after=["host.a"]),
        change("engine.a/old", "delete", after=["host.a"]),
        change("bundle.a", "update", after=["artifact.a/new", "host.a"]),
        change("artifact.a/new", after=["host.a"]),
    ]
    assert ordered(*rows) == ["host.a", "artifact.a/new", "bundle.a", "artifact.a/old", "engine.a/old"]


def test_an_edge_into_a_bundle_may_cross_hosts() -> None:
    rows = [change("bundle.a", after=["artifact.b/x"]), change("artifact.b/x")]
    assert ordered(*rows) == ["artifact.b/x", "bundle.a"]


def test_members_without_their_bundle_stand_alone() -> None:
    assert ordered(change("deployment.a/x", member_of="bundle.a"), change("host.a")) == ["host.a", "deployment.a/x"]


@pytest.mark.parametrize(
    ("edges", "cycle"),
    [
        ({"host.a": ["host.a"]}, "host.a → host.a"),
        ({"host.a": ["runtime.a"], "runtime.a": ["host.a"]}, "host.a → runtime.a → host.a"),
        ({"engine.b/x": ["artifact.a/x"], "artifact.a/x": ["bundle.a"], "bundle.a": ["engine.b/x"]},
         "artifact.a/x → engine.b/x → bundle.a → artifact.a/x"),
    ],
)  # fmt: skip
def test_a_cycle_is_named_whole(edges: dict[str, list[str]], cycle: str) -> None:
    with pytest.raises(InputError) as caught:
        ordered(*(change(text, after=after) for text, after in edges.items()))
    assert caught.value.code == "plan.cycle"
    assert caught.value.exit_code == 3
    assert set(caught.value.message.removesuffix(" wait for each other").split(" → ")) == set(cycle.split(" → "))


def test_a_cycle_between_members_is_found() -> None:
    with pytest.raises(InputError, match=r"deployment\.a/x"):
        ordered(
            change("bundle.a"),
            change("deployment.a/x", after=["deployment.a/y"], member_of="bundle.a"),
            change("deployment.a/y", after=["deployment.a/x"], member_of="bundle.a"),
        )


def test_edges_between_a_bundle_and_its_own_members_mean_nothing() -> None:
    rows = [
        change("bundle.a", "delete", after=["deployment.a/x"]),
        change("deployment.a/x", "delete", after=["bundle.a"], member_of="bundle.a"),
    ]
    assert ordered(*rows) == ["bundle.a", "deployment.a/x"]


def test_what_waits_for_a_change_is_found_through_bundles() -> None:
    rows = [
        change("runtime.a", "delete"),
        change("artifact.a/x", "delete", after=["runtime.a"]),
        change("bundle.a", "delete", after=["runtime.a"]),
        change("deployment.a/x", "delete", after=["artifact.a/x"], member_of="bundle.a"),
        change("deployment.a/y", "delete", member_of="bundle.a"),
        change("engine.a/free", "delete"),
    ]
    changes = {row.address: row for row in rows}
    root = address("deployment.a/x")
    waiting = dependants_of([root], execution_graph(changes), changes)
    assert {str(one) for one in waiting} == {"bundle.a", "deployment.a/y", "artifact.a/x", "runtime.a"}
    assert set(waiting.values()) == {root}


def test_addresses_sort_by_kind_scope_and_name() -> None:
    texts = ["origin.a/x", "host.b", "deployment.a/b", "deployment.a/a", "host.a"]
    in_order: list[Address] = sorted(map(address, texts), key=address_key)
    assert list(map(str, in_order)) == ["host.a", "host.b", "deployment.a/a", "deployment.a/b", "origin.a/x"]

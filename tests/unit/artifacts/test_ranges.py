"""Pieces of a file: every byte is handed out once, in order, and what is not brought is handed out again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.artifacts.ranges import Lease, Pieces


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 400),
    here=st.lists(st.tuples(st.integers(0, 400), st.integers(0, 400)), max_size=4),
    steps=st.lists(st.tuples(st.sampled_from(["take", "move", "extend", "back"]), st.integers(1, 60)), max_size=60),
)
def test_no_byte_is_fetched_twice_or_forgotten(
    total: int, here: list[tuple[int, int]], steps: list[tuple[str, int]]
) -> None:
    pieces, leases = Pieces(total, here), list[Lease]()
    have = {byte for start, end in here for byte in range(start, min(end, total))}
    for action, amount in steps:
        if action == "take":
            lease = pieces.take(amount)
            taken = have | {byte for other in leases for byte in range(other.position, other.end)}
            free = sorted(set(range(total)) - taken)
            if lease is None:
                assert free == []
            else:
                assert lease.position == free[0]
                assert 0 < lease.end - lease.position <= amount
                assert not taken & set(range(lease.position, lease.end))
                leases.append(lease)
        elif leases:
            lease = leases[amount % len(leases)]
            if action == "move":
                to = min(lease.end, lease.position + amount)
                have |= set(range(lease.position, to))
                pieces.advance(lease, to)
            elif action == "extend":
                others = have | {b for o in leases if o is not lease for b in range(o.position, o.end)}
                was = lease.end
                assert pieces.extend(lease, amount) == (was < total and was not in others)
                assert not others & set(range(was, lease.end))
            else:
                pieces.give_back(lease)
                leases.remove(lease)
        assert {byte for start, end in pieces.done for byte in range(start, end)} == have
        assert pieces.is_whole == (len(have) == total)
        assert pieces.free_bytes == total - len(have) - sum(o.end - o.position for o in leases)

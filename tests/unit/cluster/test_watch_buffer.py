"""What a watch tells, whatever is lost, doubled, late or listed by a member that lags."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from sbctl.runtime.cluster.store import Changed, Entry, Gone, Resync
from sbctl.runtime.cluster.watching import WatchBuffer


def test_changes_wait_for_the_first_listing_and_newer_ones_stay() -> None:
    buffer = WatchBuffer(is_whole=True)
    buffer.message("a", 5, b"new")
    assert buffer.take() is None
    assert buffer.newer_than({"a": 3}) == ("a",)
    buffer.resynced([("a", 3, b"old"), ("b", 4, b"b")], 5)
    assert buffer.take() == Resync((Entry("a", b"new", 5), Entry("b", b"b", 4)))
    assert buffer.take() is None


def test_a_number_that_is_missing_is_a_gap_and_the_same_one_again_is_not() -> None:
    buffer = WatchBuffer(is_whole=True)
    buffer.resynced([("a", 1, b"1")], 1)
    buffer.take()
    buffer.message("a", 2, b"2")
    buffer.message("a", 2, b"2")
    assert not buffer.has_gap
    assert buffer.take() == Changed(Entry("a", b"2", 2))
    assert buffer.take() is None
    buffer.message("a", 4, b"4")
    assert buffer.has_gap
    assert buffer.take() is None, "what was missed comes with it"
    one = WatchBuffer(is_whole=False)
    one.resynced([], 0)
    one.take()
    one.message("a", 9, b"9")
    assert not one.has_gap, "of one key only some numbers are heard"


def test_only_what_was_told_can_be_gone_and_an_audit_without_news_is_silent() -> None:
    buffer = WatchBuffer(is_whole=True)
    buffer.resynced([("a", 1, b"1"), ("b", 2, None)], 2)
    assert buffer.take() == Resync((Entry("a", b"1", 1),))
    buffer.resynced([("a", 1, b"1"), ("b", 2, None)], 2)
    assert buffer.take() is None
    buffer.message("b", 3, None)
    buffer.message("a", 4, None)
    assert buffer.take() == Gone("a")
    assert buffer.take() is None


def test_values_are_held_until_they_are_taken_and_of_a_key_only_the_newest() -> None:
    buffer = WatchBuffer(is_whole=True)
    buffer.resynced([], 0)
    buffer.take()
    for revision in range(1, 1001):
        buffer.message("a", revision, b"x" * 1000)
    assert buffer.take() == Changed(Entry("a", b"x" * 1000, 1000))
    assert buffer.take() is None


def test_waiting_ends_by_news_or_by_time() -> None:
    async def run() -> None:
        buffer = WatchBuffer(is_whole=True)
        assert not await buffer.wait(0.001)
        buffer.message("a", 1, b"1")
        assert await buffer.wait(60)
        assert not await buffer.wait(0.001)

    asyncio.run(run())


_KEYS = st.sampled_from(["a", "b", "c"])


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(_KEYS, st.booleans(), st.sampled_from(["heard", "lost", "twice", "list", "lagging list"])),
        max_size=60,
    )
)
def test_after_a_listing_the_reader_knows_what_there_is_and_never_went_back(
    steps: list[tuple[str, bool, str]],
) -> None:
    """The store is a list of writes here; a lagging member has all but the last."""
    buffer = WatchBuffer(is_whole=True)
    truth: dict[str, tuple[int, bytes | None]] = {}
    behind: dict[str, tuple[int, bytes | None]] = {}
    known: dict[str, Entry] = {}
    sequence = 0

    def listing(source: dict[str, tuple[int, bytes | None]]) -> None:
        listed = {key: (key, *each) for key, each in source.items()}
        for key in buffer.newer_than({key: one[1] for key, one in listed.items()}):
            listed[key] = (key, *truth[key])
        buffer.resynced(listed.values(), sequence if source is truth else 0)

    def read() -> None:
        while (told := buffer.take()) is not None:
            match told:
                case Resync(entries):
                    fresh = {entry.key: entry for entry in entries}
                    assert all(fresh[key].revision >= known[key].revision for key in fresh.keys() & known.keys())
                    known.clear()
                    known.update(fresh)
                case Changed(entry):
                    assert entry.key not in known or entry.revision > known[entry.key].revision
                    known[entry.key] = entry
                case Gone(key):
                    del known[key]

    for key, deletes, what in steps:
        if what in ("heard", "lost", "twice"):
            behind = dict(truth)
            sequence += 1
            truth[key] = (sequence, None if deletes else str(sequence).encode())
            for _ in range({"heard": 1, "lost": 0, "twice": 2}[what]):
                buffer.message(key, *truth[key])
        else:
            listing(truth if what == "list" else behind)
        read()
    buffer.missed()
    listing(truth)
    read()
    assert {key: entry.value for key, entry in known.items()} == {
        key: value for key, (_, value) in truth.items() if value is not None
    }

"""Claims and what is left behind: one holder at a time on a local disk, takeover from the dead at once, from the silent in time, nowhere a shared inode."""

from __future__ import annotations

import hashlib
import json
import os
import random
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from sbctl.artifacts import claim, partial, partial_journal
from sbctl.artifacts.claim import Claim, Claimant, Owner, fate, own_identity
from sbctl.artifacts.disk_space import fetched_bytes
from sbctl.artifacts.partial import Partial, Validator
from sbctl.base.limits import CLAIM_STALE_S

DATA = random.Random(5).randbytes(100_000)
SHA = hashlib.sha256(DATA).hexdigest()
SOURCE = Validator("s", '"1"')


class Watch:
    """The waiter's own clock."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["local", "network"])
def filesystem(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """On the network nothing is known to be local, so no lock is believed."""
    if request.param == "network":
        for module in (claim, partial):
            monkeypatch.setattr(module, "is_local", lambda _path: False)
    return str(request.param)


def held(target: Path, watch: Watch | None = None) -> Claim:
    found = Claimant(target, watch or Watch()).try_claim()
    assert found is not None
    return found


def test_one_holds_and_the_next_comes_after(tmp_path: Path, filesystem: str) -> None:
    first = held(tmp_path / "w")
    assert Claimant(tmp_path / "w", Watch()).try_claim() is None
    first.release()
    held(tmp_path / "w").release()
    assert list(tmp_path.iterdir()) == []


def abandoned(target: Path, owner: Owner | None = None) -> str:
    """What a killed process leaves: its claim without a lock, half a file, its journal. Returns its token."""
    left = held(target)
    half = Partial(target, left, SHA, len(DATA))
    half.open()
    half.begin(len(DATA), SOURCE)
    half.write_at(DATA[:50_000], 0)
    half.mark(0, 50_000)
    half._close()
    os.close(left._fd)
    gone = owner or replace(own_identity(), pid=2**22 + 1)
    claim_path = target.with_name(f"{target.name}.claim-1")
    claim_path.write_text(json.dumps({"owner": asdict(gone), "token": left.token}))
    lines = half.journal_path.read_text().splitlines(keepends=True)
    lines[0] = json.dumps({**json.loads(lines[0]), "owner": asdict(gone)}) + "\n"
    half.journal_path.write_text("".join(lines))
    return left.token


def continued(target: Path, watch: Watch | None = None) -> tuple[Partial, Claim]:
    holder = held(target, watch)
    found = Partial(target, holder, SHA, len(DATA))
    found.open()
    return found, holder


def test_a_dead_process_is_followed_at_once(tmp_path: Path, filesystem: str) -> None:
    abandoned(tmp_path / "w")
    found, holder = continued(tmp_path / "w")
    assert found.pieces.done == ((0, 50_000),)
    assert found.etag_of("s") == '"1"'
    found.write_at(DATA[50_000:], 50_000)
    lease = found.pieces.take(1 << 30)
    assert lease is not None
    found.pieces.advance(lease, len(DATA))
    found.advance_hash()
    assert found.hexdigest() == SHA
    found.finish()
    holder.release()
    assert [path.name for path in tmp_path.iterdir()] == ["w"]
    assert (tmp_path / "w").read_bytes() == DATA


def test_a_process_of_another_machine_is_waited_for_until_it_is_silent_and_then_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (claim, partial):
        monkeypatch.setattr(module, "is_local", lambda _path: False)
    elsewhere = Owner("other machine", "other boot", "pid:[1]", 7, "1")
    token = abandoned(tmp_path / "w", elsewhere)
    journal = tmp_path / f"w.{token}.journal"
    journal.write_text(journal.read_text() + json.dumps({"synced": 1}) + "\n")
    theirs = (tmp_path / f"w.{token}.part").stat().st_ino
    watch, waiter = Watch(), None
    waiter = Claimant(tmp_path / "w", watch)
    assert waiter.try_claim() is None
    watch.now_s = CLAIM_STALE_S - 1
    os.utime(tmp_path / "w.claim-1", ns=(1, 1))  # it lives: the count begins anew
    assert waiter.try_claim() is None
    watch.now_s += CLAIM_STALE_S - 1
    assert waiter.try_claim() is None
    watch.now_s += 2
    holder = waiter.try_claim()
    assert holder is not None
    found = Partial(tmp_path / "w", holder, SHA, len(DATA))
    found.open()
    assert found.pieces.done == ((0, 50_000),)
    assert found.path.stat().st_ino != theirs
    found.discard_content()
    holder.release()


@pytest.mark.parametrize(("synced", "kept"), [(0, 0), (1, 40_000), (2, 50_000)])
def test_after_a_power_cut_only_what_was_on_the_disk_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, synced: int, kept: int
) -> None:
    first = held(tmp_path / "w")
    half = Partial(tmp_path / "w", first, SHA, len(DATA))
    half.open()
    half.begin(len(DATA), SOURCE)
    half.write_at(DATA[:50_000], 0)
    for number, (start, end) in enumerate(((0, 40_000), (40_000, 50_000)), 1):
        half.mark(start, end)
        if number == synced:
            half.sync()
    half._close()
    first.release()
    rebooted = replace(own_identity(), boot="the next boot")
    for module in (claim, partial_journal):
        monkeypatch.setattr(module, "own_identity", lambda: rebooted)
    found, holder = continued(tmp_path / "w")
    assert found.pieces.done_bytes == kept
    found.discard_content()
    holder.release()


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"junk\n", b"\0" * 100, b'{"version": 2}\n', b'{"version":1,"total":-1}\n']
)
def test_a_damaged_journal_is_thrown_away_with_its_bytes(tmp_path: Path, damage: bytes) -> None:
    token = abandoned(tmp_path / "w")
    (tmp_path / f"w.{token}.journal").write_bytes(damage)
    found, holder = continued(tmp_path / "w")
    assert found.pieces.done == ()
    found.leave()
    holder.release()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "line", [b'{"r": [5, 4]}', b'{"r": [0, 100001]}', b'{"r": 1}', b"[]", b'{"synced": "x"}', b'{"r": [0,']
)
def test_a_torn_line_ends_a_journal(tmp_path: Path, line: bytes) -> None:
    token = abandoned(tmp_path / "w")
    with (tmp_path / f"w.{token}.journal").open("ab") as file:
        file.write(line + b'\n{"r": [60000, 70000]}\n')
    assert fetched_bytes(tmp_path) == 50_000


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "alive"),
        ({"pid": 2**22 + 1}, "gone"),
        ({"started": "1"}, "gone"),
        ({"boot": "other", "machine": "m"}, "gone"),
        ({"boot": "other", "machine": "n"}, "unknown"),
        ({"boot": "other", "machine": ""}, "unknown"),
        ({"boot": ""}, "unknown"),
        ({"namespace": "pid:[1]"}, "unknown"),
        ({"namespace": ""}, "unknown"),
    ],
)
def test_what_can_be_proven_of_a_process(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, object], expected: str
) -> None:
    here = replace(own_identity(), machine="m")
    monkeypatch.setattr(claim, "own_identity", lambda: here)
    assert fate(replace(here, **change)) == expected  # type: ignore[arg-type]
    assert fate(None) == "unknown"


def test_a_filesystem_without_links_is_claimed_by_rename(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_given: object) -> None:
        raise PermissionError(1, "no links")

    monkeypatch.setattr("sbctl.base.fs.OPS.link", refuse)
    first = held(tmp_path / "w")
    assert Claimant(tmp_path / "w", Watch()).try_claim() is None
    first.release()
    assert list(tmp_path.iterdir()) == []


def test_a_late_release_takes_nobody_elses_claim(tmp_path: Path) -> None:
    late = held(tmp_path / "w")
    os.unlink(tmp_path / "w.claim-1")
    second = held(tmp_path / "w")
    late.release()
    assert Claimant(tmp_path / "w", Watch()).try_claim() is None
    second.release()

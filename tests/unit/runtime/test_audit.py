"""The audit: a link for every change, in the change's own transaction; whatever breaks it is named."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import SbctlError
from sbctl.runtime.actor import ACTING, Actor
from sbctl.runtime.audit import AuditEntry, append_audit, verify_audit
from sbctl.runtime.job_rows import JobRow
from sbctl.runtime.store import RuntimeStore


def _filled(folder: Path) -> Path:
    store = RuntimeStore(folder / "runtime.db", folder / "bundle.json")
    token = ACTING.set(Actor("ops\x1b[31m", "admin", "control"))
    store.set_stopped("chat", stopped=True)
    store.set_stopped("chat", stopped=True)
    store.put_job(JobRow("A", "load", "chat", "queued", 1, 1))
    store.put_job(JobRow("A", "load", "chat", "ready", 1, 2))
    store.set_stopped("chat", stopped=False)
    store.forget_bundle()
    ACTING.reset(token)
    store.close()
    return folder / "runtime.db"


def test_each_change_has_one_entry_by_who_acted(tmp_path: Path) -> None:
    database = _filled(tmp_path)
    with sqlite3.connect(database) as raw:
        told = raw.execute("SELECT seq, actor, action, subject FROM audit ORDER BY seq").fetchall()
    assert [(seq, action, subject) for seq, _actor, action, subject in told] == [
        (1, "deployment.stopped", "chat"),
        (2, "job.load", "chat"),
        (3, "deployment.released", "chat"),
        (4, "bundle.clear", "bundle"),
    ]
    assert "\x1b" not in told[0][1]
    found = verify_audit(database)
    assert (found.entries, found.broken_at, found.why) == (4, None, None)
    assert verify_audit(database, expected=(4, found.head)).broken_at is None


@pytest.mark.parametrize(
    ("sql", "broken_at", "says"),
    [
        ("UPDATE audit SET actor = 'nobody' WHERE seq = 2", 2, "was changed"),
        ("UPDATE audit SET detail = '{\"job\":\"B\"}' WHERE seq = 2", 2, "was changed"),
        ("UPDATE audit SET detail = '{' WHERE seq = 3", 3, "cannot be read"),
        ("DELETE FROM audit WHERE seq = 2", 2, "is missing"),
        ("DELETE FROM audit WHERE seq = 1", 1, "is missing"),
        ("DELETE FROM audit WHERE seq = 4", 4, "cut off"),
        ("DELETE FROM audit", 1, "cut off"),
        ("DELETE FROM audit_head", 4, "head of the chain is gone"),
        ("UPDATE audit SET previous = hash WHERE seq = 3", 3, "does not follow"),
        ("INSERT INTO audit SELECT 5, at, actor, role, action, subject, source, detail, hash, hash FROM audit WHERE seq = 4", 5, "changed"),
    ],
)  # fmt: skip
def test_the_first_broken_link_is_named(tmp_path: Path, sql: str, broken_at: int, says: str) -> None:
    database = _filled(tmp_path)
    with sqlite3.connect(database) as raw:
        raw.execute(sql)
    found = verify_audit(database)
    assert found.broken_at == broken_at
    assert found.why is not None
    assert says in found.why
    assert found.entries == broken_at - 1 or sql == "DELETE FROM audit_head"


def test_a_chain_that_was_made_anew_does_not_have_the_head_that_was_kept(tmp_path: Path) -> None:
    database = _filled(tmp_path)
    kept = verify_audit(database)
    database.unlink()
    (tmp_path / "other").mkdir()
    _filled(tmp_path / "other").rename(database)
    with sqlite3.connect(database) as raw:
        raw.execute("UPDATE audit SET at = '2020-01-01T00:00:00Z' WHERE seq = 1")
    assert verify_audit(database, expected=(3, "0" * 64)).broken_at == 1
    assert verify_audit(tmp_path / "none.db", expected=(kept.entries, kept.head)).broken_at == 1
    assert verify_audit(tmp_path / "none.db").entries == 0


def test_H10_an_audit_that_cannot_be_written_refuses_the_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = RuntimeStore(tmp_path / "runtime.db", tmp_path / "bundle.json")

    def full(*_args: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr("sbctl.runtime.store.append_audit", full)
    attempts: list[Callable[[], object]] = [
        lambda: store.set_stopped("chat", stopped=True),
        lambda: store.put_job(JobRow("A", "load", "chat", "queued", 1, 1)),
    ]
    for attempt in attempts:
        with pytest.raises(SbctlError, match="refused a write"):
            attempt()
    assert store.stopped() == frozenset()
    assert store.jobs() == ()
    store.close()


def _trimmed(folder: Path) -> Path:
    """2,500 entries of which the newest 1,000 to 2,000 are kept."""
    database = folder / "runtime.db"
    RuntimeStore(database, folder / "bundle.json").close()
    with sqlite3.connect(database) as raw:
        for number in range(2500):
            entry = AuditEntry("2026-01-01T00:00:00Z", "ops", "admin", "job.load", f"d{number}", "control")
            append_audit(raw, entry, keep=1000)
    return database


@pytest.mark.flow
def test_what_is_old_goes_and_the_chain_holds_from_a_checkpoint(tmp_path: Path) -> None:
    database = _trimmed(tmp_path)
    found = verify_audit(database)
    assert (found.entries, found.trimmed, found.broken_at) == (2501, 1000, None)
    with sqlite3.connect(database) as raw:
        assert raw.execute("SELECT count(*), min(seq) FROM audit").fetchone() == (1501, 1001)
        start = raw.execute("SELECT seq, hash FROM audit_start").fetchone()
        middle = raw.execute("SELECT seq, hash FROM audit WHERE seq = 1500").fetchone()
    for expected in (start, middle, (found.entries, found.head)):
        assert verify_audit(database, expected=expected).broken_at is None
    gone = verify_audit(database, expected=(7, "0" * 64))
    assert gone.broken_at == 7
    assert "older than what is kept" in (gone.why or "")
    assert verify_audit(database, expected=(1500, "0" * 64)).broken_at == 1500


@pytest.mark.flow
@pytest.mark.parametrize(
    ("sql", "says"),
    [
        ("DELETE FROM audit WHERE seq <= 1200", "is missing"),
        (
            """DELETE FROM audit WHERE seq <= 1200;
               UPDATE audit_start SET seq = 1200, hash = (SELECT previous FROM audit WHERE seq = 1201)""",
            "no entry says that they were old",
        ),
        ("DELETE FROM audit_start", "is missing"),
        ("UPDATE audit SET detail = replace(detail, '1000', '1200') WHERE action = 'audit.trimmed'", "was changed"),
    ],
)
def test_entries_taken_out_at_the_beginning_are_no_old_ones(tmp_path: Path, sql: str, says: str) -> None:
    database = _trimmed(tmp_path)
    with sqlite3.connect(database) as raw:
        raw.executescript(sql)
    assert says in (verify_audit(database).why or "")

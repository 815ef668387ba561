"""Logs of a node: from their end, from a cursor on, over rotations, by deployment; and the journal by a stand-in for journalctl."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import HostError
from sbctl.node.paths import NodePaths
from sbctl.node.reading_messages import LogsRead
from sbctl.runtime.engine_output import EngineOutput, engine_log_slot, prune_engine_logs
from sbctl.runtime.nodeops import journal, reading_ops
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.journal import read_journal
from sbctl.runtime.nodeops.log_files import read_behind, read_end
from sbctl.runtime.nodeops.reading_ops import read_logs


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def append(path: Path, *lines: str) -> None:
    with path.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines))


def rotate(path: Path) -> None:
    for number in (1, 0):
        name = Path(f"{path}.{number}") if number else path
        if name.exists():
            name.replace(f"{path}.{number + 1}")


def test_a_file_is_followed_over_its_rotation(log: Path) -> None:
    append(log, "a", "b")
    tail = read_end(log, max_bytes=1000)
    assert tail.lines == (b"a", b"b")
    append(log, "c")
    rotate(log)
    append(log, "d")
    behind = read_behind(log, tail.place, max_bytes=1000)
    assert (behind.lines, behind.more, behind.lost) == ((b"c", b"d"), False, False)
    assert read_behind(log, behind.place, max_bytes=1000).lines == ()
    for _ in range(3):
        rotate(log)
        append(log, "late")
    assert read_behind(log, behind.place, max_bytes=1000).lost


def test_a_line_without_its_end_waits_for_it_and_answers_are_bounded(log: Path) -> None:
    log.write_text("whole\nbegu")
    tail = read_end(log, max_bytes=1000)
    assert tail.lines == (b"whole",)
    append(log, "n", *("x" * 90 for _ in range(10)))
    part = read_behind(log, tail.place, max_bytes=200)
    assert part.lines[0] == b"begun"
    assert part.more
    seen, place = list(part.lines), part.place
    for _ in range(20):
        piece = read_behind(log, place, max_bytes=200)
        seen, place = [*seen, *piece.lines], piece.place
        if not piece.more:
            break
    assert len(seen) == 11
    assert read_end(log, max_bytes=100).lines == (b"x" * 90,)
    assert read_behind(log.with_name("none"), "", max_bytes=10).lines == ()


@pytest.mark.flow
def test_what_an_engine_prints_is_bounded_on_disk_and_has_its_time(tmp_path: Path) -> None:
    output = EngineOutput(tmp_path / "engines", "chat", 1)
    output.add(b"load")
    output.add(b"ed\r\nnext\n\nno end")
    output.close()
    path = tmp_path / "engines" / "chat-r1.log"
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["loaded", "next", "no end"]
    assert path.stat().st_mode & 0o777 == 0o600
    for _ in range(12):
        output.add(b"y" * 1000_000 + b"\n" + b"z\n" * 400_000)
    assert sum(file.stat().st_size for file in path.parent.iterdir()) < 40 * 1024 * 1024
    assert len(list(path.parent.iterdir())) <= 2
    assert engine_log_slot(path.name) == ("chat", 1)
    assert engine_log_slot("x.log") is None
    for number in range(70):
        append(tmp_path / "engines" / f"m{number}-r0.log", "x")
    prune_engine_logs(tmp_path / "engines")
    assert len(list((tmp_path / "engines").glob("*.log"))) == 64


@pytest.fixture
def node(tmp_path: Path) -> NodeContext:
    paths = NodePaths(tmp_path / "etc", tmp_path / "state", tmp_path / "cache", tmp_path / "opt")
    paths.engine_logs.mkdir(parents=True)
    at = "2026-11-29T12:00:0{}Z"
    ready = json.dumps({"at": at.format(1), "event": "ready", "part": "daemon"})
    moved = json.dumps({"at": at.format(3), "event": "replica", "deployment": "chat", "replica": 0})
    append(paths.logs / "runtime.log", ready, "Traceback: \x1b[31mboom", moved)
    append(paths.engine_logs / "chat-r0.log", f"{at.format(2)} loading sk-abcdefghijklmnopqrstuvwxyz012345")
    append(paths.engine_logs / "code-r0.log", f"{at.format(4)} other")
    environ = {"SBCTL_NODE_PREFIX": str(tmp_path), "PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    return NodeContext(paths, environ, os.getuid())


def ask(node: NodeContext, **params: Any) -> dict[str, Any]:
    return read_logs(node, LogsRead(**params))


def test_runtime_and_engines_are_one_log_in_the_order_of_time(node: NodeContext) -> None:
    told = ask(node)
    assert [(line["source"], line["deployment"]) for line in told["lines"]] == [
        ("runtime", None), ("runtime", None), ("engine", "chat"), ("runtime", "chat"), ("engine", "code"),
    ]  # fmt: skip
    text = json.dumps(told)
    assert "\\u001b" not in text
    assert "sk-abcdef" not in text
    assert [line["text"] for line in ask(node, lines=1)["lines"]] == ["other"]
    assert ask(node, lines=0)["lines"] == []
    assert len(ask(node, deployment="chat")["lines"]) == 2
    assert ask(node, since_s=1)["lines"] == []


def test_a_cursor_gives_what_came_since_and_logs_that_began_since(node: NodeContext) -> None:
    cursor = ask(node, lines=0)["cursor"]
    append(node.paths.logs / "runtime.log", "more")
    append(node.paths.engine_logs / "new-r2.log", "2026-11-29T12:00:09Z hello")
    told = ask(node, cursor=cursor)
    assert {(line["source"], line["replica"], line["text"]) for line in told["lines"]} == {
        ("runtime", None, "more"),
        ("engine", 2, "hello"),
    }
    assert ask(node, cursor=told["cursor"])["lines"] == []


def test_an_answer_holds_so_much_and_the_next_goes_on(node: NodeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_ops, "_ANSWER_MAX_BYTES", 2000)
    cursor = ask(node, lines=0)["cursor"]
    append(node.paths.logs / "runtime.log", *(f"{number:04d} {'x' * 200}" for number in range(50)))
    seen: list[str] = []
    for _ in range(40):
        told = ask(node, cursor=cursor)
        cursor = told["cursor"]
        seen += [line["text"][:4] for line in told["lines"]]
        if not told["more"]:
            break
    assert seen == [f"{number:04d}" for number in range(50)]


Journalctl = Callable[[str], dict[str, str]]


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journalctl:
    """A program of that name that prints what the test says and writes down how it was called."""

    def make(script: str) -> dict[str, str]:
        program = tmp_path / "bin" / "journalctl"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {tmp_path}/argv\n{script}\n')
        program.chmod(0o755)
        monkeypatch.setattr(journal, "_SYSTEM_PATH", f"{program.parent}:/usr/bin:/bin")
        return {}

    return make


def entry(number: int, message: str) -> str:
    fields = {
        "__CURSOR": f"c{number}",
        "__REALTIME_TIMESTAMP": str(number * 1_000_000),
        "_SYSTEMD_UNIT": "sbctl-runtime.service",
    }
    return json.dumps({**fields, "MESSAGE": message})


def test_the_journal_is_read_in_parts_from_a_cursor(tmp_path: Path, journalctl: Journalctl) -> None:
    lines = "\n".join([entry(1, "one"), "nonsense", '{"MESSAGE": null}', entry(2, "two"), entry(3, "three")])
    environ = journalctl(f"cat <<'E'\n{lines}\nE\nsleep 600")
    part = read_journal("system", ["a.service", "b-*"], after="c0", max_bytes=6, environ=environ)
    assert ([one.text for one in part.entries], part.cursor, part.more) == (["one", "two"], "c2", True)
    asked = (tmp_path / "argv").read_text().splitlines()
    assert {"--unit=a.service", "--unit=b-*", "--after-cursor=c0", "--output=json"} <= set(asked)
    assert part.entries[0].at_us == 1_000_000


def test_a_journal_that_cannot_be_read_says_so(journalctl: Journalctl) -> None:
    with pytest.raises(HostError) as caught:
        read_journal("user", ["a"], lines=5, max_bytes=100, environ=journalctl("exit 1"))
    assert caught.value.code == "journal.unreadable"

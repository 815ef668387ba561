"""What others cause is told a few times, then counted."""

from __future__ import annotations

from typing import Any

from sbctl.runtime.seldom import Seldom


class Told:
    def __init__(self) -> None:
        self.now_s = 100.0
        self.lines: list[tuple[str, dict[str, Any]]] = []
        self.seldom = Seldom(lambda: self.now_s)

    def log(self, event: str, **more: Any) -> None:
        self.lines.append((event, more))

    def tell(self, cause: str, times: int = 1) -> None:
        for _ in range(times):
            self.seldom.tell(self.log, "refused", cause=cause, code="x")


def test_ten_lines_of_a_cause_in_ten_seconds_and_then_how_many_were_left_out() -> None:
    told = Told()
    told.tell("a", 25)
    told.tell("b")
    assert told.lines == [("refused", {"code": "x"})] * 11
    told.now_s += 10
    told.tell("a", 2)
    assert told.lines[11:] == [("refused", {"code": "x", "left_out": 15}), ("refused", {"code": "x"})]


def test_G22_however_many_causes_there_are_memory_is_bounded() -> None:
    told = Told()
    for number in range(5000):
        told.tell(f"cause {number}")
    assert len(told.seldom._causes) == 1024
    assert "cause 4999" in told.seldom._causes

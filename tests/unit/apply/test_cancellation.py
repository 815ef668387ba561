"""Being asked to stop: once softly, twice hard; handlers are put back."""

from __future__ import annotations

import os
import queue
import signal

import pytest

from sbctl.apply.cancellation import STOP_SIGNALS, Cancellation, SignalWatch
from sbctl.base.errors import ExitCode


def test_nobody_asked() -> None:
    cancel = Cancellation()
    assert (cancel.stopping, cancel.hard, cancel.signal_name, cancel.exit_code) == (False, False, None, ExitCode.DONE)


@pytest.mark.parametrize(
    ("signals", "hard", "name", "code"),
    [
        ([signal.SIGINT], False, "SIGINT", ExitCode.INTERRUPTED),
        ([signal.SIGTERM], False, "SIGTERM", ExitCode.TERMINATED),
        ([signal.SIGHUP], False, "SIGHUP", ExitCode.TERMINATED),
        ([signal.SIGINT, signal.SIGTERM], True, "SIGINT", ExitCode.INTERRUPTED),
        ([signal.SIGTERM, signal.SIGINT, signal.SIGINT], True, "SIGTERM", ExitCode.TERMINATED),
    ],
)
def test_the_first_signal_names_the_exit_code_and_the_second_makes_it_hard(
    signals: list[int], hard: bool, name: str, code: ExitCode
) -> None:
    cancel = Cancellation()
    for number in signals:
        cancel.request(number)
    assert (cancel.stopping, cancel.hard, cancel.signal_name, cancel.exit_code) == (True, hard, name, code)


def test_listeners_hear_every_request_until_they_stop_listening() -> None:
    cancel = Cancellation()
    inbox: queue.SimpleQueue[None] = queue.SimpleQueue()
    stop = cancel.listen(lambda: inbox.put(None))
    cancel.request()
    cancel.request()
    stop()
    cancel.request()
    assert inbox.qsize() == 2


@pytest.mark.parametrize("number", STOP_SIGNALS)
def test_a_real_signal_reaches_the_cancellation_and_the_old_handler_comes_back(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    cancel = Cancellation()
    with SignalWatch(cancel) as watched:
        assert watched is cancel
        os.kill(os.getpid(), number)
        assert cancel.signal_name == number.name
    assert signal.getsignal(number) == before

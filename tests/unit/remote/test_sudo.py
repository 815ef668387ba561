"""What sudo says before our program runs, in pieces of any size, and what it is answered."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import UnreachableError
from sbctl.remote.sudo import SudoDialogue, sudo_words

PROMPT = "sbctl-0123456789abcdef:"


def _dialogue(prompt: str | None = PROMPT) -> SudoDialogue:
    return SudoDialogue(prompt, place="gpu-a (ssh 10.0.0.1:22)", user="ops")


def _pieces(text: bytes, cuts: list[int]) -> list[bytes]:
    at = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    return [text[a:b] for a, b in itertools.pairwise(at)] or [text]


def test_without_a_password_sudo_may_never_ask_and_with_one_no_ticket_is_used() -> None:
    assert sudo_words(None) == ["/usr/bin/env", "LC_ALL=C", "sudo", "-n", "-H", "--"]
    assert sudo_words("p:") == ["/usr/bin/env", "LC_ALL=C", "sudo", "-S", "-k", "-p", "p:", "-H", "--"]


NOISE = st.binary(max_size=60).filter(lambda text: b"sbctl-" not in text)


@given(NOISE, st.lists(st.integers(0, 200), max_size=6), NOISE)
def test_the_password_is_sent_at_the_prompt_and_once(before: bytes, cuts: list[int], after: bytes) -> None:
    dialogue = _dialogue()
    pieces = _pieces(before + PROMPT.encode() + after, cuts)
    answers = [dialogue.hear(piece) for piece in pieces]
    assert answers.count(True) == 1
    heard = b"".join(pieces[: answers.index(True) + 1])
    assert PROMPT.encode() in heard


@given(st.lists(NOISE, max_size=5))
def test_what_is_no_prompt_of_ours_gets_no_password(pieces: list[bytes]) -> None:
    dialogue = _dialogue()
    assert not any(dialogue.hear(piece) for piece in [*pieces, b"Password: ", b"[sudo] password for ops: "])


@given(st.lists(st.integers(0, 200), max_size=6))
def test_a_second_prompt_is_a_wrong_password_and_gets_no_answer(cuts: list[int]) -> None:
    dialogue = _dialogue()
    text = f"{PROMPT}\nSorry, try again.\n{PROMPT}".encode()
    answers: list[bool] = []
    with pytest.raises(UnreachableError) as caught:
        answers.extend(map(dialogue.hear, _pieces(text, cuts)))
    assert caught.value.code == "ssh.become_password_wrong"
    assert answers.count(True) <= 1


@pytest.mark.parametrize(
    ("said", "status", "code"),
    [
        ("sudo: a password is required", 1, "ssh.become_password_needed"),
        (
            "sudo: a terminal is required to read the password; either use the -S option",
            1,
            "ssh.become_password_needed",
        ),
        ("sudo: no tty present and no askpass program specified", 1, "ssh.become_password_needed"),
        ("sudo: sorry, you must have a tty to run sudo", 1, "ssh.become_needs_terminal"),
        ("ops is not in the sudoers file.  This incident will be reported.", 1, "ssh.become_not_allowed"),
        ("Sorry, user ops is not allowed to execute '/bin/sh' as root on h1.", 1, "ssh.become_not_allowed"),
        ("/usr/bin/env: 'sudo': No such file or directory", 127, "ssh.become_missing"),
        ("", 127, "ssh.become_missing"),
        ("sudo: /etc/sudoers is world writable", 1, "ssh.become_failed"),
        ("\x1b[31msudo: unable to resolve host", None, "ssh.become_failed"),
    ],
)
@pytest.mark.parametrize("prompt", [None, PROMPT])
def test_E6_every_reason_has_its_own_code_and_next_step(
    said: str, status: int | None, code: str, prompt: str | None
) -> None:
    dialogue = _dialogue(prompt)
    dialogue.hear(said.encode())
    error = dialogue.failure(status)
    assert error.code == code
    assert error.next_step
    assert "\x1b" not in error.message
    assert not error.retryable


@pytest.mark.parametrize(
    "said", ["sudo: 1 incorrect password attempt", "Sorry, try again.", "sudo: account validation failure"]
)
def test_E6_after_an_answer_a_refusal_is_a_wrong_password(said: str) -> None:
    dialogue = _dialogue()
    assert dialogue.hear(PROMPT.encode())
    dialogue.hear(said.encode())
    assert dialogue.failure(1).code == "ssh.become_password_wrong"


def test_a_complaint_without_end_is_kept_within_bounds() -> None:
    dialogue = _dialogue()
    for _ in range(200):
        assert not dialogue.hear(b"x" * 65536)
    assert len(dialogue.failure(1).message) < 1000

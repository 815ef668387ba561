"""Becoming root through sudo: what is started, what it may say before our program runs, and what it is answered.

The password goes to sudo's standard input, and only when sudo has printed a prompt that we chose and nobody can guess; so it can reach
neither our program, nor a login shell, nor an argument list. A second prompt means that the first answer was wrong: nothing is sent again,
since wrong passwords lock accounts. Whatever else sudo prints (a lecture, a complaint about a host name) is passed over.
"""

from __future__ import annotations

from typing import Final

from sbctl.base.errors import UnreachableError
from sbctl.remote.transport import STDERR_TAIL_BYTES, foreign_text

__all__ = ["SudoDialogue", "sudo_words"]

_PLAIN: Final = ("/usr/bin/env", "LC_ALL=C", "sudo")

_CAUSES: Final[tuple[tuple[tuple[str, ...], tuple[str, str, str]], ...]] = (
    (
        ("must have a tty",),
        (
            "ssh.become_needs_terminal",
            "sudo insists on a terminal",
            "allow sudo without one on the host: Defaults:USER !requiretty",
        ),
    ),
    (
        ("not in the sudoers", "not allowed to", "may not run", "is not allowed"),
        (
            "ssh.become_not_allowed",
            "sudo does not let this user run commands as root",
            "give the user the right in the host's sudoers, e.g. USER ALL=(root) NOPASSWD: ALL",
        ),
    ),
    (
        ("password is required", "terminal is required", "no askpass", "no tty present"),
        (
            "ssh.become_password_needed",
            "sudo asks for a password, and none is named",
            "set become: {method: sudo, password: prompt} (or a reference) under fleet.ssh, or allow NOPASSWD for the user",
        ),
    ),
    (
        ("command not found", "no such file", ": not found"),
        ("ssh.become_missing", "there is no sudo on the host", "install sudo there, or log in as root"),
    ),
)
_WRONG: Final = ("incorrect password", "try again", "authentication failure", "account is locked", "account validation")


def sudo_words(prompt: str | None) -> list[str]:
    """The command before the command; with `prompt` sudo reads a password, without it it never asks."""
    asks = ["-n"] if prompt is None else ["-S", "-k", "-p", prompt]
    return [*_PLAIN, *asks, "-H", "--"]


class SudoDialogue:
    """Fed with what sudo complains, in pieces of any size; answers when the password is to be sent. Pure."""

    def __init__(self, prompt: str | None, *, place: str, user: str, password: bytes = b"") -> None:
        """`password` is never sent from here; it is kept out of what is shown, should the host repeat it."""
        self._prompt = prompt.encode("ascii") if prompt is not None else None
        self._password = password
        self._place = place
        self._user = user
        self._unread = b""
        self._said = b""
        self._answered = False

    def hear(self, complaint: bytes) -> bool:
        """Whether the password must be sent now, once. Raises UnreachableError `ssh.become_password_wrong` when it was wrong."""
        if self._prompt is None:
            self._remember(complaint)
            return False
        self._unread += complaint
        before, found, after = self._unread.partition(self._prompt)
        if not found:
            keep = len(self._prompt) - 1
            self._remember(self._unread[:-keep])
            self._unread = self._unread[-keep:]
            return False
        self._remember(before)
        self._unread = after
        if self._answered:
            raise self._wrong()
        self._answered = True
        if self._prompt in after:
            raise self._wrong()
        return True

    def failure(self, status: int | None) -> UnreachableError:
        """Why it ended with `status` before our program ran."""
        heard = self._said + (self._unread if self._prompt is not None else b"")
        said = foreign_text(heard.replace(self._password, b"(secret)") if self._password else heard)
        lowered = said.lower()
        if self._answered and any(word in lowered for word in _WRONG):
            return self._wrong()
        for words, (code, what, next_step) in _CAUSES:
            if any(word in lowered for word in words) or (code == "ssh.become_missing" and status == 127):
                return UnreachableError(
                    code,
                    f"{what}: {said}" if said else what,
                    place=self._place,
                    next_step=next_step.replace("USER", self._user),
                )
        ended = "" if status is None else f" with status {status}"
        return UnreachableError(
            "ssh.become_failed",
            f"sudo ended{ended} before the command ran" + (f": {said}" if said else ""),
            place=self._place,
            next_step=f"try on the host, as {self._user}: sudo -H -- /bin/true",
        )

    def _wrong(self) -> UnreachableError:
        return UnreachableError(
            "ssh.become_password_wrong",
            f"sudo does not take the password of {self._user}",
            place=self._place,
            next_step="check what become.password names; it is tried once, since wrong passwords lock accounts",
        )

    def _remember(self, text: bytes) -> None:
        self._said = (self._said + text)[-STDERR_TAIL_BYTES:]

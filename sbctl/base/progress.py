"""Progress of long work as a callback: amounts for everybody, and words for whoever listens to them."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

__all__ = ["Listening", "tell_words"]


@runtime_checkable
class Listening(Protocol):
    """A progress callback that also wants the words that go with an amount."""

    def __call__(self, done: int, total: int | None) -> None: ...

    def say(self, words: str) -> None:
        """What just happened, as the other side puts it: foreign text."""
        ...


def tell_words(progress: object, words: str) -> None:
    """To a callback that listens; others never hear them."""
    if words and isinstance(progress, Listening):
        progress.say(words)

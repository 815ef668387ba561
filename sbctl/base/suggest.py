"""The name somebody probably meant."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["did_you_mean"]


def did_you_mean(word: str, names: Iterable[str]) -> str | None:
    """The closest of `names`, or None when none is close. A name that only differs in case or in `-` and `_` always wins; the only name that starts with `word` is close too."""
    listed = list(names)
    folded = {name.casefold().replace("-", "_"): name for name in listed}
    exact = folded.get(word.casefold().replace("-", "_"))
    if exact is not None:
        return exact
    if len(word) > 128:
        return None
    import difflib

    close = difflib.get_close_matches(word, listed, n=1, cutoff=0.6)
    longer = [name for name in listed if len(word) >= 3 and name.startswith(word)]
    return close[0] if close else longer[0] if len(longer) == 1 else None

"""What is computed of an object that never changes, computed once as long as the object lives."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import wraps
from typing import TypeVar

__all__ = ["once_per_object"]

_Object = TypeVar("_Object")
_Made = TypeVar("_Made")


def once_per_object(make: Callable[[_Object], _Made]) -> Callable[[_Object], _Made]:
    """For a pure function of one immutable object that can be referred to weakly: of a frozen model, which has no hash where it holds a dict.

    Objects are told apart by identity, so a changed copy has a result of its own. Two threads that ask at once may both compute it.
    """
    known: dict[int, tuple[weakref.ref[_Object], _Made]] = {}

    @wraps(make)
    def made(of: _Object) -> _Made:
        key = id(of)
        found = known.get(key)
        if found is not None and found[0]() is of:
            return found[1]
        result = make(of)

        def forget(gone: weakref.ref[_Object]) -> None:
            if key in known and known[key][0] is gone:
                del known[key]

        known[key] = (weakref.ref(of, forget), result)
        return result

    return made

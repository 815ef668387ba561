"""Every reason not to believe a state, by name. Each says what is wrong, with which file, and the command that repairs it.

    state.absent      nothing was ever recorded here
    state.missing     a state was here, its database is gone
    state.empty       the database is there and holds nothing
    state.corrupt     a digest, a seal or SQLite itself says the content is not what was written
    state.regressed   older than what was acknowledged: a restored copy, a cut log
    state.foreign     of another lineage, or not of sbctl
    state.too_new     written by a newer sbctl

None of them is ever read as "nothing exists". A damaged state is repaired by a forced push only, which keeps the damaged files.
"""

from __future__ import annotations

import shlex

from sbctl.base.errors import StateError
from sbctl.state.location import StatePaths

__all__ = ["absent", "corrupt", "empty", "foreign", "missing", "recovery", "regressed", "too_new"]


def recovery(paths: StatePaths) -> str:
    """The command that brings back the last state known to be whole."""
    if paths.seen.is_file():
        return f"move {shlex.quote(str(paths.directory))} aside: the next command takes the shared state in anew"
    if paths.backup.is_file():
        return (
            f"run `sbctl state push --force {shlex.quote(str(paths.backup))}`: it restores what the last finished run recorded "
            "and keeps the damaged files beside it"
        )
    return (
        f"put {paths.directory} back from a copy of your own, or push a document with `sbctl state push --force FILE`"
    )


def absent(paths: StatePaths) -> StateError:
    return StateError(
        "state.absent",
        "nothing has been applied from here yet",
        place=str(paths.directory),
        next_step="run `sbctl apply`",
    )


def missing(paths: StatePaths, name: str = "state.db") -> StateError:
    """`name` is the file of ours that is gone while others of ours are there."""
    return StateError(
        "state.missing",
        f"{name} is gone, though a state was recorded here",
        place=str(paths.directory / name),
        next_step=recovery(paths),
    )


def empty(paths: StatePaths) -> StateError:
    return StateError(
        "state.empty",
        "the database of the state is empty, though a state was recorded here",
        place=str(paths.database),
        next_step=recovery(paths),
    )


def corrupt(paths: StatePaths, what: str, *, fence: bool = False) -> StateError:
    """`what` completes "the state is damaged: …"; `fence` says that the damage is in fence.json."""
    return StateError(
        "state.corrupt",
        f"the state is damaged: {what}",
        place=str(paths.fence if fence else paths.database),
        next_step=recovery(paths),
    )


def regressed(paths: StatePaths, found: str, remembered: str) -> StateError:
    return StateError(
        "state.regressed",
        f"the state is older than what was recorded here: found {found}, but {remembered} was written",
        place=str(paths.database),
        next_step=f"put the newest state.db back together with its -wal file; if it is lost, {recovery(paths)}",
    )


def foreign(paths: StatePaths, what: str) -> StateError:
    return StateError(
        "state.foreign",
        f"this is not the state that was recorded here: {what}",
        place=str(paths.database),
        next_step=f"put the right state.db back; if it is lost, {recovery(paths)}",
    )


def too_new(paths: StatePaths, found: int, known: int) -> StateError:
    return StateError(
        "state.too_new",
        f"the state has format {found}; this sbctl knows formats up to {known}",
        place=str(paths.database),
        next_step="run the sbctl that wrote it, or a newer one: `pip install --upgrade sbctl-fleet`",
    )

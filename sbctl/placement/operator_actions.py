"""What operators asked of the cluster, as placement takes it: joined from what several authorities know, and in force until it is over.

Pure. Whatever two authorities wrote without knowing of each other, all come to the same: for each subject the highest number counts, and of two
with one number the later one, then that of the authority whose name is higher. So nothing that was acknowledged is lost with a store's data,
as long as one authority that knew it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal

from sbctl.base.errors import RefusedError
from sbctl.node.actions_document import ACTIONS_MAX, ActionsDocument, OperatorAction

__all__ = ["NO_ACTIONS", "ActionKind", "OperatorActions"]

ActionKind = Literal["evacuations", "losses", "retries"]
_Subjects = Mapping[str, OperatorAction]


@dataclass(frozen=True, slots=True)
class OperatorActions:
    """By kind and subject, the newest of each."""

    evacuations: _Subjects = field(default_factory=dict)
    losses: _Subjects = field(default_factory=dict)
    retries: _Subjects = field(default_factory=dict)

    @classmethod
    def of(cls, document: ActionsDocument) -> OperatorActions:
        return cls(document.evacuations, document.losses, document.retries)

    def kind(self, kind: ActionKind) -> _Subjects:
        found: _Subjects = getattr(self, kind)
        return found

    def joined(self, other: OperatorActions) -> OperatorActions:
        """All that either knows. The order does not matter."""
        return OperatorActions(
            _newest(self.evacuations, other.evacuations),
            _newest(self.losses, other.losses),
            _newest(self.retries, other.retries),
        )

    @property
    def next_number(self) -> int:
        known = (*self.evacuations.values(), *self.losses.values(), *self.retries.values())
        return 1 + max((one.number for one in known), default=0)

    def having(self, kind: ActionKind, subject: str, action: OperatorAction) -> OperatorActions:
        """With one more. Where there are too many, what is over longest gives way. Raises RefusedError `cluster.too_many_actions`."""
        subjects = {**self.kind(kind), subject: action}
        while len(subjects) > ACTIONS_MAX:
            over = [name for name, one in subjects.items() if one.is_over]
            if not over:
                raise RefusedError(
                    "cluster.too_many_actions",
                    f"{ACTIONS_MAX} of them are in force already",
                    next_step="end some first: sbctl cluster status names them",
                )
            del subjects[min(over, key=lambda name: subjects[name].number)]
        return replace(self, **{kind: subjects})

    # What placement asks

    @property
    def evacuated(self) -> frozenset[str]:
        """Nodes that an operator wants empty."""
        return frozenset(name for name, one in self.evacuations.items() if not one.is_over)

    @property
    def confirmed(self) -> frozenset[str]:
        """Nodes that an operator says are gone for good."""
        return frozenset(name for name, one in self.losses.items() if not one.is_over)

    @property
    def tried_again(self) -> dict[str, int]:
        """By deployment, the number of the last wish to try it again."""
        return {name: one.number for name, one in self.retries.items()}


NO_ACTIONS: Final = OperatorActions()


def _newest(ours: _Subjects, theirs: _Subjects) -> _Subjects:
    joined = dict(ours)
    for subject, other in theirs.items():
        known = joined.get(subject)
        if known is None or _order(other) > _order(known):
            joined[subject] = other
    return joined


def _order(one: OperatorAction) -> tuple[int, bool, int, str, str, str, str]:
    return one.number, one.is_over, one.at_unix_ms, one.authority, one.by, one.reason, one.outcome

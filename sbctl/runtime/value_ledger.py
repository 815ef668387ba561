"""What serving here was worth, as far as a host can honestly say: answers and tokens, of its own engines and of others that stood in.

SBproxy prices them at a reference that an entry of its legacy `serve:` names. Deployments name none, and sbctl guesses no price, no energy
and no time saved: amounts of money are null. Counts are since this process began; a scrape of /metrics keeps them for longer.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

from sbctl.runtime.gateway.ports import Outcome

__all__ = ["ValueLedger"]

_ROWS_MAX: Final = 1000
_OTHER: Final = "__other__"


@dataclass(slots=True)
class _Lane:
    completions: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, outcome: Outcome) -> None:
        self.completions += 1
        if outcome.usage is not None:
            self.prompt_tokens += outcome.usage.prompt_tokens
            self.completion_tokens += outcome.usage.completion_tokens


class ValueLedger:
    """By deployment, at most a thousand; what comes after that counts together."""

    def __init__(self) -> None:
        self._rows: OrderedDict[str, tuple[_Lane, _Lane]] = OrderedDict()

    def finished(self, outcome: Outcome) -> None:
        if outcome.status != 200 or outcome.broke:
            return
        name = outcome.deployment if outcome.deployment in self._rows or len(self._rows) < _ROWS_MAX else _OTHER
        row = self._rows.get(name)
        if row is None:
            row = self._rows[name] = (_Lane(), _Lane())
        row[outcome.elsewhere].add(outcome)

    def document(self) -> dict[str, Any]:
        """The body of GET value."""
        rows = [_row(name, here, there) for name, (here, there) in sorted(self._rows.items())]
        here, there = sum(row["local_completions"] for row in rows), sum(row["cloud_completions"] for row in rows)
        return {
            "schema_version": 1,
            "priced": False,
            "models": rows,
            "total_local_completions": here,
            "total_cloud_completions": there,
            "total_saved_micros": None,
            "total_cloud_spent_micros": None,
            "local_fraction": here / (here + there) if here + there else None,
        }


def _row(name: str, here: _Lane, there: _Lane) -> dict[str, Any]:
    return {
        "model": name,
        "local_completions": here.completions,
        "local_prompt_tokens": here.prompt_tokens,
        "local_completion_tokens": here.completion_tokens,
        "cloud_completions": there.completions,
        "cloud_prompt_tokens": there.prompt_tokens,
        "cloud_completion_tokens": there.completion_tokens,
        "saved_micros": None,
        "cloud_spent_micros": None,
    }

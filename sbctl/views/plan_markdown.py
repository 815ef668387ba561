"""A plan as a comment on a pull request: a table of changes, what differs folded under it, the same last line as on a terminal.

Everything foreign stands in code spans and code blocks whose fences are longer than any run of backticks inside, so nothing of it is
markup, a link or a mention.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from sbctl.base.display import format_bytes
from sbctl.plan.document import ChangeDocument, PlanDocument
from sbctl.views.layout import joined, safe
from sbctl.views.plan_text import SYMBOLS, carried_words, leaf_words, shown_changes, summary_sentence

__all__ = ["plan_markdown"]

_ROWS_MAX: Final = 200
"""A comment has room for 65,536 characters."""
_BLOCK_MAX_CHARS: Final = 40_000


def plan_markdown(document: PlanDocument) -> str:
    """The comment's text, ending with a newline."""
    parts = [f"### {_inline(summary_sentence(document))}", ""]
    header = joined(safe(document.header.get(key, "")) for key in ("fleet", "state", "observed"))
    if header:
        parts += [_code(header), ""]
    parts += [
        f"> **{'apply refuses' if one.only_apply else 'refused'}** {_inline(one.message)}  \n> {_inline(one.next_step)}\n"
        for one in document.refusals
    ]
    rows = shown_changes(document)
    if rows:
        parts += ["| | resource | blast radius | |", "|---|---|---|---|"]
        parts += [_row(change) for change in rows[:_ROWS_MAX]]
        if len(rows) > _ROWS_MAX:
            parts.append(f"| | {len(rows) - _ROWS_MAX} more | | |")
        parts.append("")
    block = "\n".join(_lines(rows))
    if block:
        parts += ["<details><summary>What differs</summary>", "", _block(block), "", "</details>", ""]
    parts += [f"- {_inline(said)}" for said in document.notes]
    return "\n".join(parts).rstrip() + "\n"


def _row(change: ChangeDocument) -> str:
    if change.carries_only and not change.blocked:
        return f"| | {_code(change.address, in_table=True)} | | {_inline(carried_words(change))} |"
    symbol = "!" if change.blocked else SYMBOLS[change.action]
    radius = "unreachable" if change.action == "unreachable" else change.blast_radius
    what = joined(
        (
            change.blocked.message if change.blocked else change.reason,
            f"download {format_bytes(change.download_bytes)}" if change.download_bytes else "",
        ),
        "; ",
    )
    indent = "↳ " if change.member_of else ""
    return f"| `{symbol}` | {indent}{_code(change.address, in_table=True)} | {radius} | {_inline(what)} |"


def _lines(changes: tuple[ChangeDocument, ...]) -> Iterator[str]:
    """Every leaf of an update, as lines of a diff."""
    for change in changes:
        if change.action not in ("update", "replace") or not change.leaves or change.carries_only:
            continue
        yield f"  {safe(change.address)}"
        for leaf in change.leaves:
            yield f"! {safe(leaf.path)}: {leaf_words(leaf)}"


def _block(text: str) -> str:
    cut = text[:_BLOCK_MAX_CHARS]
    if len(text) > len(cut):
        cut += f"\n… ({len(text) - len(cut)} more characters)"
    fence = "`" * max(3, _longest_run(cut) + 1)
    return f"{fence}diff\n{cut}\n{fence}"


def _code(text: str, *, in_table: bool = False) -> str:
    """A code span; in a table a pipe would end the cell even there."""
    shown = safe(text).replace("|", "\\|") if in_table else safe(text)
    fence = "`" * (_longest_run(shown) + 1)
    pad = " " if shown.startswith("`") or shown.endswith("`") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _inline(text: str) -> str:
    """Running text without markup, HTML or mentions."""
    escaped = re.sub(r"([\\`*_{}\[\]<>|#!~])", r"\\\1", safe(text))
    return escaped.replace("@", "@\u2060")

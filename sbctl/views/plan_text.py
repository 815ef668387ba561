"""A plan for the terminal: one row a change, what differs under it, one line that sums up.

Symbols: `+` create, `~` update, `-/+` replace, `-` delete, `.` forget, `?` unreachable, `!` blocked. Members stand under their bundle.
Rows that change nothing are left out. A note `label: text` with
a short label stands in columns like a value. The same document, live or saved, gives the same text.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.text import Text

from sbctl.base.display import format_bytes, plural
from sbctl.plan.document import ChangeDocument, LeafDocument, PlanDocument
from sbctl.views.layout import RADIUS_STYLES, joined, label_columns, labelled, padded, safe, sentence, value_text
from sbctl.views.placement_text import placement_text

__all__ = ["SYMBOLS", "carried_words", "leaf_words", "plan_text", "shown_changes", "summary_sentence"]

SYMBOLS: Final = {"create": "+", "update": "~", "replace": "-/+", "delete": "-", "forget": ".", "unreachable": "?"}
_STYLES: Final = {"+": "green", "~": "yellow", "-/+": "magenta", "-": "red", ".": "dim", "?": "yellow", "!": "bold red"}

_LEAVES_MAX: Final = 20
_RADIUS_COLUMNS: Final = 12
_LABEL_MAX_CHARS: Final = 18
_DOWNTIME: Final = {
    "none": "No downtime.",
    "queue": "Requests wait while it changes.",
    "refuse": "Requests are refused while it changes.",
}
_OF_ITS_HOST: Final = {"address", "host", "member_of", "members", "after", "steps"}
_NOTHING: Final = {
    "apply": "No changes: the fleet is as sb.yml says.",
    "rollback": "No changes: the fleet is as it was then.",
    "destroy": "Nothing to destroy.",
    "drift": "No drift: everything is as the last apply left it.",
    "against": "No difference.",
}


def plan_text(document: PlanDocument, *, width: int = 80, explain: bool = False) -> Text:
    """The whole plan. `explain` adds every reason and the values of what is created or removed."""
    text = Text()
    header = joined(safe(document.header.get(key, "")) for key in ("fleet", "state", "observed"))
    if header:
        text.append_text(sentence(header, indent=0, width=width, style="bold"))
    rows = shown_changes(document)
    if header and rows:
        text.append("\n")
    repeated = _repeated(rows) if document.placement is not None else {}
    for change in rows:
        if change.address in repeated:
            text.append_text(_row(change, document.mode, width, explain, like=repeated[change.address]))
        elif change.member_of not in repeated:
            text.append_text(_row(change, document.mode, width, explain))
    if rows:
        text.append("\n")
    placed = None if document.placement is None else placement_text(document.placement, width=width, explain=explain)
    if placed:
        text.append_text(placed)
        text.append("\n")
    for said in document.notes:
        text.append_text(sentence(said, indent=0, width=width, first="note: ", style="dim"))
    for refusal in document.refusals:
        first = "apply refuses: " if refusal.only_apply else "refused: "
        text.append_text(sentence(refusal.message, indent=0, width=width, first=first, style="bold red"))
        if refusal.next_step:
            text.append_text(sentence(refusal.next_step, indent=len(first), width=width))
    text.append_text(sentence(summary_sentence(document), indent=0, width=width, style="bold"))
    text.rstrip()
    return text


def shown_changes(document: PlanDocument) -> tuple[ChangeDocument, ...]:
    """The changes that are a row: everything but what stays as it is."""
    return tuple(change for change in document.resource_changes if change.action != "no-op")


def summary_sentence(document: PlanDocument) -> str:
    """`Plan: 1 to add, 1 to change, 0 to remove, 1 unknown. Blast radius: reload. Download 4.7 GiB. No downtime.`"""
    summary = document.summary
    acting = summary.create + summary.update + summary.replace + summary.delete + summary.forget
    if not acting:
        if summary.unknown:
            return f"Nothing to do on hosts that answered, {summary.unknown} unknown."
        return _NOTHING[document.mode]
    if document.mode == "drift":
        unknown = f" {summary.unknown} unknown." if summary.unknown else ""
        verb = "differs" if acting == 1 else "differ"
        return f"Drift: {plural(acting, 'resource')} {verb} from serial {document.serial}.{unknown} sbctl apply repairs that."
    counts = [f"{summary.create} to add", f"{summary.update} to change", f"{summary.delete} to remove"]
    counts += [
        f"{count} {word}"
        for count, word in (
            (summary.replace, "to replace"),
            (summary.forget, "to forget"),
            (summary.unknown, "unknown"),
            (summary.blocked, "blocked"),
        )
        if count
    ]
    parts = [f"Plan: {', '.join(counts)}.", f"Blast radius: {summary.blast_radius}."]
    if summary.download_bytes:
        parts.append(f"Download {format_bytes(summary.download_bytes)}.")
    if not document.offline:
        parts.append(_DOWNTIME[summary.downtime])
    return " ".join(parts)


def leaf_words(leaf: LeafDocument, *, both: bool = True) -> str:
    """`4 → 8`, or only the side that exists unless `both`."""
    after = f"(known {safe(leaf.after_unknown)})" if leaf.after_unknown else value_text(leaf.path, leaf.after)
    before = value_text(leaf.path, leaf.before)
    if both:
        return f"{before} → {after}"
    return before if leaf.before is not None else after


def carried_words(change: ChangeDocument) -> str:
    """What to say of a bundle that only carries its members: its numbers, when it gets a new one."""
    return next((f"revision {leaf_words(leaf)}" for leaf in change.leaves if leaf.path == "revision"), "")


def _repeated(rows: tuple[ChangeDocument, ...]) -> dict[str, str]:
    """The authorities of a cluster get one bundle: those after the first that would show the same, each with the one that shows it."""
    shown: dict[tuple[str, ...], str] = {}
    found: dict[str, str] = {}
    for bundle in (row for row in rows if row.kind == "bundle"):
        parts = (bundle, *(row for row in rows if row.member_of == bundle.address))
        said = tuple(part.model_dump_json(exclude=_OF_ITS_HOST) for part in parts)
        first = shown.setdefault(said, bundle.address)
        if first != bundle.address:
            found[bundle.address] = first
    return found


def _row(change: ChangeDocument, mode: str, width: int, explain: bool, like: str = "") -> Text:
    """`like`: the bundle that shows the same, with its members."""
    if change.carries_only and not change.blocked:
        return _carrier(change, like)
    symbol = "!" if change.blocked else SYMBOLS[change.action]
    noticed = "unreachable" if change.action == "unreachable" else str(change.blast_radius)
    indent = 2 if change.member_of else 0
    head = f"{' ' * indent}{symbol:>3} "
    line = Text(head, style=_STYLES[symbol])
    line.append(padded(safe(change.address), width - len(head) - _RADIUS_COLUMNS), style="bold")
    line.append(f"{noticed}\n", style=RADIUS_STYLES[noticed])
    details = (("", f"as {safe(like)}", ""),) if like else tuple(_details(change, mode, explain))
    columns = label_columns(label for label, _, _ in details if label)
    for label, words, style in details:
        if label:
            line.append_text(labelled(label, words, indent=indent + 6, width=width, columns=columns, style=style))
        else:
            line.append_text(sentence(words, indent=indent + 6, width=width, style=style))
    return line


def _carrier(change: ChangeDocument, like: str) -> Text:
    """A bundle above the members it is signed anew for."""
    words = joined((safe(change.address), carried_words(change), f"as {safe(like)}" if like else ""), ", ")
    return Text(f"    {words}\n", style="dim")


def _details(change: ChangeDocument, mode: str, explain: bool) -> Iterator[tuple[str, str, str]]:
    """Label, text, style; without a label it is a sentence."""
    updates = change.action in ("update", "replace")
    surprising = mode == "drift" or change.drifted
    plain = change.action in ("create", "update") or (mode == "destroy" and change.action == "delete")
    if change.reason and (explain or surprising or not plain or (updates and not change.leaves and not change.members)):
        yield "", change.reason, ""
    if change.blocked:
        yield "", change.blocked.message, "bold red"
    if updates or explain or surprising:
        yield from _leaves(change, both=updates or surprising, explain=explain or surprising)
    notes = list(change.notes)
    if change.download_bytes:
        # Where the bytes come from, and under which licence, belongs beside how many they are.
        source = notes.pop(0) if change.kind == "artifact" and notes else ""
        yield "download", joined((format_bytes(change.download_bytes), source), ", "), ""
    if change.memory_bytes and change.kind == "deployment" and not any(said.startswith("memory") for said in notes):
        yield "memory a replica", format_bytes(change.memory_bytes), ""
    if change.downtime != "none" and not change.member_of:
        yield "downtime", _DOWNTIME[change.downtime].removesuffix(".").lower(), ""
    for said in notes:
        label, colon, rest = said.partition(": ")
        short = bool(colon and rest) and len(label) <= _LABEL_MAX_CHARS
        yield (label, rest, "") if short else ("", said, "")


def _leaves(change: ChangeDocument, *, both: bool, explain: bool) -> Iterator[tuple[str, str, str]]:
    # A field that an older record lacks, and that says nothing, is no difference to a reader.
    silent = [leaf for leaf in change.leaves if leaf.path and not leaf.reason and not leaf.after_unknown]
    silent = [leaf for leaf in silent if leaf.before is None and leaf.after is None]
    told = [leaf for leaf in change.leaves if leaf not in silent] or list(change.leaves)
    for leaf in told[:_LEAVES_MAX]:
        why = f" ({leaf.reason})" if leaf.reason and explain else ""
        yield (leaf.path, leaf_words(leaf, both=both) + why, "") if leaf.path else ("…", leaf.reason, "")
    if len(told) > _LEAVES_MAX:
        yield "…", f"{len(told) - _LEAVES_MAX} more in --format json", ""

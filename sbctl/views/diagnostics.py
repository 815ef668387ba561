"""Findings in a file and errors of any kind, as a reader wants them: what, where with the line itself, what to do.

error[config.unknown_field]: "replica" is not a field of a deployment
  --> sb.yml:23:7
23 |       replica: 2
   |       ^^^^^^^ did you mean "replicas"?
   = fields of a deployment: sbctl explain proxy.model_host.deployments
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from rich.cells import cell_len
from rich.text import Text

from sbctl.base.display import plural
from sbctl.base.errors import ConfigError, Diagnostic, SbctlError, SourceSpan
from sbctl.views.layout import safe

__all__ = ["diagnostics_text", "error_document", "error_text"]

_STYLES: Final = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
_BEFORE_MARK: Final = 60
_LINE_MAX_CHARS: Final = 160


def diagnostics_text(diagnostics: Iterable[Diagnostic]) -> Text:
    """All findings, in the order given, and a last line that counts them."""
    listed = tuple(diagnostics)
    text = Text()
    for diagnostic in listed:
        text.append_text(_diagnostic(diagnostic))
    counts = Counter(diagnostic.severity for diagnostic in listed)
    words = [plural(counts[severity], severity) for severity in _ordered(counts)]
    return text.append(", ".join(words), style="bold")


def error_text(error: SbctlError) -> Text:
    """One error; a ConfigError with every finding."""
    if isinstance(error, ConfigError):
        return diagnostics_text(error.diagnostics)
    text = Text()
    text.append(f"error[{safe(error.code)}]", style=_STYLES["error"])
    text.append(f": {safe(error.message)}", style="bold")
    if error.place:
        text.append(f"\n  --> {safe(error.place)}", style="cyan")
    if error.next_step:
        text.append(f"\n   = {safe(error.next_step)}")
    return text


def error_document(error: SbctlError) -> dict[str, Any]:
    """The JSON body of a failed command; a ConfigError with every finding."""
    findings = error.diagnostics if isinstance(error, ConfigError) else ()
    return {
        "error": {**error.to_wire(), "exit_code": int(error.exit_code)},
        "diagnostics": [diagnostic.to_wire() for diagnostic in findings],
    }


def _diagnostic(diagnostic: Diagnostic) -> Text:
    text = Text()
    text.append(f"{safe(diagnostic.severity)}[{safe(diagnostic.code)}]", style=_STYLES.get(diagnostic.severity, "bold"))
    text.append(f": {safe(diagnostic.message)}\n", style="bold")
    span = diagnostic.span
    gutter = ""
    if span is not None:
        gutter = " " * len(str(span.line))
        text.append(f"{gutter}--> {safe(span)}\n", style="cyan")
        if span.source_line:
            text.append_text(_source(span, diagnostic.label, _STYLES.get(diagnostic.severity, "bold")))
        elif diagnostic.label:
            text.append(f"{gutter} = {safe(diagnostic.label)}\n")
    elif diagnostic.label:
        text.append(f" = {safe(diagnostic.label)}\n")
    for said in diagnostic.notes:
        text.append(f"{gutter} = {safe(said)}\n")
    return text


def _source(span: SourceSpan, label: str, style: str) -> Text:
    """The line and the mark under it; a long line is shown around its mark."""
    start = max(0, span.column - 1 - _BEFORE_MARK) if span.column > _LINE_MAX_CHARS - _BEFORE_MARK else 0
    window = span.source_line.rstrip("\n").replace("\t", " ")[start : start + _LINE_MAX_CHARS]
    at = span.column - 1 - start
    before, marked = safe(window[:at]), safe(window[at : at + span.length])
    number = str(span.line)
    text = Text()
    text.append(f"{number} | ", style="cyan")
    text.append(f"{'…' if start else ''}{safe(window)}\n")
    text.append(f"{' ' * len(number)} | ", style="cyan")
    text.append(" " * (cell_len(before) + bool(start)))
    text.append("^" * max(1, cell_len(marked)), style=style)
    return text.append(f" {safe(label)}\n" if label else "\n", style=style)


def _ordered(counts: Counter[str]) -> Iterator[str]:
    yield from (severity for severity in _STYLES if counts[severity])
    yield from sorted(severity for severity in counts if severity not in _STYLES)

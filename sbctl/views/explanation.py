"""What one field of sb.yml means, for the reader."""

from __future__ import annotations

from dataclasses import asdict

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.config.explain import Explanation
from sbctl.views.console import line_width, print_json, result
from sbctl.views.layout import safe
from sbctl.views.tables import render_fields, render_rows

__all__ = ["print_explanation"]


def print_explanation(explanation: Explanation, *, as_json: bool) -> None:
    """On stdout."""
    if as_json:
        print_json("explain", asdict(explanation))
    else:
        result(_text(explanation))


def _text(explanation: Explanation) -> RenderableType:
    managed = (
        "" if explanation.managed else "belongs to another plane of SBproxy; sbctl keeps it and does not manage it"
    )
    facts = [
        ("type", explanation.type),
        ("required", "yes" if explanation.required else "no"),
        ("default", explanation.default),
        ("bounds", "; ".join(explanation.bounds)),
    ]
    parts: list[RenderableType] = [
        Text(safe(explanation.field), style="bold"),
        Text(safe(explanation.description or managed)),
    ]
    parts.append(render_fields([(label, value) for label, value in facts if value], width=line_width()))
    if explanation.written:
        rows = [(str(one.span), one.layer, one.value) for one in explanation.written]
        parts += [Text(""), render_rows(("where", "layer", "value"), rows, empty="")]
    if explanation.fields:
        fields = [(one.name, one.type, one.default, one.description) for one in explanation.fields]
        parts += [Text(""), render_rows(("field", "type", "default", "meaning"), fields, empty="")]
    return Group(*parts)

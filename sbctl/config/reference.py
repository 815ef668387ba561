"""The configuration reference, as markdown, from the models: nothing in it is written twice."""

from __future__ import annotations

from collections.abc import Iterator

from sbctl.base.field_types import Block
from sbctl.config.explain import bounds_in_words, field_lines
from sbctl.config.fields import Place, blocks_of, children_of
from sbctl.config.file_model import SbFile
from sbctl.config.planes import ACCESS, patterns

__all__ = ["reference_markdown"]

_HEAD = """\
# Configuration reference

Every field of `sb.yml`, generated from the models by `make schemas`. `sbctl explain FIELD` says the same and where a value comes from.

`<name>` stands for a name of your choice (a host, a deployment, a hostname). `${VARIABLE}` and `${VARIABLE:-default}` expand in every value.
"""


def reference_markdown() -> str:
    """The whole document."""
    parts = [_HEAD]
    for dotted, block in _blocks():
        title = f"`{dotted}`" if dotted else "Top level"
        parts.append(f"## {title}\n\n{_table(block)}")
    parts.append(_foreign_section())
    return "\n".join(parts)


def _blocks() -> Iterator[tuple[str, type[Block]]]:
    """Every block once, in the order of the file, with the dotted path that leads to it."""
    seen: set[type[Block]] = set()
    pending: list[tuple[str, Place]] = [("", Place(SbFile, None, SbFile, ""))]
    while pending:
        dotted, place = pending.pop(0)
        inner: list[tuple[str, Place]] = []
        known = children_of(place)
        if known.named is not None:
            suffix = "[]" if known.is_list else ".<name>"
            inner.append((dotted + suffix, known.named))
        for block in blocks_of(place.annotation):
            if block in seen:
                continue
            seen.add(block)
            yield dotted, block
            inner.extend(
                (f"{dotted}.{name}".lstrip("."), child)
                for name, child in known.fields.items()
                if name in block.model_fields
            )
        pending = inner + pending


def _table(block: type[Block]) -> str:
    rows = ["| field | type | default | meaning |", "|---|---|---|---|"]
    for line in field_lines(block):
        info = block.model_fields[line.name]
        bounds = ", ".join(bounds_in_words(info))
        kind = f"{line.type}; {bounds}" if bounds else line.type
        default = line.default if line.default in ("", "required") else f"`{line.default}`"
        rows.append(f"| `{line.name}` | {_cell(kind)} | {_cell(default)} | {_cell(line.description)} |")
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def _foreign_section() -> str:
    listed = sorted(patterns())
    open_blocks = ", ".join(f"`{name}`" for name in listed if name not in ACCESS)
    closed = ", ".join(f"`{name}`" for name in listed if name in ACCESS)
    return (
        "## Blocks of SBproxy's other planes\n\n"
        "An SBproxy `sb.yml` is valid as it is. These blocks are kept and named once as not managed:\n\n"
        f"{open_blocks}\n\n"
        "These restrict access; each is an error until `fleet.accept_unenforced` lists it:\n\n"
        f"{closed}\n"
    )

"""The top level of sb.yml without its blocks, which are read one by one since hosts change them."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.base.field_types import Block, FilePath, Id, Items, PlainText, expected

__all__ = ["FileShape", "SecretReference"]

_SECRET_SOURCES = ("env:", "file:", "exec:", "node-file:")


def _check_reference(text: str) -> str:
    source = next((each for each in _SECRET_SOURCES if text.startswith(each)), None)
    if source is None or not text[len(source) :].strip() or len(text) > 4096 or not text.isprintable():
        raise expected("a reference, never the secret itself: env:NAME, file:PATH, exec:COMMAND or node-file:PATH")
    return text


SecretReference = Annotated[
    str,
    AfterValidator(_check_reference),
    WithJsonSchema({"type": "string", "maxLength": 4096, "pattern": "^(env|file|exec|node-file):[^ ]"}),
]


class FileShape(Block):
    """sb.yml as a whole."""

    noun: ClassVar[str] = "sb.yml"

    required_sbctl: PlainText | None = Field(
        default=None, description='Which versions of sbctl may use this file, as ">=0.1".'
    )
    include: Items[FilePath] = Field(
        default=(),
        max_length=256,
        description="Other files of the same form, and patterns such as hosts/*.yml, relative to this one and inside its directory.",
    )
    fleet: Any = None
    secrets: dict[Id, SecretReference] = Field(
        default_factory=dict, max_length=256, description="Where secrets are, by name; used as secret:NAME."
    )
    proxy: Any = None
    origins: Any = None

"""multipart/form-data for audio: parts that are listed, each once; what goes on is written anew with a boundary of ours."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Final

from sbctl.base.errors import InputError
from sbctl.runtime.gateway.fields import PROMPT_FIELD, check_field, missing_field
from sbctl.runtime.gateway.surface import Kind

__all__ = ["AskedForm", "read_form"]

_TYPE: Final = re.compile(
    r'multipart/form-data; ?boundary=(?:"([^"\x00-\x1f\x7f-\xff]{1,70})"|([^\s";,\x00-\x1f\x7f-\xff]{1,70}))',
    re.IGNORECASE,
)
_NAME: Final = re.compile(
    rb'content-disposition: ?form-data; ?name="([a-z_]{1,32})"(?:; ?filename="([^"\r\n]{0,255})")?', re.IGNORECASE
)
_PARTS_MAX: Final = 16
_SUFFIX: Final = re.compile(rb"\.[A-Za-z0-9]{1,8}$")


@dataclass(frozen=True, slots=True)
class AskedForm:
    """A checked form."""

    kind: Kind
    fields: dict[str, str]
    file: bytes
    suffix: str
    """Of the file's name: what engines tell the format by."""

    @property
    def model(self) -> str | None:
        return self.fields.get("model")

    def for_engine(self, *, model: str) -> tuple[bytes, str]:
        """The body and its content type."""
        boundary = secrets.token_hex(16)
        while boundary.encode() in self.file:
            boundary = secrets.token_hex(16)
        rows = [
            f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
            for name, value in {**self.fields, "model": model}.items()
        ]
        head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="audio{self.suffix}"\r\n'
        start = "".join([*rows, head, "Content-Type: application/octet-stream\r\n\r\n"]).encode()
        return b"".join(
            (start, self.file, f"\r\n--{boundary}--\r\n".encode())
        ), f"multipart/form-data; boundary={boundary}"


def read_form(data: bytes, content_type: str, kind: Kind) -> AskedForm:
    """Raises InputError `invalid_body` for a broken form, `invalid_request` naming the field."""
    found = _TYPE.fullmatch(content_type)
    if found is None:
        raise _broken()
    boundary = (found[1] or found[2]).encode("ascii")
    parts = (b"\r\n" + data).split(b"\r\n--" + boundary)
    if parts[0] or parts[-1] not in (b"--", b"--\r\n") or not 3 <= len(parts) <= _PARTS_MAX + 2:
        raise _broken()
    fields: dict[str, str] = {}
    file: bytes | None = None
    suffix = ""
    for part in parts[1:-1]:
        head, has_head, content = part.removeprefix(b"\r\n").partition(b"\r\n\r\n")
        named = _NAME.match(head)
        name = named[1].decode("ascii") if named else ""
        if (
            not has_head
            or not part.startswith(b"\r\n")
            or named is None
            or name in fields
            or (name == "file" and file is not None)
        ):
            raise _broken()
        if name == "file":
            check_field(kind, name, content)
            file = content
            ending = _SUFFIX.search(named[2] or b"")
            suffix = ending[0].decode("ascii") if ending else ""
        else:
            fields[name] = _text(content)
            check_field(kind, name, fields[name])
    if file is None:
        raise missing_field(PROMPT_FIELD[kind])
    return AskedForm(kind, fields, file, suffix)


def _text(content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        raise _broken() from None


def _broken() -> InputError:
    return InputError("invalid_body", "the form is malformed")

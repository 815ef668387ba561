"""The types of fields in sb.yml and catalogs: what a value must look like, said once, for people, for pydantic and for JSON Schema.

Rules: a text type is a class of characters and a length, never an anchored pattern (`$` lets a final newline pass in some dialects) and
never a nested quantifier; the negated class stands in the schema as `not: {pattern}`. Checks answer with a phrase that completes
"expected …"; they never repeat the value, which may be a secret.
"""

from __future__ import annotations

import ipaddress
import re
import unicodedata
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, Strict, WithJsonSchema
from pydantic_core import PydanticCustomError

from sbctl.base.limits import ID_MAX_CHARS, PATH_MAX_CHARS

__all__ = [
    "EXPECTATION",
    "AbsolutePath",
    "Block",
    "ByteSize",
    "DeviceName",
    "EngineKind",
    "FilePath",
    "HexDigest",
    "HostAddress",
    "HostName",
    "Id",
    "ImageDigest",
    "IpAddress",
    "Items",
    "LabelKey",
    "LabelValue",
    "PlainText",
    "Port",
    "SpreadKey",
    "VarName",
    "Version",
    "byte_size",
    "expected",
    "is_loopback",
    "text_check",
    "text_schema",
]

EXPECTATION: Final = "sbctl_expected"
"""Type of the errors raised here; their message is a phrase, not a sentence."""

EngineKind = Literal["vllm", "sglang", "llama_cpp", "mistralrs"]


class Block(BaseModel):
    """A mapping of sb.yml. Unknown fields are errors; values keep their YAML type; nothing changes after loading.

    `noun` names one of it with its article ("a deployment"), for messages.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)

    noun: ClassVar[str] = "a block"


T = TypeVar("T")
Items = Annotated[tuple[T, ...], Strict(False)]
"""A YAML list, kept as a tuple. Its entries stay strict."""


def expected(phrase: str) -> PydanticCustomError:
    """The error of a value that is not what `phrase` says; phrase completes "expected …"."""
    return PydanticCustomError(EXPECTATION, "{phrase}", {"phrase": phrase})


def _characters(allowed: str, phrase: str, *, most: int, never: tuple[str, ...]) -> Callable[[str], str]:
    outside = re.compile(f"[^{allowed}]")

    def check(text: str) -> str:
        if not 0 < len(text) <= most or outside.search(text) is not None or text in never:
            raise expected(phrase)
        return text

    return check


def text_check(allowed: str, phrase: str, *, most: int, never: tuple[str, ...] = ()) -> AfterValidator:
    """Text of 1 to `most` characters of the regular expression class `allowed`, none of `never`; `phrase` completes "expected …"."""
    return AfterValidator(_characters(allowed, phrase, most=most, never=never))


def text_schema(allowed: str, *, most: int, never: tuple[str, ...] = ()) -> WithJsonSchema:
    """The JSON Schema that says the same as `text_check`."""
    refused: dict[str, Any] = {"pattern": f"[^{allowed}]"}
    if never:
        refused = {"anyOf": [refused, {"enum": list(never)}]}
    return WithJsonSchema({"type": "string", "minLength": 1, "maxLength": most, "not": refused})


_ID_CHARS: Final = "A-Za-z0-9._-"
_ID_PHRASE: Final = f"1 to {ID_MAX_CHARS} of A-Z a-z 0-9 . _ -"
_ID_NEVER: Final = (".", "..")
Id = Annotated[
    str,
    text_check(_ID_CHARS, _ID_PHRASE, most=ID_MAX_CHARS, never=_ID_NEVER),
    text_schema(_ID_CHARS, most=ID_MAX_CHARS, never=_ID_NEVER),
]

_SPREAD_CHARS: Final = "A-Za-z0-9._/-"
SpreadKey = Annotated[
    str,
    text_check(_SPREAD_CHARS, "1 to 128 of A-Z a-z 0-9 . _ / -", most=128),
    text_schema(_SPREAD_CHARS, most=128),
]
LabelKey = SpreadKey

_VAR_CHARS: Final = "A-Za-z0-9_"


def _check_var(text: str) -> str:
    if not 0 < len(text) <= 128 or re.search(f"[^{_VAR_CHARS}]", text) is not None or text[0].isdigit():
        raise expected("a name of A-Z a-z 0-9 _ that does not start with a digit")
    return text


VarName = Annotated[
    str,
    AfterValidator(_check_var),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 128,
            "not": {"anyOf": [{"pattern": f"[^{_VAR_CHARS}]"}, {"pattern": "^[0-9]"}]},
        }
    ),
]

_CONTROL: Final = r"\u0000-\u001f\u007f-\u009f"
_CONTROL_RE: Final = re.compile(f"[{_CONTROL}]")


def _check_label_value(text: str) -> str:
    hidden = any(unicodedata.category(char) in ("Cc", "Cf", "Zl", "Zp") for char in text)
    if not 0 < len(text) <= 256 or hidden or unicodedata.normalize("NFC", text) != text:
        raise expected("1 to 256 visible characters in composed (NFC) form")
    return text


LabelValue = Annotated[
    str,
    AfterValidator(_check_label_value),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 256, "not": {"pattern": f"[{_CONTROL}]"}}),
]


def _check_plain(text: str) -> str:
    if not text.strip() or len(text) > PATH_MAX_CHARS or _CONTROL_RE.search(text) is not None:
        raise expected(f"1 to {PATH_MAX_CHARS} characters on one line")
    return text


_PLAIN_SCHEMA: Final[dict[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": PATH_MAX_CHARS,
    "not": {"pattern": f"[{_CONTROL}]"},
}
PlainText = Annotated[str, AfterValidator(_check_plain), WithJsonSchema(_PLAIN_SCHEMA | {"pattern": "[^ ]"})]


def _check_path(text: str) -> str:
    if not text.strip() or len(text.encode()) > PATH_MAX_CHARS or _CONTROL_RE.search(text) is not None:
        raise expected(f"a path of at most {PATH_MAX_CHARS} bytes without control characters")
    return text


def _check_absolute(text: str) -> str:
    if not _check_path(text).startswith("/"):
        raise expected("an absolute path: it must start with /")
    return text


FilePath = Annotated[str, AfterValidator(_check_path), WithJsonSchema(_PLAIN_SCHEMA | {"pattern": "[^ ]"})]
AbsolutePath = Annotated[str, AfterValidator(_check_absolute), WithJsonSchema(_PLAIN_SCHEMA | {"pattern": "^/"})]

Port = Annotated[int, Field(ge=1, le=65535)]


def _check_hex(text: str) -> str:
    if len(text) != 64 or re.search("[^0-9a-fA-F]", text) is not None:
        raise expected("64 hex characters: a SHA-256")
    return text.lower()


HexDigest = Annotated[
    str,
    AfterValidator(_check_hex),
    WithJsonSchema({"type": "string", "minLength": 64, "maxLength": 64, "not": {"pattern": "[^0-9a-fA-F]"}}),
]

_SIZE_RE: Final = re.compile(r"([0-9]{1,7})(?:\.([0-9]{1,3}))? ?(MiB|GiB)")
_SIZE_UNITS: Final = {"MiB": 1 << 20, "GiB": 1 << 30}


def _check_size(text: str) -> str:
    if _SIZE_RE.fullmatch(text) is None or byte_size(text) == 0:
        raise expected("a size with its unit, such as 900 MiB or 6.5 GiB")
    return text


def byte_size(text: str) -> int:
    """Bytes of a `ByteSize`."""
    found = _SIZE_RE.fullmatch(text)
    assert found is not None
    whole, part, unit = found.groups()
    scale: int = 10 ** len(part or "")
    return int(f"{whole}{part or ''}") * _SIZE_UNITS[unit] // scale


ByteSize = Annotated[
    str,
    AfterValidator(_check_size),
    WithJsonSchema(
        {
            "type": "string",
            "maxLength": 16,
            "pattern": "^[0-9]{1,7}(\\.[0-9]{1,3})? ?(MiB|GiB)$",
            "not": {"pattern": "^[0.]+ ?[MG]"},
        }
    ),
]
"""`900 MiB`, `6.5 GiB`."""

_DEVICE_PATTERN: Final = "^([0-9]{1,4}|(GPU|MIG)-[0-9A-Za-z/-]{1,100})$"
_DEVICE_RE: Final = re.compile(_DEVICE_PATTERN[1:-1])


def _device_text(value: object) -> object:
    return str(value) if type(value) is int else value


def _check_device(text: str) -> str:
    if _DEVICE_RE.fullmatch(text) is None:
        raise expected(
            "a device: its number on the host (0), or its id (GPU-…), as sbctl doctor --format json shows them"
        )
    return str(int(text)) if text.isdigit() else text


DeviceName = Annotated[
    str,
    BeforeValidator(_device_text),
    AfterValidator(_check_device),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 9999}, {"type": "string", "pattern": _DEVICE_PATTERN}]}
    ),
]
"""`0`, or `GPU-8a1c…`."""

_VERSION_CHARS: Final = "A-Za-z0-9._-"


def _check_version(text: str) -> str:
    if text.lower() == "latest":
        raise expected("an exact version: latest changes under you")
    outside = re.search(f"[^{_VERSION_CHARS}]", text) is not None
    if not 0 < len(text) <= 128 or outside or not (text[0].isalnum() and text[-1].isalnum()):
        raise expected("a version: 1 to 128 of A-Z a-z 0-9 . _ -, a letter or digit at both ends")
    return text


Version = Annotated[
    str,
    AfterValidator(_check_version),
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": 128,
            "not": {
                "anyOf": [
                    {"pattern": f"[^{_VERSION_CHARS}]"},
                    {"pattern": "^[._-]"},
                    {"pattern": "[._-]$"},
                    {"pattern": "^[Ll][Aa][Tt][Ee][Ss][Tt]$"},
                ]
            },
        }
    ),
]


def _check_image_digest(text: str) -> str:
    repository, marker, digest = text.partition("@sha256:")
    if not marker or re.search("[^0-9a-f]", digest) is not None or len(digest) != 64:
        raise expected("an image by digest: repository@sha256:<64 hex>")
    if not 0 < len(repository) <= 255 or re.search("[^A-Za-z0-9._:/-]", repository) is not None:
        raise expected("an image by digest: repository@sha256:<64 hex>")
    return text


ImageDigest = Annotated[
    str,
    AfterValidator(_check_image_digest),
    WithJsonSchema({"type": "string", "maxLength": 327, "pattern": "^[A-Za-z0-9._:/-]{1,255}@sha256:[0-9a-f]{64}$"}),
]


def _check_ip(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise expected("an IP address") from None
    return text


IpAddress = Annotated[
    str,
    AfterValidator(_check_ip),
    WithJsonSchema({"type": "string", "minLength": 2, "maxLength": 45, "not": {"pattern": "[^0-9A-Fa-f:.]"}}),
]

_HOST_CHARS: Final = "A-Za-z0-9._:-"
_HOST_PHRASE: Final = "a host name or an IP address"
HostAddress = Annotated[
    str,
    text_check(_HOST_CHARS, _HOST_PHRASE, most=253),
    text_schema(_HOST_CHARS, most=253),
]
HostName = HostAddress


def is_loopback(address: str) -> bool:
    """Whether an IP address in text form stays on its machine; IPv4-mapped loopback does."""
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return (mapped or parsed).is_loopback

"""`fleet.state`: where the recorded truth is kept, and who can read it there.

It is read by itself before the rest of the file: the fingerprints of secrets in the rest are keyed by what the state holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Annotated, Any, ClassVar, Final, Literal
from urllib.parse import parse_qsl, urlsplit

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.base.errors import InputError
from sbctl.base.field_types import Block, Items, PlainText, expected, text_check, text_schema
from sbctl.base.field_types import FilePath as FileName
from sbctl.config.diagnose import Report, report_expansion, validated
from sbctl.config.document import Document, Path
from sbctl.config.interpolate import Variables, expanded
from sbctl.config.layers import Layer, View
from sbctl.state.settings import EncryptionSettings, StateSettings, stays_here
from sbctl.trust.sealing import parse_recipient

__all__ = ["StateModel", "check_state", "state_settings"]

_REFERENCES: Final = ("env:", "file:", "exec:", "secret:")
_HTTP_ONLY: Final = ("update_method", "lock_address", "lock_method", "unlock_address", "unlock_method")
_POSTGRES_ONLY: Final = ("table",)
_BLOCK: Final[Path] = ("fleet", "state")


def _check_reference(text: str) -> str:
    source, _, rest = text.partition(":")
    if f"{source}:" not in _REFERENCES or not rest or len(text) > 4096 or not text.isprintable():
        raise expected("a reference to a secret: env:NAME, file:PATH, exec:COMMAND or secret:NAME")
    return text


SecretReference = Annotated[
    str,
    AfterValidator(_check_reference),
    WithJsonSchema({"type": "string", "minLength": 5, "maxLength": 4096, "pattern": "^(env|file|exec|secret):."}),
]


def _check_recipient(text: str) -> str:
    try:
        parse_recipient(text)
    except InputError:
        raise expected("a recipient, sbx1… as `sbctl state recipient` prints it") from None
    return text


Recipient = Annotated[
    str,
    AfterValidator(_check_recipient),
    WithJsonSchema({"type": "string", "minLength": 62, "maxLength": 62, "pattern": "^sbx1[a-z2-7]{58}"}),
]

_METHOD_CHARS: Final = "A-Z"
Method = Annotated[
    str,
    text_check(_METHOD_CHARS, "an HTTP method in capital letters", most=16),
    text_schema(_METHOD_CHARS, most=16),
]


def _check_table(text: str) -> str:
    parts = text.split(".")
    if len(parts) != 2 or any(re.fullmatch("[a-z_][a-z0-9_]{0,62}", part) is None for part in parts):
        raise expected("schema.table, each of a-z 0-9 _ and at most 63 characters")
    return text


SqlTable = Annotated[
    str,
    AfterValidator(_check_table),
    WithJsonSchema(
        {"type": "string", "minLength": 3, "maxLength": 127, "pattern": "^[a-z_][a-z0-9_]*[.][a-z_][a-z0-9_]*"}
    ),
]


class EncryptionModel(Block):
    """Who can read the shared state."""

    noun: ClassVar[str] = "the encryption of the state"

    recipients: Items[Recipient] = Field(
        default=(), max_length=32, description="Public keys (sbx1…) that can open it; sbctl state recipient prints one."
    )
    passphrase: SecretReference | None = Field(
        default=None, description="Reference to a passphrase of at least 16 characters that can open it too."
    )
    identity: SecretReference | None = Field(
        default=None, description="Reference to the private key to open it with. Unset: this machine's own."
    )


class StateModel(Block):
    """Where the recorded truth is kept."""

    noun: ClassVar[str] = "the state"

    backend: Literal["local", "http", "postgres"] = Field(
        default="local",
        description="Where the recorded truth is kept. http: the protocol of Terraform's http backend. Beside sb.yml stays a working copy.",
    )
    address: PlainText | None = Field(
        default=None,
        description="http: the document's URL; postgres: postgresql://host:port/database. Without credentials.",
    )
    username: PlainText | None = Field(default=None, description="Name to log in with.")
    password: SecretReference | None = Field(default=None, description="Reference to the password.")
    ca_file: FileName | None = Field(default=None, description="Certificates (PEM) to trust. Unset: the system's.")
    update_method: Method = Field(default="POST", description="http: method that writes the document.")
    lock_address: PlainText | None = Field(default=None, description="http: URL of the lock. Unset: address.")
    lock_method: Method = Field(default="LOCK", description="http: method that takes the lock.")
    unlock_address: PlainText | None = Field(default=None, description="http: URL to unlock. Unset: lock_address.")
    unlock_method: Method = Field(default="UNLOCK", description="http: method that gives the lock back.")
    table: SqlTable = Field(default="sbctl.state", description="postgres: schema.table; one table a fleet.")
    encryption: EncryptionModel | None = Field(
        default=None, description="Encrypt the shared document and what state pull prints. Unset: plain."
    )


def check_state(report: Report, state: StateModel, span: Callable[[Path], Any]) -> None:
    """What holds across the fields. `span` gives the place of a path below `fleet.state`."""

    def refuse(name: str, sentence: str, remedy: str) -> None:
        report.add("config.state", sentence, span((name,)), notes=(remedy,))

    written = state.model_fields_set
    if state.backend == "local":
        for name in sorted(written - {"backend"}):
            refuse(name, f"state.{name} has no meaning for backend: local", "name a backend: http or postgres")
        return
    if state.address is None:
        refuse("backend", f"backend: {state.backend} needs an address", "add state.address")
        return
    foreign = _POSTGRES_ONLY if state.backend == "http" else _HTTP_ONLY
    for name in sorted(written.intersection(foreign)):
        refuse(name, f"state.{name} has no meaning for backend: {state.backend}", "remove it")
    for name in ("address", "lock_address", "unlock_address") if state.backend == "http" else ("address",):
        text = getattr(state, name)
        problem = None if text is None else (_http_problem if state.backend == "http" else _postgres_problem)(text)
        if problem is not None:
            refuse(name, f"state.{name}: {problem[0]}", problem[1])
    encryption = state.encryption
    if encryption is not None and not encryption.recipients and encryption.passphrase is None:
        refuse(
            "encryption", "nobody could open the state", "list recipients (sbctl state recipient), or name a passphrase"
        )


_NO_CREDENTIALS: Final = ("an address holds no credentials", "use state.username, and state.password with a reference")


def _http_problem(text: str) -> tuple[str, str] | None:
    from yarl import URL

    try:
        url = URL(text)
        host = url.host
    except ValueError:
        return "this is not a URL", "write https://host/path"
    if url.scheme not in ("https", "http") or not host:
        return "this is not a URL of http or https", "write https://host/path"
    if url.user or url.password:
        return _NO_CREDENTIALS
    if url.scheme == "http" and not stays_here(host):
        return "password and state would travel in clear", "use https (state.ca_file names certificates of your own)"
    return None


def _postgres_problem(text: str) -> tuple[str, str] | None:
    try:
        parts = urlsplit(text)
        password, port = parts.password, parts.port
        query = dict(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True)) if parts.query else {}
    except ValueError:
        return "this is not a URL", "write postgresql://host:port/database"
    if parts.scheme not in ("postgresql", "postgres") or (port is not None and not 0 < port < 65536):
        return "this is not a URL of postgresql", "write postgresql://host:port/database"
    if password is not None or parts.username is not None or query.keys() & {"password", "user", "passfile"}:
        return _NO_CREDENTIALS
    if query.keys() - {"host", "port", "dbname"}:
        return "only host, port and dbname may follow the question mark", "use state.ca_file for certificates"
    return None


def state_settings(document: Document, environ: Mapping[str, str]) -> StateSettings:
    """`fleet.state` of a file whose rest may still be wrong. Raises ConfigError for this block alone."""
    fleet = document.value.get("fleet") if isinstance(document.value, dict) else None
    raw = fleet.get("state") if isinstance(fleet, dict) else None
    if raw is None:
        return StateSettings()
    report = Report()
    view = View(document, (Layer(_BLOCK, raw),))
    expansion = expanded(raw, Variables((environ,)))
    report_expansion(report, view, expansion.problems)
    broken = [path for path, _, _ in expansion.problems]
    checked = validated(report, StateModel, expansion.value, view, texts=expansion.texts, broken=broken)
    if checked.model is not None and checked.whole and not broken:
        check_state(report, checked.model, view.key_span)
    report.raise_errors()
    assert checked.model is not None, "a block without findings has a model"
    return _settings(checked.model, document)


def _settings(state: StateModel, document: Document) -> StateSettings:
    directory = FilePath(document.path).absolute().parent
    secrets = document.value.get("secrets")

    def reference(text: str | None) -> str | None:
        if text is None or not text.startswith("secret:"):
            return text
        named = secrets.get(text.removeprefix("secret:")) if isinstance(secrets, dict) else None
        if not isinstance(named, str):
            raise InputError(
                "config.unknown_secret",
                f'there is no secret "{text.removeprefix("secret:")}"',
                place=document.path,
                next_step="add it to secrets in sb.yml, or correct the reference",
            )
        return named

    encryption = None
    if state.encryption is not None:
        encryption = EncryptionSettings(
            tuple(state.encryption.recipients),
            reference(state.encryption.passphrase),
            reference(state.encryption.identity),
        )
    return StateSettings(
        backend=state.backend,
        address=state.address or "",
        username=state.username or "",
        password=reference(state.password),
        ca_file=str(directory / FilePath(state.ca_file).expanduser()) if state.ca_file else "",
        update_method=state.update_method,
        lock_address=state.lock_address or "",
        lock_method=state.lock_method,
        unlock_address=state.unlock_address or "",
        unlock_method=state.unlock_method,
        schema=state.table.partition(".")[0],
        table=state.table.partition(".")[2],
        encryption=encryption,
    )

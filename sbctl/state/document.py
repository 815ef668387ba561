"""The state as one JSON document, `state.v1`: to review, to back up, to move. No secrets; no history.

The key of secret fingerprints is not exported. Only the backup beside the database carries it, with the database's own permissions, so
that a repaired state still recognises unchanged secrets; a state made from an export without it gets a new key, and the next plan shows
each secret as changed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from sbctl import __version__
from sbctl.base import strict_json
from sbctl.base.digests import fingerprint
from sbctl.base.errors import InputError, StateError
from sbctl.base.ids import Address
from sbctl.base.limits import JSON_INT_MAX, STATE_DOCUMENT_MAX_BYTES
from sbctl.state.codec import decode
from sbctl.state.rows import Rows

__all__ = [
    "AddressText",
    "ConnectionEntry",
    "Digest",
    "Entry",
    "Numbering",
    "ResourceEntry",
    "StateDocument",
    "document_from",
    "document_of",
    "dump_document",
    "first_problem",
    "flaw_of",
    "parse_document",
]

SCHEMA_VERSION: Final = 1


def _address(text: str) -> str:
    try:
        return str(Address.parse(text))
    except InputError as error:
        raise ValueError(error.message) from None


AddressText = Annotated[str, AfterValidator(_address)]
Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=JSON_INT_MAX)]
Numbering = Annotated[int, Field(ge=0, le=JSON_INT_MAX // 2)]
"""What the next run counts up from, so there must be room above it."""


class Entry(BaseModel):
    """A part of a document: exactly its fields, nothing converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, defer_build=True)


class _Login(Entry):
    address: str
    port: int = Field(ge=1, le=65535)
    user: str
    host_keys: list[str]
    identity_file: str
    certificate_file: str
    agent_key: str
    passphrase: str


class JumpEntry(_Login):
    """One host in between."""

    name: str


class ConnectionEntry(_Login):
    """How a host is reached, without secrets: `passphrase` and `become_password` are references."""

    kind: Literal["local", "ssh"]
    become: Literal["", "sudo"]
    become_password: str
    jumps: list[JumpEntry]


class ResourceEntry(Entry):
    """One recorded resource: all that is needed to compare and to destroy it without sb.yml."""

    address: AddressText
    record: dict[str, Any]
    record_version: Count
    fingerprint: str
    spec: dict[str, Any]
    host: str
    connection: ConnectionEntry
    after: list[AddressText]
    member_of: AddressText | None
    keep: bool
    prevent_destroy: bool
    pending_delete: bool


class TombstoneEntry(Entry):
    """One host that was given up as lost."""

    host: str = Field(max_length=128)
    lineage: str = Field(max_length=64)
    serial: Count
    at: str = Field(max_length=64)
    why: str = Field(max_length=1000)
    machine_id: str = Field(max_length=64)
    address: str = Field(max_length=256)
    resources: list[AddressText]
    certificate: dict[str, Any]
    readmitted: bool


class StateDocument(Entry):
    """The recorded truth of one fleet at one serial. `digest` is SHA-256 over the canonical JSON of everything else."""

    format: Literal["sbctl.state"]
    schema_version: Literal[1]
    tool_version: str
    lineage: str = Field(pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    serial: Numbering
    fleet_name: str = Field(max_length=256)
    key_epoch: Numbering
    signers: dict[str, str]
    revisions: dict[str, Numbering]
    resources: list[ResourceEntry]
    tombstones: dict[str, TombstoneEntry] = Field(default_factory=dict)
    fingerprint_key: Digest | None = None
    digest: Digest

    def content(self) -> dict[str, Any]:
        """What two documents must share to be the same state."""
        return self.model_dump(exclude={"tool_version", "fingerprint_key", "digest"})


def document_of(rows: Rows, *, with_key: bool = False) -> dict[str, Any]:
    """The document of what is recorded now."""
    head = rows.head
    raw: dict[str, Any] = {
        "format": "sbctl.state",
        "schema_version": SCHEMA_VERSION,
        "tool_version": __version__,
        "lineage": head.lineage,
        "serial": head.serial,
        "fleet_name": head.fleet_name,
        "key_epoch": head.key_epoch,
        "signers": {str(name): decode(body) for name, body in rows.scan("signers")},
        "revisions": {str(scope): decode(body) for scope, body in rows.scan("revisions")},
        "resources": [decode(body) for _, body in rows.scan("resources")],
    }
    if head.tombstones:
        raw["tombstones"] = dict(head.tombstones)
    if with_key:
        raw["fingerprint_key"] = head.fingerprint_key.hex()
    return {**raw, "digest": fingerprint(raw)}


def dump_document(raw: dict[str, Any]) -> bytes:
    """Sorted keys, two spaces: equal states are equal bytes."""
    return strict_json.dump_pretty(raw).encode()


def first_problem(error: ValidationError) -> str:
    """Where and what, without the value."""
    first = error.errors(include_input=False, include_url=False)[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def flaw_of(
    raw: Mapping[str, Any], form: str, *, version_field: str, known: int
) -> Literal["foreign", "newer", "cut"] | None:
    """Why this is no document that can be read here: of another form, of a later version than the known one, or its digest is not its content's."""
    if raw.get("format") != form:
        return "foreign"
    version = raw.get(version_field)
    if isinstance(version, int) and version > known:
        return "newer"
    content = {key: value for key, value in raw.items() if key != "digest"}
    return None if raw.get("digest") == fingerprint(content) else "cut"


def parse_document(data: bytes, *, place: str = "state document") -> StateDocument:
    """Raises InputError `state.document_invalid`, StateError `state.document_corrupt` or `state.too_new`."""
    return document_from(strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES), place=place)


def document_from(raw: object, *, place: str) -> StateDocument:
    """`parse_document` for what was read already."""
    fields: Mapping[str, Any] = raw if isinstance(raw, dict) else {}
    flaw = flaw_of(fields, "sbctl.state", version_field="schema_version", known=SCHEMA_VERSION)
    if flaw == "foreign":
        raise _invalid("this is not a state document of sbctl", place)
    if flaw == "newer":
        raise StateError(
            "state.too_new",
            f"the document has format {fields['schema_version']}; this sbctl knows formats up to {SCHEMA_VERSION}",
            place=place,
            next_step="push it with the sbctl that wrote it, or a newer one",
        )
    if flaw == "cut":
        raise StateError(
            "state.document_corrupt",
            "the digest of the document does not match its content: it was cut or edited",
            place=place,
            next_step="pull it again; to change a state use `sbctl state rm` and `sbctl state import`",
        )
    try:
        document = StateDocument.model_validate(fields)
    except ValidationError as error:
        raise _invalid(first_problem(error), place) from None
    addresses = [entry.address for entry in document.resources]
    if len(set(addresses)) != len(addresses):
        raise _invalid("an address is listed twice", place)
    return document


def _invalid(why: str, place: str) -> InputError:
    return InputError(
        "state.document_invalid",
        why,
        place=place,
        next_step="give what sbctl state pull printed, or a backup.json or errored.json of .sbctl",
    )

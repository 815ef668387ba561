"""`fleet`: sbctl's own block. Which hosts there are, how they are reached, who may sign, who may call, and what differs per host.

Host over group over `defaults` over the global block. `proxy` of a host, group or defaults is an overlay with the very fields of `proxy`.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.artifacts.model import Delivery
from sbctl.base.errors import InputError
from sbctl.base.field_types import (
    AbsolutePath,
    Block,
    FilePath,
    HexDigest,
    Id,
    Items,
    LabelKey,
    LabelValue,
    PlainText,
    VarName,
    Version,
    expected,
    text_check,
    text_schema,
)
from sbctl.base.patterns import AddressPattern
from sbctl.config.egress_block import EgressModel
from sbctl.config.identity_block import IdentityModel
from sbctl.config.ssh_fields import HostKey, SshModel
from sbctl.config.state_block import StateModel
from sbctl.config.update_block import UpdateModel

__all__ = [
    "ApiKeyModel",
    "FleetModel",
    "GroupModel",
    "HostModel",
    "HostPattern",
    "OverlayModel",
    "PythonModel",
    "RuntimeModel",
    "TrustModel",
]

Role = Literal["gateway", "worker", "authority"]
VarValue = Annotated[str | int | float | bool, Field(union_mode="left_to_right")]


def _check_public_key(text: str) -> str:
    if not text.startswith("ed25519:") or len(text) != 52:
        raise expected("a public key as ed25519:<base64 of 32 bytes>")
    return text


PublicKey = Annotated[
    str,
    AfterValidator(_check_public_key),
    WithJsonSchema({"type": "string", "minLength": 52, "maxLength": 52, "pattern": "^ed25519:[A-Za-z0-9+/]{43}="}),
]


_NAME_RANGE_CHARS: Final = "A-Za-z0-9._,\\[\\]-"
_ADDRESS_RANGE_CHARS: Final = "A-Za-z0-9._:,\\[\\]-"
HostPattern = Annotated[
    str,
    text_check(
        _NAME_RANGE_CHARS, "a host name of A-Z a-z 0-9 . _ -, with ranges as gpu-[1-4]", most=128, never=(".", "..")
    ),
    text_schema(_NAME_RANGE_CHARS, most=128, never=(".", "..")),
]
AddressRange = Annotated[
    str,
    text_check(_ADDRESS_RANGE_CHARS, "a host name or an IP address, with ranges as 10.0.0.[1-4]", most=253),
    text_schema(_ADDRESS_RANGE_CHARS, most=253),
]


class PythonModel(Block):
    """A Python that is sent to hosts."""

    noun: ClassVar[str] = "a standalone Python"

    path: FilePath = Field(
        description="Archive on the operator's machine: an install_only .tar.gz of python-build-standalone."
    )
    sha256: HexDigest = Field(description="Its SHA-256.")


class RuntimeModel(Block):
    """The daemon on the hosts."""

    noun: ClassVar[str] = "the runtime"

    version: Version | None = Field(
        default=None, description="Version of the runtime on all hosts, so that two operators agree."
    )
    python: AbsolutePath | PythonModel | None = Field(
        default=None,
        description="Python 3.11 or newer on the hosts, or a standalone one that is sent to them. Unset: one that the host has.",
    )


class TrustModel(Block):
    """Who may sign desired state."""

    noun: ClassVar[str] = "trust"

    signers: dict[Id, PublicKey] = Field(
        min_length=1, max_length=64, description="Who may sign desired state: name to public key."
    )


class ApiKeyModel(Block):
    """Somebody who may use the API, and how much."""

    noun: ClassVar[str] = "an API key"

    sha256: HexDigest = Field(description="SHA-256 of the key; the key itself is never written here.")
    priority: Literal["interactive", "standard", "batch"] = Field(default="standard", description="Who waits for whom.")
    models: Items[PlainText] | None = Field(default=None, description="Public model names it may use. Unset: all.")
    requests_per_minute: Annotated[int, Field(gt=0, le=1_000_000)] | None = Field(
        default=None, description="Requests a minute, counted by each host for itself. Unset: no limit."
    )
    tokens_per_minute: Annotated[int, Field(gt=0, le=1_000_000_000)] | None = Field(
        default=None,
        description="Tokens a minute, read and written together, counted by each host for itself. Unset: no limit.",
    )


class OverlayModel(Block):
    """What hosts have in common unless they say otherwise."""

    noun: ClassVar[str] = "fleet defaults"

    roles: Items[Role] | None = Field(
        default=None, min_length=1, max_length=3, description="What the host does. Unset: gateway and worker."
    )
    labels: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=64, description="Labels, for required_labels."
    )
    vars: dict[VarName, VarValue] = Field(
        default_factory=dict, max_length=256, description="Values for ${…}; they come before the environment."
    )
    delivery: Delivery | None = Field(
        default=None,
        description="pull: the host fetches weights and engines; push: the operator's machine sends them. Unset: pull.",
    )
    relay: Id | None = Field(
        default=None,
        description="A host of the same site: what is pushed goes once to it, and from there to the others. Unset: to each directly.",
    )
    keep: Items[Literal["weights"]] = Field(
        default=(), max_length=1, description="What stays on a host that is given up."
    )
    python: AbsolutePath | PythonModel | None = Field(
        default=None, description="Python of this host; before fleet.runtime.python."
    )
    ssh: SshModel = Field(default=SshModel.model_construct(), description="How to log in; over fleet.ssh.")
    egress: EgressModel = Field(
        default=EgressModel.model_construct(), description="How hosts reach the outside: proxy, authority, hub, index."
    )
    proxy: dict[str, Any] = Field(default_factory=dict, description="What differs in proxy.")


class GroupModel(OverlayModel):
    """What the hosts of one group have in common."""

    noun: ClassVar[str] = "a group"


class HostModel(OverlayModel):
    """One machine."""

    noun: ClassVar[str] = "a host"

    address: AddressRange = Field(description="How SSH reaches the host; local is this machine. Ranges as in the name.")
    group: Id | None = Field(default=None, description="Group whose settings it takes.")
    host_key: HostKey | Items[HostKey] | None = Field(
        default=None,
        description="Its pinned SSH key: SHA256:… or a public key line; a list for a range of hosts. Unset: as sb.hosts.lock has it.",
    )
    data_address: AddressRange | None = Field(
        default=None, description="How clients and peers reach it; ranges as in the name. Unset: address."
    )


def _check_prevent(text: str) -> str:
    try:
        AddressPattern(text)
    except InputError as error:
        why = error.message.partition("is not a pattern: ")[2]
        raise expected(f"an address pattern such as artifact.* or deployment.gpu-a/chat: {why}") from None
    return text


ProtectedPattern = Annotated[
    str,
    AfterValidator(_check_prevent),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 400, "pattern": "^([*]$|[^. ]+[.][^ ])"}),
]


class FleetModel(Block):
    """Which machines there are, and how sbctl reaches and changes them."""

    noun: ClassVar[str] = "the fleet"

    name: Id | None = Field(
        default=None, description="Name of the fleet. Unset: the cluster's, else that of the directory."
    )
    state: StateModel = Field(default=StateModel.model_construct(), description="Where the recorded truth is kept.")
    runtime: RuntimeModel = Field(default=RuntimeModel.model_construct(), description="The daemon on the hosts.")
    trust: TrustModel | None = Field(default=None, description="Who may sign. Unset: the state keeps the set.")
    identity: IdentityModel | None = Field(
        default=None, description="Who hosts are in their cluster. Unset: they have no identity."
    )
    api_keys: dict[Id, ApiKeyModel] = Field(default_factory=dict, max_length=1024, description="Who may call the API.")
    public: bool = Field(default=False, description="Serve the API off loopback without keys.")
    ssh: SshModel = Field(default=SshModel.model_construct(), description="How hosts are reached.")
    update: UpdateModel | None = Field(
        default=None, description="How an apply rolls over hosts. Unset: all hosts at once, and none is drained."
    )
    groups: dict[Id, GroupModel] = Field(default_factory=dict, description="Settings that hosts share.")
    defaults: OverlayModel = Field(default=OverlayModel.model_construct(), description="Settings of all hosts.")
    hosts: dict[HostPattern, HostModel] | None = Field(
        default=None, description="Machines by name. Unset: this machine, named local."
    )
    prevent_destroy: Items[ProtectedPattern] = Field(
        default=(), max_length=256, description="Addresses that no plan may remove or replace."
    )
    accept_unenforced: Items[PlainText] = Field(
        default=(), max_length=256, description="Access restrictions in this file that sbctl may leave unenforced."
    )

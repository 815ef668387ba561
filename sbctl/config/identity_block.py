"""`fleet.identity`: who hosts are in their cluster. By an authority that `sbctl cluster init` made, or by a PKI of the user's own.

Of an own PKI every host has files of its own; `{host}` in their names stands for the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from sbctl.base.errors import SourceSpan
from sbctl.base.field_types import Block, FilePath, Id, IpAddress, Port
from sbctl.base.limits import ENROLLED_HOURS_MAX
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.file_shape import SecretReference

__all__ = ["EnrollModel", "IdentityModel", "check_identity"]

_OWN: Final = ("ca_file", "cert_file", "key_file")
_ISSUED: Final = ("directory", "validity_days", "enroll")
_PLACEHOLDER: Final = "{host}"
_ON_NODE: Final = "node-file:"


class EnrollModel(Block):
    """The server that gives identities to hosts with a token."""

    noun: ClassVar[str] = "the enrollment server"

    host: Id = Field(description="The host it runs on; it has the role authority.")
    bind_address: IpAddress = Field(default="0.0.0.0", description="Address it listens on.")  # noqa: S104 - hosts come from anywhere
    port: Port = Field(default=8443, description="Port it listens on, TLS 1.3.")
    validity_hours: Annotated[int, Field(ge=1, le=ENROLLED_HOURS_MAX)] = Field(
        default=24, description="Life of what it issues; hosts that enrolled renew by themselves before its half."
    )


class IdentityModel(Block):
    """Who gives hosts their identity."""

    noun: ClassVar[str] = "identities of hosts"

    mode: Literal["authority", "manual"] = Field(
        default="authority", description="authority: sbctl issues; manual: a PKI of your own."
    )
    directory: FilePath = Field(
        default="./cluster", description="The authority's directory, made by sbctl cluster init; beside sb.yml."
    )
    server_name: Id | None = Field(
        default=None, description="Name that all hosts answer to. Unset: the authority's; if written it must agree."
    )
    validity_days: Annotated[int, Field(ge=1, le=825)] = Field(
        default=90, description="How long a certificate is good."
    )
    renew_before_days: Annotated[int, Field(ge=1, le=824)] | None = Field(
        default=None,
        description="Days before its end when an apply renews it, or a plan warns of it (manual). Unset: at half of its life.",
    )
    enroll: EnrollModel | None = Field(
        default=None, description="A server where hosts without SSH enroll by join token. Unset: none."
    )
    ca_file: FilePath | None = Field(default=None, description="manual: the CAs that hosts trust, PEM.")
    cert_file: FilePath | None = Field(
        default=None,
        description="manual: the certificate of each host with what stands above it, PEM; {host} is its name.",
    )
    key_file: SecretReference | None = Field(
        default=None,
        description="manual: a reference to the private key of each host; node-file: is on the host already. {host} is its name.",
    )


def check_identity(
    report: Report, identity: IdentityModel, hosts: dict[str, frozenset[str]], span: Callable[[Path], SourceSpan | None]
) -> None:
    """What belongs to the other mode, or is missing for this one; `hosts` with their roles. Findings go to `report`."""

    def problem(sentence: str, path: Path, note: str) -> None:
        report.add("config.rule", sentence, span(("identity", *path)), notes=(note,))

    written = identity.model_fields_set
    foreign = _ISSUED if identity.mode == "manual" else _OWN
    for name in foreign:
        if name in written:
            other = "authority" if identity.mode == "manual" else "manual"
            problem(f"{name} is for mode: {other}", (name,), "leave it out, or write the other mode")
    if identity.mode == "manual":
        for name in _OWN:
            if getattr(identity, name) is None:
                problem(f"mode: manual needs {name}", ("mode",), "name CA, certificate and key of your PKI")
        for name in ("ca_file", "cert_file"):
            if (getattr(identity, name) or "").startswith(_ON_NODE):
                problem(
                    f"{name} is read on this machine", (name,), "bring it here; only the private key may be on the host"
                )
        for name in ("cert_file", "key_file"):
            text = getattr(identity, name) or _PLACEHOLDER
            if len(hosts) > 1 and _PLACEHOLDER not in text and not text.startswith(_ON_NODE):
                problem(
                    f"{name} is the same file for {len(hosts)} hosts", (name,), "put {host} where their names differ"
                )
    enroll = identity.enroll
    if enroll is not None and enroll.host not in hosts:
        listed = ", ".join(sorted(hosts)[:10])
        problem(
            f'the enrollment server is to run on "{enroll.host}", which is no host',
            ("enroll", "host"),
            f"hosts: {listed}",
        )
    elif enroll is not None and "authority" not in hosts[enroll.host]:
        problem(
            f"{enroll.host} runs the enrollment server and has not the role authority",
            ("enroll", "host"),
            "add authority to its roles: hosts show their token to nobody else",
        )

"""`egress` of defaults, groups and hosts: how hosts reach the outside. Host over group over defaults, field by field."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, ClassVar, Final

from pydantic import AfterValidator, Field, WithJsonSchema

from sbctl.artifacts.egress import EGRESS_SECRETS, Egress, EgressSecret
from sbctl.base.errors import SourceSpan
from sbctl.base.field_types import AbsolutePath, Block, Items, PlainText, expected
from sbctl.base.suggest import did_you_mean
from sbctl.config.compiled import CompiledEgress, SecretRef
from sbctl.config.diagnose import Report
from sbctl.config.secrets import SecretSources, secret_ref

__all__ = ["EgressModel", "EgressReader"]

_SOURCES: Final = ("env:", "file:", "exec:", "secret:")


def _check_address(text: str) -> str:
    rest = text.removeprefix("https://").removeprefix("http://")
    if rest == text or not rest or "@" in rest or not text.isascii() or not text.isprintable() or " " in text:
        raise expected("an http or https address without a user or password, as http://proxy.corp:3128")
    return text


Address = Annotated[
    str,
    AfterValidator(_check_address),
    WithJsonSchema({"type": "string", "maxLength": 2048, "pattern": "^https?://[^@ ]+$"}),
]


def _check_reference(text: str) -> str:
    source = next((each for each in _SOURCES if text.startswith(each)), None)
    if source is None or not text[len(source) :].strip() or len(text) > 4096 or not text.isprintable():
        raise expected("a reference, never the secret itself: env:NAME, file:PATH, exec:COMMAND or secret:NAME")
    return text


Reference = Annotated[
    str,
    AfterValidator(_check_reference),
    WithJsonSchema({"type": "string", "maxLength": 4096, "pattern": "^(env:|file:|exec:|secret:)"}),
]


class EgressModel(Block):
    """How hosts reach the outside."""

    noun: ClassVar[str] = "egress"

    proxy: Address | None = Field(
        default=None, description="HTTP proxy for everything that a host fetches. Unset: none; a host's environment is not looked at."
    )  # fmt: skip
    proxy_credentials: Reference | None = Field(default=None, description="USER:PASSWORD for the proxy, by reference.")
    no_proxy: Items[PlainText] | None = Field(
        default=None, max_length=256, description="Names and domains that are reached without the proxy."
    )
    ca_file: AbsolutePath | None = Field(
        default=None,
        description="PEM file on the host with authorities to trust beside the system's: of a proxy that opens TLS, of a private mirror.",
    )
    allowed_hosts: Items[PlainText] | None = Field(
        default=None, max_length=256, description="Hosts that may be fetched from though their address is private."
    )
    hf_endpoint: Address | None = Field(
        default=None, description="Where hf: sources are. Unset: the hub of Hugging Face."
    )
    hf_token: Reference | None = Field(default=None, description="Token for the hub, by reference; sent nowhere else.")
    package_index: Address | None = Field(default=None, description="Where pypi: sources are. Unset: the usual index.")
    index_credentials: Reference | None = Field(
        default=None, description="USER:PASSWORD for the package index, by reference."
    )


class EgressReader:
    """Merges layers and looks up secrets. Findings go to `report`."""

    def __init__(
        self,
        report: Report,
        secrets: Mapping[str, SecretRef],
        sources: SecretSources,
        keyed: Callable[[bytes], str] | None,
    ) -> None:
        self._report = report
        self._secrets = secrets
        self._sources = sources
        self._keyed = keyed

    def read(self, layers: Sequence[tuple[EgressModel, SourceSpan | None]]) -> CompiledEgress | None:
        """None when no layer says anything."""
        written: dict[str, object] = {}
        spans: dict[str, SourceSpan | None] = {}
        for layer, span in layers:
            for name in EgressModel.model_fields:
                if (value := getattr(layer, name)) is not None:
                    written[name], spans[name] = value, span
        if not written:
            return None
        references: dict[EgressSecret, SecretRef] = {}
        for name in EGRESS_SECRETS:
            reference = written.pop(name, None)
            if isinstance(reference, str) and (found := self._reference(name, reference, spans[name])) is not None:
                references[name] = found
        if "proxy_credentials" in references and "proxy" not in written:
            self._report.add(
                "config.rule", "proxy_credentials are for a proxy, and none is set", spans["proxy_credentials"],
                notes=("set egress.proxy, or leave them out",),
            )  # fmt: skip
        return CompiledEgress(Egress.model_validate({**written, "secrets": tuple(references)}), references)

    def _reference(self, name: EgressSecret, text: str, span: SourceSpan | None) -> SecretRef | None:
        if not text.startswith("secret:"):
            return secret_ref(name, text, self._sources, self._keyed)
        known = text.removeprefix("secret:")
        if known in self._secrets:
            return self._secrets[known]
        close = did_you_mean(known, self._secrets)
        self._report.add(
            "config.unknown_secret",
            f'there is no secret "{known}"',
            span,
            label=f'did you mean "{close}"?' if close else "",
            notes=(f"secrets: {', '.join(sorted(self._secrets)) or 'none'}",),
        )
        return None

"""External providers of an origin whose `routing` is `fallback_chain`: who answers when the origin's own deployment cannot.

A provider takes part when it has a `base_url`. It stands in for public names that a managed provider before it in the list answers; the
key is a reference, and `${NAME}` is read as `env:NAME`, so that its value never becomes part of the configuration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import ArtifactError, SourceSpan
from sbctl.base.suggest import did_you_mean
from sbctl.config.compiled import CompiledExternal, SecretRef
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.layers import View
from sbctl.config.origins import AiActionModel, ExternalProviderModel, OriginModel, ProviderModel
from sbctl.config.planes import foreign_names
from sbctl.config.secrets import SecretSources, secret_ref

__all__ = [
    "ExternalReader",
    "chained_provider",
    "check_externals",
    "external_providers",
    "is_chain",
    "key_file",
    "refuse_offline",
]

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_FIELDS: Final = frozenset({*ExternalProviderModel.model_fields, "provider_type"})
_SPECIAL: Final = frozenset({"anthropic", "azure", "azure_openai", "bedrock", "gemini", "google", "vertex", "cohere"})
"""Types whose API is not OpenAI's."""


def is_chain(action: Mapping[str, Any]) -> bool:
    """Whether the providers of an action are asked one after the other."""
    routing = action.get("routing")
    return routing == "fallback_chain" or (isinstance(routing, dict) and routing.get("strategy") == "fallback_chain")


def chained_provider(report: Report, view: View, path: Path, provider: Mapping[str, Any]) -> dict[str, Any]:
    """What is read of an external provider that takes part. A field that nobody knows is a finding."""
    others = foreign_names("origins.*.action.providers.*")
    known = _FIELDS | others
    read: dict[str, Any] = {}
    for name, value in provider.items():
        if name not in known:
            close = did_you_mean(str(name), known)
            report.add(
                "config.unknown_field",
                f'"{name}" is not a field of an external provider',
                view.key_span((*path, name)),
                label=f'did you mean "{close}"?' if close else "",
            )
        elif name in ("api_key", "api_keys"):
            read[name] = [_reference(each) for each in value] if isinstance(value, list) else _reference(value)
        elif name == "provider_type":
            if value in _SPECIAL:
                message = f"the API of {value} is not OpenAI's, and falling back to it is not in this version of sbctl"
                report.add("config.not_available", message, view.value_span((*path, name)))
        else:
            read[name] = value
    return read


def _reference(value: Any) -> Any:
    found = _VARIABLE.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else f"env:{found[1]}"


def external_providers(origin: OriginModel) -> list[tuple[int, ExternalProviderModel]]:
    """Those that take part, with their place in the list."""
    if not isinstance(origin.action, AiActionModel):
        return []
    listed = enumerate(origin.action.providers)
    return [(n, each) for n, each in listed if isinstance(each, ExternalProviderModel) and each.base_url is not None]


def _names(provider: ExternalProviderModel) -> dict[str, str]:
    """Public names, and what each is called there."""
    return {name: provider.model_map.get(name, name) for name in (*provider.models, *provider.model_map)}


def check_externals(report: Report, hostname: str, origin: OriginModel, view: View) -> None:
    """Addresses, and that each stands in for something that is answered here first."""
    seen: set[str] = set()
    for index, provider in external_providers(origin):
        path: Path = (hostname, "action", "providers", index)
        _check_address(report, provider.base_url or "", view.value_span((*path, "base_url")))
        if provider.name in seen:
            report.add("config.conflict", f'two external providers are named "{provider.name}"', view.key_span(path))
        seen.add(provider.name)
        before, behind = _answered(origin, index)
        names = _names(provider)
        for name in names:
            if name in behind and name not in before:
                message = f'the external provider "{provider.name}" stands before the deployment that answers "{name}"'
                note = "the model of the host is always asked first: list its provider before this one"
                report.add("config.not_available", message, view.key_span((*path, "name")), notes=(note,))
            elif name not in before:
                message = f'no deployment of this origin answers "{name}", so "{provider.name}" is not asked for it'
                report.note("config.no_effect", message, view.key_span((*path, "name")))
        if not before.union(behind).intersection(names):
            message = f'the external provider "{provider.name}" stands in for nothing'
            note = f"models: {', '.join(sorted(before)) or 'this origin has no managed provider before it'}"
            report.add("config.conflict", message, view.key_span((*path, "name")), notes=(note,))


def refuse_offline(report: Report, origins: Mapping[str, OriginModel], view: View) -> None:
    """A host that fetches nothing sends no prompts out either."""
    for hostname, origin in origins.items():
        for index, provider in external_providers(origin):
            message = f'the host is offline (model_host.offline), and "{provider.name}" is outside'
            span = view.key_span((hostname, "action", "providers", index, "base_url"))
            report.add("config.conflict", message, span, notes=("leave the provider out, or offline",))


def _check_address(report: Report, text: str, span: SourceSpan | None) -> None:
    # Only here: it brings the HTTP client along, which most plans do not need.
    from sbctl.artifacts.fetch_policy import Origins, check_url, parse_url

    origins = Origins()
    try:
        url = parse_url(text)
        origins.add_source(url)
        check_url(url, origins)
        if url.query_string or url.fragment:
            raise ArtifactError("artifact.url_refused", "this address is not asked: it has a query or a fragment")
    except ArtifactError as error:
        report.add("config.bad_value", f"base_url: {error.message}", span)


def _answered(origin: OriginModel, index: int) -> tuple[set[str], set[str]]:
    """Names that managed providers before and behind a place answer."""
    before: set[str] = set()
    behind: set[str] = set()
    assert isinstance(origin.action, AiActionModel)
    for place, each in enumerate(origin.action.providers):
        if isinstance(each, ProviderModel):
            (before if place < index else behind).update(each.models or (each.deployment,))
    return before, behind


def key_file(reference: str) -> str:
    """What a key is called on a host: by where it comes from, so that it stays the same when it is exchanged."""
    return f"provider_key_{sha256_bytes(reference.encode())[:16]}"


class ExternalReader:
    """Compiles the external providers of origins. Findings go to `report`."""

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

    def read(self, hostname: str, origin: OriginModel, answered: set[str], view: View) -> dict[int, CompiledExternal]:
        """By their place in the list. `answered`: public names that the host answers itself."""
        found = {}
        for index, provider in external_providers(origin):
            models = {name: there for name, there in _names(provider).items() if name in answered}
            if not models:
                continue
            span = view.key_span((hostname, "action", "providers", index, "name"))
            written = (*((provider.api_key,) if provider.api_key is not None else ()), *provider.api_keys)
            keys = tuple(filter(None, (self._key(reference, span) for reference in dict.fromkeys(written))))
            found[index] = CompiledExternal(
                provider.name, provider.base_url or "", models, keys, provider.no_prompt_training
            )
        return found

    def _key(self, text: str, span: SourceSpan | None) -> SecretRef | None:
        if not text.startswith("secret:"):
            return secret_ref(key_file(text), text, self._sources, self._keyed)
        known = self._secrets.get(text.removeprefix("secret:"))
        if known is None:
            close = did_you_mean(text.removeprefix("secret:"), self._secrets)
            label = f'did you mean "{close}"?' if close else ""
            message = f'there is no secret "{text.removeprefix("secret:")}"'
            notes = (f"secrets: {', '.join(sorted(self._secrets)) or 'none'}",)
            self._report.add("config.unknown_secret", message, span, label=label, notes=notes)
            return None
        return SecretRef(key_file(known.reference), known.reference, known.fingerprint)

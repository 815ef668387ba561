"""Blocks of SBproxy's other planes: names that an SBproxy sb.yml may hold and sbctl does not manage.

They are kept in the file and named once as not managed. Those that restrict who may do what (`ACCESS`) are errors, since serving without
them would open what the file closes, until `fleet.accept_unenforced` lists them. A block that is empty or says `enabled: false` restricts
nothing. An origin that sbctl does not serve exposes nothing, so there they are only named.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from sbctl.config.document import Path

__all__ = ["ACCESS", "FOREIGN", "Foreign", "accepts", "foreign_names", "patterns", "without_foreign"]


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


FOREIGN: Final[Mapping[str, frozenset[str]]] = {
    "": _names("""
        source extensions access_log agent_classes rate_limits audit egress session_ledger request_events events flags update
    """),
    "proxy": _names("""
        zone http2_cleartext acme http3 metrics observability alerting config_authority secrets
        key_management l2_cache_settings cache_reserve response_cache_store compression_state config_history messenger_settings
        trusted_proxies correlation_id mtls ai_providers_file device_parser_file synthetic_probe scripting extensions
        http_client_timeouts web_bot_auth attestation tenants credentials payments
    """),
    "origins.*": _names("""
        tenant_id credentials authentication auth policies transforms filters request_modifiers response_modifiers cors hsts compression
        session session_config properties sessions user allowed_methods forward_rules fallback_origin response_cache variables
        on_request on_response bot_detection threat_protection error_pages problem_details proxy_status deprecation traffic_capture mirror
        message_signatures olp web_bot_auth_publish idempotency connection_pool timeouts extensions expose_openapi stream_safety
        default_content_shape content_signal token_bytes_ratio agent_skills agents_md ai_txt agents_json outbound_credential
        outbound_web_bot_auth attestation observability ip_filter ip_filtering
    """),
    "origins.*.action": _names("""
        routing cache_affinity data_posture context_window_fallbacks content_policy_fallbacks allowed_models blocked_models model_aliases
        model_groups max_body_size guardrails budget virtual_keys require_governed_key model_rate_limits per_surface_rate_limits
        max_concurrent resilience compression reasoning shadow pii trace_content capture_content semantic_cache prompts usage_parser
        usage_sinks ai_policy ai_routing_policy model_prices rate_card max_price_per_request allow_request_timeout_override
        max_request_timeout_ms quota_pool rag
    """),
    "origins.*.action.providers.*": _names("""
        accept_native_credentials_for weight priority enabled max_retries timeout_ms organization api_version host_override
        disable_forwarded_host_header allow_private_base_url data_posture service_tier on_key_failure
        fallback_credential_id aws_sigv4 bedrock_guardrail
    """),
}
"""Where (`*` is any name or index) and which names."""

ACCESS: Final[frozenset[str]] = _names("""
    rate_limits
    proxy.key_management proxy.mtls proxy.tenants proxy.credentials proxy.payments
    origins.*.authentication origins.*.auth origins.*.credentials origins.*.policies origins.*.filters
    origins.*.allowed_methods origins.*.bot_detection origins.*.threat_protection origins.*.message_signatures origins.*.stream_safety
    origins.*.ip_filter origins.*.ip_filtering
    origins.*.action.guardrails origins.*.action.allowed_models origins.*.action.blocked_models origins.*.action.budget
    origins.*.action.virtual_keys origins.*.action.require_governed_key origins.*.action.model_rate_limits
    origins.*.action.per_surface_rate_limits origins.*.action.max_concurrent origins.*.action.max_body_size origins.*.action.pii
    origins.*.action.ai_policy origins.*.action.max_price_per_request origins.*.action.quota_pool origins.*.action.data_posture
    origins.*.action.providers.*.bedrock_guardrail origins.*.action.providers.*.enabled
""")
"""Blocks that restrict access or use."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """A block of another plane that the file holds. `pattern` is dotted, with `*` for names; `restricts` when it closes something."""

    path: Path
    pattern: str
    restricts: bool


def foreign_names(pattern: str) -> frozenset[str]:
    """Names of other planes' blocks inside the block at `pattern`."""
    return FOREIGN.get(pattern, frozenset())


def accepts(accepted: tuple[str, ...], pattern: str) -> bool:
    """Whether `fleet.accept_unenforced` lists a block, by its dotted name, a pattern over it, or its last name alone."""
    last = pattern.rpartition(".")[2]
    return any(entry == last or fnmatchcase(pattern, entry) for entry in accepted)


def without_foreign(value: Any, prefix: Path) -> tuple[Any, list[Foreign]]:
    """`value`, which stands at `prefix` of the file's form, without other planes' blocks, and what was taken out, in file order."""
    found: list[Foreign] = []
    return _strip(
        value, prefix, ".".join("*" if _is_name(prefix, i) else str(part) for i, part in enumerate(prefix)), found
    ), found


def _is_name(path: Path, index: int) -> bool:
    return (index == 1 and path[0] == "origins") or isinstance(path[index], int)


def _strip(value: Any, path: Path, pattern: str, found: list[Foreign]) -> Any:
    names = FOREIGN.get(pattern)
    if isinstance(value, list):
        return [_strip(child, (*path, index), f"{pattern}.*", found) for index, child in enumerate(value)]
    if not isinstance(value, dict):
        return value
    result = {}
    for key, child in value.items():
        child_path = (*path, key)
        child_pattern = f"{pattern}.{'*' if _is_name(child_path, len(path)) else key}".lstrip(".")
        if names is not None and key in names:
            found.append(Foreign(child_path, child_pattern, child_pattern in ACCESS and _restricts(key, child)))
        elif any(known == child_pattern or known.startswith(f"{child_pattern}.") for known in FOREIGN):
            result[key] = _strip(child, child_path, child_pattern, found)
        else:
            result[key] = child
    return result


def _restricts(name: str, value: Any) -> bool:
    if name == "enabled":
        return value is False
    return bool(value) and not (isinstance(value, dict) and value.get("enabled") is False)


def patterns() -> Iterator[str]:
    """Dotted names of all blocks of other planes."""
    for where, names in FOREIGN.items():
        for name in sorted(names):
            yield f"{where}.{name}".lstrip(".")

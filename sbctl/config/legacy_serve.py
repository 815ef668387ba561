"""`serve:` on a provider, SBproxy's older way to host a model, said in today's words (SBproxy, "Migrating from provider serve").

Plain data in, plain data out, before variables are put in: every entry of `serve.models` becomes a deployment with an id that follows from
what it says, its provider a managed one, the settings of the block those of `proxy.model_host`. Equal entries become one deployment. What has
no like today, or is said in two ways, refuses the whole file. The same function lowers a file that is read and rewrites one that is migrated,
so a migrated file means what it meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.display import display_safe
from sbctl.base.suggest import did_you_mean
from sbctl.config.document import Path

__all__ = ["Lowered", "Problem", "lowered", "serve_blocks"]

_SAME: Final = (
    "model", "variant", "engine", "max_context", "extra_args", "kv_quant", "chunked_prefill", "tool_call_parser", "swap_space_gib",
    "cpu_offload_gib",
)  # fmt: skip
_DROPPED: Final = {
    "pinned": "pinned is left out: an engine without keep_alive stays until memory is needed for another",
    "enable_prefix_caching": "enable_prefix_caching is left out: llama.cpp keeps prefixes by itself",
    "modality": "modality is left out: the catalog says what a model is for",
    "reference": "reference is left out: sbctl does not price what a hosted model would have cost",
}
_REFUSED: Final = {
    "speculative": "speculative decoding is not in this version of sbctl",
    "lora_adapters": "lora_adapters of a serve block are for vllm; a deployment has lora, with adapters of the catalog",
    "max_loras": "max_loras is for vllm, which is not in this version of sbctl",
    "gguf_file": "gguf_file picks a file of a repository; a variant of the catalog names its files",
}
_ENTRY: Final = frozenset({*_SAME, *_DROPPED, *_REFUSED, "name", "keep_alive"})
_HOST: Final[Mapping[str, Path]] = {
    "catalog_file": ("catalog_file",),
    "cache_dir": ("cache", "directory"),
    "cache_budget_gib": ("cache", "budget_gib"),
    "engines": ("engines",),
}
_BLOCK: Final = frozenset(
    {*_HOST, "models", "allow_unpinned_refs", "eviction", "max_concurrent_requests", "queue_timeout_ms"}
)
_DURATION_RE: Final = re.compile(r"(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s?)?")
_ID_MAX_CHARS: Final = 96


@dataclass(frozen=True, slots=True)
class Problem:
    """Something at `path` of the file that has no like today; `is_note`: it is left out, and nothing is lost that sbctl would do."""

    path: Path
    code: str
    message: str
    remedy: str = ""
    is_note: bool = False


@dataclass
class Lowered:
    """`value` is the file in today's words. `places`: where what stands at a new path was written; a path begins with the longest one."""

    value: Any
    problems: list[Problem] = field(default_factory=list)
    places: dict[Path, Path] = field(default_factory=dict)
    deployments: dict[str, Path] = field(default_factory=dict)
    """Ids of the new deployments, and where their entries stand."""

    def say(self, path: Path, code: str, message: str, remedy: str = "") -> None:
        self.problems.append(Problem(path, code, message, remedy))


def serve_blocks(value: Any) -> list[Path]:
    """Paths of the providers that have one."""
    origins = value.get("origins") if isinstance(value, dict) else None
    found: list[Path] = []
    for hostname, origin in origins.items() if isinstance(origins, dict) else ():
        action = origin.get("action") if isinstance(origin, dict) else None
        providers = action.get("providers") if isinstance(action, dict) and action.get("type") == "ai_proxy" else None
        for index, provider in enumerate(providers if isinstance(providers, list) else ()):
            if isinstance(provider, dict) and isinstance(provider.get("serve"), dict):
                found.append(("origins", hostname, "action", "providers", index))
    return found


def lowered(value: Any, pull_of: Callable[[str], str | None] = lambda _: None) -> Lowered:
    """`value` itself stays as it is. `pull_of`: when the catalog says that a model's weights are fetched; `on_boot` means a warm deployment."""
    blocks = serve_blocks(value)
    if not blocks:
        return Lowered(value)
    result = Lowered(_copied(value))
    proxy = result.value.setdefault("proxy", {})
    model_host = proxy.setdefault("model_host", {}) if isinstance(proxy, dict) else None
    deployments = model_host.setdefault("deployments", {}) if isinstance(model_host, dict) else None
    if not isinstance(model_host, dict) or not isinstance(deployments, dict):
        return Lowered(value)
    policies: dict[str, Any] = {}
    by_list: dict[Path, dict[int, list[dict[str, Any]]]] = {}
    for path in blocks:
        provider = _at(value, path)
        _host_policy(result, model_host, provider["serve"], (*path, "serve"), policies)
        managed = _Block(result, deployments, provider, path, pull_of).lowered()
        by_list.setdefault(path[:-1], {})[_index(path)] = managed
    if "deployments" not in _written_model_host(value):
        model_host["deployments"] = model_host.pop("deployments")
    for path, replaced in by_list.items():
        _replace_providers(result, path, replaced)
    return result


def _written_model_host(value: Any) -> Mapping[str, Any]:
    found: Any = value.get("proxy")
    found = found.get("model_host") if isinstance(found, dict) else None
    return found if isinstance(found, dict) else {}


def _index(path: Path) -> int:
    last = path[-1]
    assert isinstance(last, int), "providers are a list"
    return last


def _replace_providers(result: Lowered, path: Path, replaced: Mapping[int, list[dict[str, Any]]]) -> None:
    providers = _at(result.value, path)
    new: list[Any] = []
    for index, provider in enumerate(providers):
        for each in replaced.get(index, [provider]):
            result.places[(*path, len(new))] = (*path, index)
            new.append(each)
    providers[:] = new


def _host_policy(
    result: Lowered, model_host: dict[str, Any], serve: Mapping[str, Any], path: Path, policies: dict[str, Any]
) -> None:
    """Settings of a block that are a host's; two blocks, or a block and `proxy.model_host`, say the same or nothing."""
    for name in serve:
        if name not in _BLOCK:
            close = did_you_mean(str(name), _BLOCK)
            message = f'"{display_safe(str(name), max_chars=64)}" is not a field of a serve block'
            hint = f'did you mean "{close}"?' if close else "each entry of models has its own" if name in _ENTRY else ""
            result.say((*path, name), "config.unknown_field", message, hint)
    if serve.get("eviction") == "never":
        message = (
            "eviction: never is not in this version of sbctl: a model that is idle gives way to one that is asked for"
        )
        result.say((*path, "eviction"), "config.not_available", message, "use lru")
    if "queue_timeout_ms" in serve and "max_concurrent_requests" not in serve:
        message = "queue_timeout_ms of a serve block counts with max_concurrent_requests only"
        result.problems.append(Problem((*path, "queue_timeout_ms"), "config.no_effect", message, is_note=True))
    for name, target in _HOST.items():
        if name not in serve:
            continue
        into = model_host
        for part in target[:-1]:
            into = into.setdefault(str(part), {})
            if not isinstance(into, dict):
                return
        last = str(target[-1])
        held = policies.get(name, into.get(last, serve[name]))
        if held != serve[name]:
            dotted = ".".join(map(str, ("proxy", "model_host", *target)))
            message = f"{name} says another thing than {dotted}, or than another serve block: a host has one"
            result.say((*path, name), "config.conflict", message, "say it once, under proxy.model_host")
            continue
        policies[name] = into[last] = serve[name]
        result.places[("proxy", "model_host", *target)] = (*path, name)


@dataclass
class _Block:
    """One provider with a serve block."""

    result: Lowered
    deployments: dict[str, Any]
    provider: Mapping[str, Any]
    path: Path
    pull_of: Callable[[str], str | None]

    def lowered(self) -> list[dict[str, Any]]:
        """The managed providers in its place, one a deployment."""
        if "deployment" in self.provider:
            message = "serve does not go with deployment: the one is the older way to say the other"
            self.result.say((*self.path, "serve"), "config.conflict", message, "remove one of them")
        serve = self.provider["serve"]
        entries = serve.get("models")
        if not isinstance(entries, list) or not entries:
            message = "a serve block lists the models that it serves"
            self.result.say((*self.path, "serve"), "config.missing_field", message, "models: [{model: …}]")
            return [{"name": self.provider.get("name")}]
        managed = []
        claimed = self.provider.get("models")
        for number, entry in enumerate(entries):
            path: Path = (*self.path, "serve", "models", number)
            if not isinstance(entry, dict) or not isinstance(entry.get("model"), str):
                message = 'an entry of serve.models is a map with "model"'
                self.result.say(path, "config.missing_field", message)
                continue
            public = str(entry.get("name") or entry["model"])
            identity = self._deployment(entry, public, path)
            if not claimed or public in claimed:
                managed.append(self._managed(identity, public))
        return managed

    def _managed(self, deployment: str, public: str) -> dict[str, Any]:
        kept = {key: each for key, each in self.provider.items() if key not in ("serve", "models", "default_model")}
        default = self.provider.get("default_model")
        return {
            **kept,
            "provider_type": "managed_model",
            "deployment": deployment,
            "models": [public],
            **({"default_model": default} if default == public else {}),
        }

    def _deployment(self, entry: Mapping[str, Any], public: str, path: Path) -> str:
        written = self._fields(entry, path)
        name = str(self.provider.get("name", ""))
        told = {"provider": name, "public_model": public, "entry": entry}
        identity = f"legacy-{name}-{entry['model']}"
        readable = re.sub(r"[^A-Za-z0-9._-]+", "-", identity)[:_ID_MAX_CHARS]
        identity = f"{readable}-{sha256_bytes(canonical_json(told))[:8]}"
        self.deployments.setdefault(identity, written)
        place: Path = ("proxy", "model_host", "deployments", identity)
        self.result.places.setdefault(place, path)
        self.result.deployments.setdefault(identity, path)
        return identity

    def _fields(self, entry: Mapping[str, Any], path: Path) -> dict[str, Any]:
        self._refuse(entry, path)
        serve = self.provider["serve"]
        written = {name: entry[name] for name in _SAME if name in entry}
        if "keep_alive" in entry:
            seconds = _seconds(entry["keep_alive"])
            if seconds is None:
                message = 'keep_alive is a duration such as "30m", "1h" or "90s"'
                self.result.say((*path, "keep_alive"), "config.bad_value", message)
            else:
                written["keep_alive_secs"] = seconds
        if "max_concurrent_requests" in serve:
            written["max_concurrency"] = serve["max_concurrent_requests"]
            if "queue_timeout_ms" in serve:
                written["queue_timeout_ms"] = serve["queue_timeout_ms"]
        if self.pull_of(entry["model"]) == "on_boot":
            written |= {"pull": "on_boot", "warm": True}
        return written

    def _refuse(self, entry: Mapping[str, Any], path: Path) -> None:
        say = self.result.say
        for name, value in entry.items():
            if name not in _ENTRY:
                close = did_you_mean(str(name), _ENTRY)
                message = f'"{display_safe(str(name), max_chars=64)}" is not a field of an entry of serve.models'
                say((*path, name), "config.unknown_field", message, f'did you mean "{close}"?' if close else "")
            elif name in _REFUSED and value not in (None, [], {}):
                say((*path, name), "config.not_available", _REFUSED[name])
            elif name in _DROPPED:
                self.result.problems.append(Problem((*path, name), "config.no_effect", _DROPPED[name], is_note=True))
        if re.match(r"(?:hf|file|https?):", entry["model"]):
            message = "a model that is not pinned by digests is not served"
            remedy = f"sbctl catalog add {display_safe(entry['model'], max_chars=120)} pins it; then name its id"
            say((*path, "model"), "config.not_available", message, remedy)


def _seconds(value: Any) -> int | None:
    """A duration; a plain number is seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    match = _DURATION_RE.fullmatch(str(value).strip())
    if match is None or not any(match.groups()):
        return None
    hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return hours * 3600 + minutes * 60 + seconds


def _at(value: Any, path: Path) -> Any:
    for part in path:
        value = value[part]
    return value


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, list) else value

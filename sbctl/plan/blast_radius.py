"""What users notice of a change: an ordered table from leaf to radius.

As in SBproxy's `plan` (model host, section on blast radius): the first matching row decides a leaf, the worst leaf decides a
change, what no row names is `reload`. Our table adds the kinds that SBproxy does not plan, direction (adding is not removing), and a
reason for each row. The empty path is the resource itself: created when `before` is None, removed when `after` is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from sbctl.plan.model import Action, BlastRadius, Leaf
from sbctl.plan.paths import join_path, path_matches, split_path

__all__ = ["TABLE", "Row", "action_radius", "radius_of", "routed_deployments", "row_of", "worst_radius"]

_HITLESS, _RELOAD, _RESTART, _BREAKING = BlastRadius

When = Literal["any", "added", "removed", "lowered", "off"]
"""How the value moved. `off` is something to nothing (true to false, filled to empty), `lowered` a number that shrank."""


@dataclass(frozen=True, slots=True)
class Row:
    """One rule: leaves of `kind` that match `glob` and moved as `when` says."""

    kind: str
    glob: str
    when: When
    radius: BlastRadius
    reason: str


TABLE: Final[tuple[Row, ...]] = (
    Row("host", "**", "any", _HITLESS, "a claim on a host is a file beside the runtime"),
    Row("certificate", "", "added", _HITLESS, "nobody relies on it yet"),
    Row("certificate", "", "removed", _BREAKING, "peers refuse the host"),
    Row("certificate", "ca.**", "added", _HITLESS, "more is trusted than before"),
    Row("certificate", "signers.**", "added", _HITLESS, "more is trusted than before"),
    Row("certificate", "**", "any", _RELOAD, "new connections use the new identity; open ones go on"),
    Row("runtime", "", "added", _HITLESS, "nobody uses it yet"),
    Row("runtime", "", "removed", _BREAKING, "the host serves nothing any more"),
    Row("runtime", "labels.**", "any", _RESTART, "the runtime reads its labels once, at start"),
    Row("runtime", "http_bind_address", "any", _RESTART, "the listener is bound at start"),
    Row("runtime", "http_bind_port", "any", _RESTART, "the listener is bound at start"),
    Row("runtime", "https_bind_port", "any", _RESTART, "the listener is bound at start"),
    Row(
        "runtime",
        "certificate.**",
        "any",
        _RELOAD,
        "the next handshake shows the new certificate; open connections go on",
    ),
    Row("runtime", "provider_keys.*", "added", _RESTART, "the runtime reads the names of its keys once, at start"),
    Row("runtime", "provider_keys.*", "removed", _RESTART, "the runtime reads the names of its keys once, at start"),
    Row("runtime", "provider_keys.*", "any", _RELOAD, "the new key is used from the next request on"),
    Row("runtime", "admin_bind", "any", _RESTART, "the admin listener is bound at start"),
    Row("runtime", "admin_port", "any", _RESTART, "the admin listener is bound at start"),
    Row("runtime", "admin_enabled", "any", _RESTART, "the admin listener is bound at start"),
    Row("runtime", "admin_tls", "any", _BREAKING, "admin clients have to speak the other of HTTP and HTTPS"),
    Row("runtime", "admin_allow_ips", "any", _RESTART, "the runtime reads its configuration once, at start"),
    Row("runtime", "admin.**", "any", _RESTART, "the admin listener is bound at start"),
    Row("runtime", "cache_directory", "any", _RESTART, "weights are opened from another directory"),
    Row("runtime", "version", "any", _RESTART, "another program runs"),
    Row("runtime", "**", "any", _RESTART, "the runtime reads its configuration once, at start"),
    Row("store", "", "added", _HITLESS, "nobody uses it yet"),
    Row("store", "", "removed", _HITLESS, "nodes go on with what they were last told"),
    Row("store", "users.**", "any", _HITLESS, "the store reads who may use it while it runs"),
    Row("store", "**", "any", _HITLESS, "one store restarts at a time; nodes go on with what they were last told"),
    Row("enrollment", "", "added", _HITLESS, "nobody asks it yet"),
    Row("enrollment", "**", "any", _HITLESS, "hosts that enroll or renew try again; what they hold goes on"),
    Row(
        "engine",
        "**",
        "any",
        _HITLESS,
        "an engine is installed beside the others; a deployment that changes to it says so itself",
    ),
    Row("artifact", "**", "any", _HITLESS, "weights in the cache serve nobody until a deployment uses them"),
    Row("deployment", "", "added", _HITLESS, "nobody uses it yet"),
    Row("deployment", "", "removed", _HITLESS, "no origin routes to it"),
    Row("deployment", "routed", "removed", _BREAKING, "origins route to it"),
    Row("deployment", "artifact.source", "any", _HITLESS, "another way to the same bytes"),
    Row("deployment", "artifact.revision", "any", _HITLESS, "another way to the same bytes"),
    Row("deployment", "artifact.mirrors.**", "any", _HITLESS, "another way to the same bytes"),
    Row("deployment", "artifact.license", "any", _HITLESS, "the same bytes"),
    Row("deployment", "artifact.catalog_digest", "any", _HITLESS, "provenance only"),
    Row("deployment", "**", "any", _RELOAD, "a new generation is proved before the old one is drained"),
    Row("origin", "", "added", _HITLESS, "nobody uses it yet"),
    Row("origin", "", "removed", _BREAKING, "its hostname is answered 404"),
    Row("origin", "any_host", "off", _BREAKING, "callers that name another Host are answered 404"),
    Row("origin", "any_host", "any", _HITLESS, "nobody uses it yet"),
    Row("origin", "models.*", "added", _HITLESS, "nobody uses it yet"),
    Row("origin", "models.*", "removed", _BREAKING, "clients that name this model are refused"),
    Row("origin", "default_model", "added", _HITLESS, "requests that name no model were refused"),
    Row("origin", "default_model", "removed", _BREAKING, "requests that name no model are refused"),
    Row("origin", "authentication.**", "any", _BREAKING, "clients must present something else"),
    Row("origin", "action.type", "any", _BREAKING, "the hostname does something else"),
    Row("origin", "**", "any", _RELOAD, "routes are swapped between two requests"),
    Row("bundle", "", "added", _HITLESS, "nobody uses it yet"),
    Row("bundle", "", "removed", _BREAKING, "the host serves nothing any more"),
    Row("bundle", "api_keys", "off", _BREAKING, "callers with these keys are refused"),
    Row("bundle", "api_keys.*.models", "added", _BREAKING, "the key loses models"),
    Row("bundle", "api_keys.*.models", "removed", _HITLESS, "the key may use every model"),
    Row("bundle", "api_keys.*.models", "any", _BREAKING, "the key may lose models"),
    Row("bundle", "api_keys.*.requests_per_minute", "lowered", _BREAKING, "callers may be refused sooner"),
    Row("bundle", "api_keys.*.requests_per_minute", "added", _BREAKING, "callers may be refused sooner"),
    Row("bundle", "api_keys.*.requests_per_minute", "removed", _HITLESS, "the key has no such limit any more"),
    Row("bundle", "api_keys.*.tokens_per_minute", "lowered", _BREAKING, "callers may be refused sooner"),
    Row("bundle", "api_keys.*.tokens_per_minute", "added", _BREAKING, "callers may be refused sooner"),
    Row("bundle", "api_keys.*.tokens_per_minute", "removed", _HITLESS, "the key has no such limit any more"),
    Row("bundle", "api_keys.*.**", "added", _HITLESS, "nobody uses it yet"),
    Row("bundle", "api_keys.*.**", "removed", _BREAKING, "callers with this key are refused"),
    Row("bundle", "api_keys.*.sha256", "any", _BREAKING, "callers with the old key are refused"),
    Row("bundle", "open", "off", _BREAKING, "callers without a key are refused"),
    Row("bundle", "open", "any", _HITLESS, "callers need no key any more"),
    Row("bundle", "public", "off", _BREAKING, "callers without a key are refused"),
    Row("bundle", "catalog.**", "any", _HITLESS, "what the admin API may choose from; nothing that runs is touched"),
    Row("bundle", "**", "any", _RELOAD, "the runtime swaps its desired state between two requests"),
)
"""In order: the first row that matches decides."""

_DEFAULT: Final = Row("*", "**", "any", _RELOAD, "not named by the table")
_MEMBER_MAPS: Final[Mapping[str, str]] = {"deployments": "deployment", "origins": "origin"}
"""Parts of a bundle's spec that are judged as the member they hold."""
_ENTRIES: Final[Mapping[str, str]] = {"bundle": "api_keys.*.sha256"}
"""By kind, the value that every entry of a map has: where it was added, the whole entry was."""
_WRAPPERS: Final[Mapping[str, frozenset[str]]] = {"runtime": frozenset({"config"})}
"""Leading segments that only group the fields of a kind."""


def row_of(kind: str, path: str, *, before: Any = None, after: Any = None) -> Row:
    """The row that decides a leaf. Without `before` and `after` the leaf counts as changed."""
    segments = split_path(path)
    if kind == "bundle" and len(segments) > 1 and segments[0] in _MEMBER_MAPS:
        return row_of(_MEMBER_MAPS[segments[0]], join_path(segments[2:]), before=before, after=after)
    if segments and segments[0] in _WRAPPERS.get(kind, ()):
        path = join_path(segments[1:])
    for row in TABLE:
        if row.kind == kind and path_matches(row.glob, path) and _moved(row.when, before, after):
            return row
    return _DEFAULT


def radius_of(kind: str, path: str, *, before: Any = None, after: Any = None) -> BlastRadius:
    """The radius of one leaf; `reload` for what the table does not name."""
    return row_of(kind, path, before=before, after=after).radius


def worst_radius(kind: str, leaves: Iterable[Leaf], *, rollout: str = "rolling") -> BlastRadius:
    """The worst of all leaves; hitless for none. With `rollout="recreate"` requests wait or are refused: a reload becomes a restart."""
    listed = tuple(leaves)
    new = _new_entries(kind, listed)
    worst = max(
        (
            radius_of(kind, leaf.path, before=leaf.before, after=leaf.after)
            for leaf in listed
            if not new or split_path(leaf.path)[:2] not in new
        ),
        default=BlastRadius.HITLESS,
    )
    return _RESTART if worst is _RELOAD and rollout == "recreate" else worst


def _new_entries(kind: str, leaves: tuple[Leaf, ...]) -> frozenset[tuple[str, ...]]:
    """Entries that did not exist before: whatever they hold, nobody uses them yet."""
    glob = _ENTRIES.get(kind)
    if glob is None:
        return frozenset()
    return frozenset(
        split_path(leaf.path)[:2]
        for leaf in leaves
        if leaf.before is None and leaf.after is not None and path_matches(glob, leaf.path)
    )


def action_radius(
    kind: str, action: Action, leaves: Iterable[Leaf] = (), *, rollout: str = "rolling", routed: bool = False
) -> BlastRadius:
    """The radius of a whole change. `routed`: origins route to the deployment that is removed or replaced."""
    match action:
        case "create":
            return radius_of(kind, "", after=True)
        case "delete":
            return radius_of(kind, "routed" if routed else "", before=True)
        case "replace":
            least = _HITLESS if kind in ("host", "engine", "artifact") else _RESTART
            return max(least, worst_radius(kind, leaves, rollout=rollout))
        case "update":
            return worst_radius(kind, leaves, rollout=rollout)
        case _:
            return _HITLESS


def routed_deployments(origin_specs: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Ids of the deployments that these origins route to: the values of their `models`."""
    return frozenset(str(deployment) for spec in origin_specs for deployment in dict(spec.get("models") or {}).values())


def _moved(when: When, before: Any, after: Any) -> bool:
    match when:
        case "any":
            return True
        case "added":
            return before is None and after is not None
        case "removed":
            return after is None and before is not None
        case "off":
            return bool(before) and not after
        case "lowered":
            return isinstance(before, int) and isinstance(after, int) and after < before

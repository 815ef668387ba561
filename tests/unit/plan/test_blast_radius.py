from __future__ import annotations

from typing import Any

import pytest

from sbctl.base.ids import KINDS
from sbctl.plan.blast_radius import (
    TABLE,
    action_radius,
    radius_of,
    routed_deployments,
    row_of,
    worst_radius,
)
from sbctl.plan.leaves import leaf_changes
from sbctl.plan.model import Action, BlastRadius, Leaf

HITLESS, RELOAD, RESTART, BREAKING = BlastRadius


@pytest.mark.parametrize(
    ("kind", "path", "before", "after", "radius"),
    [
        ("runtime", "http_bind_port", 8080, 9090, RESTART),
        ("runtime", "config.http_bind_port", 8080, 9090, RESTART),
        ("runtime", "config.admin_port", 9090, 9091, RESTART),
        ("runtime", "config.cache_directory", None, "/data", RESTART),
        ("runtime", "version", "0.1.0", "0.2.0", RESTART),
        ("runtime", "trust.signers.ci", None, "ed25519:", RESTART),
        ("runtime", "", None, True, HITLESS),
        ("runtime", "", True, None, BREAKING),
        ("host", "labels.zone", "a", "b", HITLESS),
        ("engine", "", None, True, HITLESS),
        ("engine", "version", "1", "2", HITLESS),
        ("engine", "", True, None, HITLESS),
        ("artifact", "", None, True, HITLESS),
        ("artifact", "", True, None, HITLESS),
        ("deployment", "max_concurrency", 4, 8, RELOAD),
        ("deployment", "artifact.artifact", "a", "b", RELOAD),
        ("deployment", "engine.version", "1", "2", RELOAD),
        ("deployment", "artifact.mirrors", [], ["https:x"], HITLESS),
        ("deployment", "artifact.source", "hf:a", "hf:b", HITLESS),
        ("deployment", "", None, True, HITLESS),
        ("deployment", "", True, None, HITLESS),
        ("deployment", "routed", True, None, BREAKING),
        ("origin", "", None, True, HITLESS),
        ("origin", "", True, None, BREAKING),
        ("origin", "models.chat", None, "chat", HITLESS),
        ("origin", "models.chat", "chat", None, BREAKING),
        ("origin", "models.chat", "chat", "other", RELOAD),
        ("origin", "default_model", None, "chat", HITLESS),
        ("origin", "default_model", "chat", None, BREAKING),
        ("origin", "authentication.type", "none", "basic", BREAKING),
        ("origin", "action.type", "ai_proxy", "static", BREAKING),
        ("bundle", "api_keys.app.sha256", "a", None, BREAKING),
        ("bundle", "api_keys.app.sha256", None, "a", HITLESS),
        ("bundle", "api_keys.app.sha256", "a", "b", BREAKING),
        ("bundle", "api_keys.app.models", None, ["chat"], BREAKING),
        ("bundle", "api_keys.app.models", ["chat"], None, HITLESS),
        ("bundle", "api_keys.app.requests_per_minute", 600, 60, BREAKING),
        ("bundle", "api_keys.app.requests_per_minute", 60, 600, RELOAD),
        ("bundle", "api_keys.app.requests_per_minute", None, 60, BREAKING),
        ("bundle", "api_keys.app.requests_per_minute", 60, None, HITLESS),
        ("bundle", "api_keys.app.tokens_per_minute", None, 60, BREAKING),
        ("bundle", "api_keys.app.tokens_per_minute", 60, None, HITLESS),
        ("bundle", "api_keys.app.tokens_per_minute", 600, 60, BREAKING),
        ("bundle", "api_keys", {"app": {}}, {}, BREAKING),
        ("bundle", "open", True, False, BREAKING),
        ("bundle", "open", False, True, HITLESS),
        ("bundle", "public", True, False, BREAKING),
        ("bundle", "public", False, True, RELOAD),
        ("bundle", "", True, None, BREAKING),
        ("bundle", 'origins."ai.internal".models.chat', "chat", None, BREAKING),
        ("bundle", "deployments.chat.max_concurrency", 4, 8, RELOAD),
        ("bundle", "anything", 1, 2, RELOAD),
    ],
)
def test_the_table_decides_by_field_and_direction(
    kind: str, path: str, before: Any, after: Any, radius: BlastRadius
) -> None:
    assert radius_of(kind, path, before=before, after=after) is radius


def test_what_the_table_does_not_name_is_a_reload() -> None:
    assert radius_of("nothing", "days") is RELOAD
    assert row_of("nothing", "days").reason == "not named by the table"


def test_every_kind_has_rows_and_every_row_a_reason() -> None:
    assert {row.kind for row in TABLE} == set(KINDS)
    assert all(row.reason for row in TABLE)
    assert len({(row.kind, row.glob, row.when) for row in TABLE}) == len(TABLE)


def test_no_row_stands_behind_one_that_takes_everything_of_its_kind() -> None:
    closed: set[str] = set()
    for row in TABLE:
        assert row.kind not in closed
        if row.glob == "**" and row.when == "any":
            closed.add(row.kind)


def test_the_worst_leaf_decides_a_change() -> None:
    leaves = (Leaf("max_concurrency", 4, 8), Leaf("artifact.license", "a", "b"))
    assert worst_radius("deployment", leaves) is RELOAD
    assert worst_radius("deployment", leaves[1:]) is HITLESS
    assert worst_radius("deployment", ()) is HITLESS


def test_recreate_makes_a_reload_a_restart_and_nothing_else() -> None:
    assert worst_radius("deployment", (Leaf("max_concurrency", 4, 8),), rollout="recreate") is RESTART
    assert worst_radius("deployment", (Leaf("artifact.license", "a", "b"),), rollout="recreate") is HITLESS


@pytest.mark.parametrize(
    ("before", "after", "radius"),
    [
        ({"a": {"sha256": "1"}}, {"a": {"sha256": "1"}, "new": {"sha256": "2", "requests_per_minute": 1}}, HITLESS),
        ({"old": {"sha256": "1", "models": ["chat"]}}, {}, BREAKING),
        ({"a": {"sha256": "1", "models": None}}, {"a": {"sha256": "1", "models": ["chat"]}}, BREAKING),
        ({"a": {"sha256": "1"}}, {"a": {"sha256": "1"}, "b": {"sha256": "2", "models": []}}, HITLESS),
    ],
)
def test_a_new_key_hurts_nobody_whatever_it_may_not_do(before: Any, after: Any, radius: BlastRadius) -> None:
    leaves = leaf_changes({"api_keys": before}, {"api_keys": after})
    assert worst_radius("bundle", leaves) is radius


@pytest.mark.parametrize(
    ("kind", "action", "options", "radius"),
    [
        ("deployment", "create", {}, HITLESS),
        ("deployment", "delete", {}, HITLESS),
        ("deployment", "delete", {"routed": True}, BREAKING),
        ("deployment", "update", {"leaves": (Leaf("replicas", 1, 2),)}, RELOAD),
        ("deployment", "replace", {}, RESTART),
        ("engine", "replace", {}, HITLESS),
        ("origin", "delete", {}, BREAKING),
        ("runtime", "no-op", {}, HITLESS),
        ("runtime", "forget", {}, HITLESS),
        ("runtime", "unreachable", {}, HITLESS),
    ],
)
def test_an_action_has_a_radius_of_its_own(
    kind: str, action: Action, options: dict[str, Any], radius: BlastRadius
) -> None:
    assert action_radius(kind, action, **options) is radius


def test_routes_name_the_deployments_that_answer() -> None:
    assert routed_deployments([{"models": {"a": "x", "b": "y"}}, {"models": None}, {}]) == {"x", "y"}


def test_a_radius_has_one_name() -> None:
    assert [str(radius) for radius in BlastRadius] == ["hitless", "reload", "restart", "breaking"]
    assert BlastRadius.parse("reload") is RELOAD

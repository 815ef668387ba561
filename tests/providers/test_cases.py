"""Every JSON file beside this one is a case: what is desired, recorded and observed, and the change that must come of it.

    {"desired": SPEC | null, "recorded": SPEC | null, "record": {…}, "snapshot": SNAPSHOT, "context": {…}, "change": {…}}

SPEC and SNAPSHOT are the kind's own of `bases.json`, named by a string, or `{"of": name, "set": {dotted path: value}, "drop": [path]}`.
A string that begins with `@` is computed: `@version` (of this sbctl), `@engine`, `@wheel`, `@wheel_sha256` (the default pin),
`@spec:KIND` (fingerprint of a base spec), `@content` and `@content12` (of the base bundle, whole and short), `@config`, `@trust`.

`change` names what must hold; what it leaves out is not looked at, but `leaves` and `steps` are complete where they stand.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from providers.bundle.spec import digest_of
from providers.registry import PROVIDERS
from sbctl import __version__
from sbctl.base.connection import Connection
from sbctl.base.digests import fingerprint
from sbctl.base.ids import Address
from sbctl.base.truths import Desired, Recorded
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_pin
from sbctl.node.snapshot import NodeSnapshot
from sbctl.plan.model import Change, DiffContext, Unknown

HERE = Path(__file__).parent
BASES = json.loads((HERE / "bases.json").read_text())
CASES = sorted(HERE.glob("*/*.json"))
NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
CONNECTION = Connection("local")
NAMES = {"engine": "llama_cpp", "artifact": "smollm2-135m-instruct:q4_1", "deployment": "chat", "origin": "localhost"}


def _computed(token: str) -> Any:
    pin = wheel_pin(LLAMA_CPP_WHEEL_DEFAULT, "x86_64", "glibc-2.36")
    name, _, argument = token[1:].partition(":")
    runtime = BASES["specs"]["runtime"]
    match name:
        case "version":
            return __version__
        case "engine":
            return LLAMA_CPP_WHEEL_DEFAULT
        case "wheel":
            return pin.filename
        case "wheel_sha256":
            return pin.sha256
        case "spec":
            return fingerprint(filled(BASES["specs"][argument]))
        case "content12":
            return _computed("@content")[:12]
        case "content":
            return digest_of(filled(BASES["specs"]["bundle"]))
        case "config":
            return fingerprint(filled(runtime["config"]))
        case "trust":
            trust = {"schema_version": 1, "lineage": runtime["config"]["lineage"], **runtime["trust"]}
            return fingerprint(filled(trust))
    raise AssertionError(token)


def filled(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("@"):
        return _computed(value)
    if isinstance(value, dict):
        return {filled(key): filled(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled(inner) for inner in value]
    return value


def _step_into(where: Any, key: str) -> Any:
    return where[int(key)] if isinstance(where, list) else where[key]


def built(bases: Mapping[str, Any], given: Any) -> Any:
    """A base, or a base with some values of its own."""
    if given is None:
        return None
    if isinstance(given, str):
        return filled(bases[given])
    found = copy.deepcopy(bases[given["of"]])
    for path, value in given.get("set", {}).items():
        *parents, last = path.split("/")
        where = found
        for parent in parents:
            where = _step_into(where, parent)
        where[last] = value
    for path in given.get("drop", ()):
        *parents, last = path.split("/")
        where = found
        for parent in parents:
            where = _step_into(where, parent)
        del where[last]
    return filled(found)


def _address(kind: str) -> Address:
    return Address(kind, "local", NAMES.get(kind))


def compare(kind: str, case: Mapping[str, Any]) -> Change:
    address, provider = _address(kind), PROVIDERS[kind]
    member_of = _address("bundle") if kind in ("deployment", "origin") else None
    desired = recorded = None
    spec = built(BASES["specs"], case["desired"])
    if spec is not None:
        desired = Desired(address, spec, fingerprint(spec), "local", CONNECTION, member_of=member_of)
    old = built(BASES["specs"], case["recorded"])
    if old is not None:
        record = filled(case["record"]) if "record" in case else filled(BASES["records"].get(kind, {}))
        recorded = Recorded(address, record, 1, fingerprint(old), old, "local", CONNECTION, member_of=member_of)
        recorded = replace(recorded, keep=case.get("keep", False))
    raw = built(BASES["snapshots"], case["snapshot"])
    snapshot = None if raw is None else NodeSnapshot.model_validate(raw)
    given = case.get("context", {})
    others = {Address.parse(text): built(BASES["specs"], name) for text, name in given.get("desired_specs", {}).items()}
    context = DiffContext(
        now=NOW,
        mode=given.get("mode", "apply"),
        snapshot=snapshot,
        replace=given.get("replace", False),
        desired_specs=others,
        recorded_specs={
            Address.parse(text): built(BASES["specs"], name) for text, name in given.get("recorded_specs", {}).items()
        },
    )
    return provider.diff(desired, recorded, provider.interpret(snapshot, address, recorded), context)


def _plain(value: Any) -> Any:
    return {"unknown": value.why} if isinstance(value, Unknown) else value


def told(change: Change) -> dict[str, Any]:
    """What a case may say about a change."""
    return {
        "action": change.action,
        "reason": change.reason,
        "leaves": {leaf.path: [_plain(leaf.before), _plain(leaf.after)] for leaf in change.leaves},
        "radius": str(change.blast_radius),
        "downtime": change.downtime,
        "steps": [step.method for step in change.steps],
        "titles": [step.title for step in change.steps],
        "params": [dict(step.params) for step in change.steps],
        "drifted": change.drifted,
        "blocked": change.blocked_code,
        "download_bytes": change.download_bytes,
        "memory_bytes": change.memory_bytes,
    }


@pytest.mark.parametrize("path", CASES, ids=[f"{path.parent.name}-{path.stem}" for path in CASES])
def test_case(path: Path) -> None:
    case = json.loads(path.read_text())
    change = compare(path.parent.name, case)
    expected = filled(case["change"])
    found = told(change)
    for name in ("notes", "some_leaves", "sentence"):
        wanted = expected.pop(name, None)
        if name == "notes" and wanted is not None:
            for text in wanted:
                assert any(text in note for note in change.notes), (text, change.notes)
            assert wanted or not change.notes
        elif name == "some_leaves" and wanted is not None:
            assert {leaf: found["leaves"].get(leaf) for leaf in wanted} == wanted
        elif name == "sentence" and wanted is not None:
            assert wanted in (change.blocked or "")
    assert {name: found[name] for name in expected} == expected
    assert not (change.blocked and change.steps), "a blocked change is never carried out"
    if change.action in ("no-op", "forget", "unreachable"):
        assert not change.steps

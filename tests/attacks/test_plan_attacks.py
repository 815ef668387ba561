"""Abuse of planning and of saved plans: rows B9-B12 and B18-B21 of the threat list, and X14 for what a plan shows."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import ExitCode, InputError, RefusedError, StalePlanError
from sbctl.base.limits import PLAN_MAX_BYTES
from sbctl.plan.build import build_plan
from sbctl.plan.document import document_of
from sbctl.plan.leaves import LEAF_MAX_COUNT, leaf_changes
from sbctl.plan.model import Leaf, Plan
from sbctl.plan.policy import Limits, plan_exit_code, refusals
from sbctl.plan.saved_plan import PLAN_PAYLOAD_TYPE, SavedPlan, check_saved, read_saved, saved_payload
from sbctl.trust.envelope import open_envelope, sign_envelope
from sbctl.trust.keys import SigningKey
from sbctl.views.plan_markdown import plan_markdown
from sbctl.views.plan_text import plan_text
from tests.simulators.planners import FAKE_PLANNERS, desired, host_resources, inputs

ROOT = Path(__file__).resolve().parents[2]
KNOWN = host_resources("a")
EDITED = host_resources("a", port=9)
OTHER_LINEAGE = "ffffffff-5d5a-4a37-8a6e-0f4b0f6f0a11"


def a_plan(**more: Any) -> Plan:
    return build_plan(inputs(EDITED, KNOWN, **more), FAKE_PLANNERS)


def a_saved_plan() -> SavedPlan:
    return read_saved(saved_payload(a_plan()))


def check(saved: SavedPlan, fresh: Plan) -> None:
    check_saved(
        saved,
        lineage=fresh.lineage,
        serial=fresh.serial,
        config_digest=fresh.config_digest,
        catalog_digest=fresh.catalog_digest,
        fresh_plan=fresh,
    )


@pytest.mark.parametrize(
    ("moved", "named"),
    [
        ({"serial": 42}, "the state moved from serial 41 to 42"),
        ({"lineage": OTHER_LINEAGE}, "another fleet"),
        ({"config_digest": "9" * 64}, "the configuration changed"),
        ({"catalog_digest": "9" * 64}, "the catalog changed"),
    ],
)
def test_B9_a_saved_plan_is_stale_when_what_it_was_made_from_moved(moved: dict[str, Any], named: str) -> None:
    with pytest.raises(StalePlanError) as caught:
        check(a_saved_plan(), a_plan(**moved))
    assert caught.value.code == "plan.stale"
    assert caught.value.exit_code == ExitCode.STALE
    assert named in caught.value.message


def test_B10_a_flipped_byte_in_a_signed_plan_is_refused() -> None:
    key = SigningKey.generate()
    payload = saved_payload(a_plan())
    text = sign_envelope(PLAN_PAYLOAD_TYPE, payload, key, "ops")
    signers = {"ops": key.public_text}
    opened = open_envelope(text, PLAN_PAYLOAD_TYPE, signers, max_bytes=PLAN_MAX_BYTES * 2)
    assert opened.payload == payload
    envelope = json.loads(text)
    at = len(envelope["payload"]) // 2
    flipped = "A" if envelope["payload"][at] != "A" else "B"
    envelope["payload"] = envelope["payload"][:at] + flipped + envelope["payload"][at + 1 :]
    with pytest.raises((RefusedError, InputError)) as caught:
        open_envelope(json.dumps(envelope), PLAN_PAYLOAD_TYPE, signers, max_bytes=PLAN_MAX_BYTES * 2)
    assert caught.value.exit_code == ExitCode.REFUSED


def test_B10_a_payload_edited_before_signing_is_refused_by_its_seal() -> None:
    raw = json.loads(saved_payload(a_plan()))
    for field, value in (("targets", ["*"]), ("mode", "destroy"), ("changes_digest", "0" * 64), ("serial", 42)):
        with pytest.raises(RefusedError) as caught:
            read_saved(json.dumps({**raw, field: value}).encode())
        assert caught.value.code == "plan.edited"


def test_B11_a_plan_for_another_file_or_other_hosts_is_refused() -> None:
    other_hosts = build_plan(inputs([*EDITED, *host_resources("b")], KNOWN, config_digest="8" * 64), FAKE_PLANNERS)
    with pytest.raises(StalePlanError, match=r"configuration changed.*other changes"):
        check(a_saved_plan(), other_hosts)


def test_B12_facts_that_moved_on_a_host_are_named_one_by_one() -> None:
    edited_behind_our_back = [*KNOWN[:2], desired("engine.a/llama_cpp", {"version": "hacked"}), *KNOWN[3:]]
    with pytest.raises(StalePlanError) as caught:
        check(a_saved_plan(), a_plan(observed=edited_behind_our_back))
    assert "engine.a/llama_cpp changed on its host: version" in caught.value.message


def test_B18_an_emptied_map_needs_allow_empty_shows_its_radius_and_ci_sees_changes() -> None:
    plan = build_plan(inputs([one for one in KNOWN if one.member_of is None], KNOWN), FAKE_PLANNERS)
    assert [refusal.code for refusal in refusals(plan)] == ["plan.empties_fleet"]
    assert "--allow-empty" in refusals(plan)[0].next_step
    assert refusals(plan, Limits(allow_empty=True)) == ()
    text = plan_text(document_of(plan)).plain
    assert "Blast radius: breaking." in text
    assert "--allow-empty" in text
    assert plan_exit_code(plan) is ExitCode.CHANGES


@pytest.mark.parametrize(
    "edges",
    [
        {"host.a": ["host.a"]},
        {"host.a": ["runtime.a"], "runtime.a": ["host.a"]},
        {"host.a": ["bundle.b"], "bundle.b": ["engine.a/x"], "engine.a/x": ["host.a"]},
    ],
)
def test_B19_a_cycle_is_named_and_exits_3(edges: dict[str, list[str]]) -> None:
    resources = [desired(text, after=after) for text, after in edges.items()]
    with pytest.raises(InputError) as caught:
        build_plan(inputs(resources), FAKE_PLANNERS)
    assert caught.value.exit_code == ExitCode.INVALID
    for address in edges:
        assert address in caught.value.message


def _nested(depth: int, last: Any) -> dict[str, Any]:
    value: Any = last
    for level in range(depth):
        value = {"k": value} if level % 2 else [value]
    return {"deep": value}


@pytest.mark.parametrize("depth", [10, 100, 900])
def test_B20_hostile_depth_is_cut_and_still_seen(depth: int) -> None:
    (leaf,) = leaf_changes(_nested(depth, 1), _nested(depth, 2))
    assert len(leaf.path) < 200
    assert leaf.before != leaf.after
    assert leaf_changes(_nested(depth, 1), _nested(depth, 1)) == ()


def test_B20_a_depth_that_breaks_recursion_is_cut() -> None:
    (leaf,) = leaf_changes(_nested(100_000, 1), _nested(100_000, 2))
    assert "sha256" in str(leaf.before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({f"k{index}": index for index in range(50_000)}, {f"k{index}": -index - 1 for index in range(50_000)}),
        ({"l": [{"x": index} for index in range(50_000)]}, {"l": [{"x": -index} for index in range(50_000)]}),
        ({"l": list(range(100_000))}, {"l": list(range(1, 100_001))}),
        ({"s": "a" * 1_000_000}, {"s": "b" * 1_000_000}),
        ({"s": "a\n" * 100_000}, {"s": "b\n" * 100_000}),
    ],
    ids=["keys", "objects", "values", "text", "lines"],
)
def test_B20_hostile_sizes_give_a_bounded_answer(before: dict[str, Any], after: dict[str, Any]) -> None:
    leaves = leaf_changes(before, after)
    assert 0 < len(leaves) <= LEAF_MAX_COUNT + 1
    assert len(repr(leaves)) < 200_000


@pytest.mark.parametrize(
    "key", ["__class__", "__dict__", "__reduce__", "it's", 'say "x"', "a.b", "[0]", "root['x']", ""]
)
def test_B20_hostile_keys_are_plain_keys(key: str) -> None:
    (leaf,) = leaf_changes({"m": {key: 1}}, {"m": {key: 2}})
    assert (leaf.before, leaf.after) == (1, 2)
    (added,) = leaf_changes({"m": {}}, {"m": {key: 2}})
    assert (added.before, added.after) == (None, 2)


def test_B20_planning_uses_neither_delta_nor_pickle() -> None:
    sources = [path.read_text() for path in (ROOT / "sbctl" / "plan").glob("*.py")]
    assert not any("Delta" in source or "import pickle" in source for source in sources)


_SCRIPT = """
import json, sys
from sbctl.plan.build import build_plan
from sbctl.plan.document import document_of, plan_document
from sbctl.plan.saved_plan import saved_payload
from sbctl.views.plan_markdown import plan_markdown
from sbctl.views.plan_text import plan_text
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs
import random
order = random.Random(int(sys.argv[1]))
def shuffled(items):
    items = list(items); order.shuffle(items); return items
outputs = set()
for turn in range(4):
    wanted = shuffled(one for host in "cab" for one in host_resources(host, port=9))
    known = shuffled(one for host in "bcda" for one in host_resources(host))
    plan = build_plan(inputs(wanted, known, prevent_destroy=("artifact.d/*",), unreachable={"b": "gone"}), FAKE_PLANNERS)
    text = json.dumps(plan_document(plan)) + plan_text(document_of(plan)).plain + plan_markdown(document_of(plan))
    outputs.add(text + saved_payload(plan).decode())
(output,) = outputs
sys.stdout.write(output)
"""


def test_B21_any_order_and_any_hash_seed_give_the_same_bytes() -> None:
    outputs = set()
    for seed in range(7):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, str(seed)],
            capture_output=True,
            check=True,
            cwd=ROOT,
            env={"PYTHONHASHSEED": str(seed), "PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT)},
        )
        outputs.add(done.stdout)
    assert len(outputs) == 1


HOSTILE = "\x1b[31mred\x1b]8;;http://evil\x07\x9b\u202e[link=http://evil]x[/link][/x] `a` | @all <img src=x>\n# head"


def _hostile_plan() -> Plan:
    plan = a_plan(notes=(HOSTILE,), header={"fleet": HOSTILE, "state": HOSTILE})
    changed = tuple(
        replace(
            one, reason=HOSTILE, notes=(HOSTILE,), leaves=(Leaf(HOSTILE, HOSTILE, [HOSTILE], HOSTILE),), blocked=HOSTILE
        )
        for one in plan.changes
    )
    return replace(plan, changes=changed, unreachable={"x": HOSTILE})


def test_X14_foreign_text_in_a_plan_never_reaches_the_terminal_raw() -> None:
    text = plan_text(document_of(_hostile_plan()), explain=True)
    assert not any(ord(char) < 32 and char != "\n" for char in text.plain)
    assert not {"\x9b", "\u202e"} & set(text.plain)
    assert not any("link" in str(span.style) for span in text.spans)


def test_X14_foreign_text_is_no_markup_in_a_comment() -> None:
    comment = plan_markdown(document_of(_hostile_plan()))
    outside_code = re.sub(r"(?<!`)(`+)(?!`).*?(?<!`)\1(?!`)", "", comment.split("```diff")[0])
    assert "<img" not in outside_code.replace("\\<img", "")
    assert "@all" not in outside_code
    assert "\n# head" not in comment
    table = [line for line in comment.splitlines() if line.startswith("| `")]
    assert table
    assert {line.replace("\\|", "").count("|") for line in table} == {5}

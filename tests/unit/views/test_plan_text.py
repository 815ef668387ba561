from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from sbctl.plan.build import build_plan
from sbctl.plan.document import LeafDocument, PlanDocument, document_of
from sbctl.plan.model import UNKNOWN, BlastRadius, Leaf, Plan
from sbctl.plan.policy import Limits
from sbctl.views.plan_text import leaf_words, plan_text, summary_sentence
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

KNOWN = host_resources("gpu-a")
HEADER = {
    "fleet": "production-models",
    "state": "serial 41, apply 2026-11-28 09:12 by ops (3f2a91c)",
    "observed": "1 host observed in 1.3 s",
}


def a_plan(**more: Any) -> Plan:
    wanted = more.pop("wanted", None)
    if wanted is None:
        chat = {"model": "m", "max_concurrency": 8, "rollout": "rolling", "artifact": "d1"}
        wanted = [*host_resources("gpu-a", chat=chat), *host_resources("gpu-c")]
    options = {"unreachable": {"gpu-c": "ssh 10.10.0.23:22 gave no answer in 10 s"}, "header": HEADER, **more}
    return build_plan(inputs(wanted, KNOWN, **options), FAKE_PLANNERS)


def edited(plan: Plan, address: str, **changes: Any) -> Plan:
    return replace(
        plan, changes=tuple(replace(one, **changes) if str(one.address) == address else one for one in plan.changes)
    )


def test_a_plan_reads_as_in_the_manual() -> None:
    plan = edited(
        a_plan(),
        "deployment.gpu-a/chat",
        memory_bytes=1_717_986_918,
        notes=("rollout: rolling, one replica at a time, no request refused", "nothing moves"),
    )
    plan = edited(plan, "bundle.gpu-a", leaves=(Leaf("revision", 3, 4),))
    assert (
        plan_text(document_of(plan)).plain
        == """\
production-models · serial 41, apply 2026-11-28 09:12 by ops (3f2a91c) · 1 host
observed in 1.3 s

    bundle.gpu-a, revision 3 → 4
    ~ deployment.gpu-a/chat                                         reload
        max_concurrency     4 → 8
        memory a replica    1.6 GiB
        rollout             rolling, one replica at a time, no request refused
        nothing moves
  ? host.gpu-c                                                      unreachable
      ssh 10.10.0.23:22 gave no answer in 10 s
      repair that, or plan without it (--allow-unreachable)

Plan: 0 to add, 1 to change, 0 to remove, 1 unknown. Blast radius: reload. No
downtime."""
    )


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"wanted": KNOWN}, "No changes: the fleet is as sb.yml says."),
        ({"wanted": KNOWN, "mode": "rollback"}, "No changes: the fleet is as it was then."),
        ({"wanted": KNOWN, "mode": "drift"}, "No drift: everything is as the last apply left it."),
        ({"wanted": KNOWN, "mode": "against", "unreachable": {}}, "No difference."),
        ({"wanted": (), "mode": "destroy", "recorded": {}}, "Nothing to destroy."),
        ({"wanted": KNOWN, "unreachable": {"gpu-a": "x"}}, "Nothing to do on hosts that answered, 1 unknown."),
        ({"wanted": KNOWN, "mode": "drift", "observed": KNOWN[1:]},
         "Drift: 1 resource differs from serial 41. sbctl apply repairs that."),
        ({"wanted": KNOWN, "mode": "drift", "observed": KNOWN[3:]},
         "Drift: 3 resources differ from serial 41. sbctl apply repairs that."),
        ({"wanted": KNOWN, "replaces": ("engine.*",)},
         "Plan: 0 to add, 0 to change, 0 to remove, 1 to replace. Blast radius: hitless. No downtime."),
        ({"wanted": host_resources("gpu-a", port=9), "mode": "against", "unreachable": {}},
         "Plan: 0 to add, 1 to change, 0 to remove. Blast radius: restart."),
        ({"wanted": (), "mode": "destroy", "prevent_destroy": ("host.*",)},
         "Plan: 0 to add, 0 to change, 7 to remove, 1 blocked. Blast radius: breaking. No downtime."),
    ],
)  # fmt: skip
def test_the_last_line_sums_up(more: dict[str, Any], line: str) -> None:
    document = document_of(a_plan(**more))
    assert summary_sentence(document) == line
    assert " ".join(plan_text(document).plain.split()).endswith(" ".join(line.split()))


def test_nothing_is_said_of_what_stays_as_it_is() -> None:
    text = plan_text(document_of(a_plan(wanted=KNOWN, header={}))).plain
    assert text == "No changes: the fleet is as sb.yml says."


def test_blocked_replaced_and_forgotten_rows_have_their_signs() -> None:
    known = [replace(one, keep=one.address.kind == "artifact") for one in KNOWN]
    plan = build_plan(inputs((), known, mode="destroy", prevent_destroy=("engine.*",)), FAKE_PLANNERS)
    lines = plan_text(document_of(plan)).plain.splitlines()
    assert any(line.startswith("  ! engine.gpu-a/llama_cpp") for line in lines)
    assert any(line.startswith("  . artifact.gpu-a/m:q4") for line in lines)
    assert "      kept on the host, no longer managed" in lines
    replaced = plan_text(document_of(a_plan(wanted=KNOWN, replaces=("engine.*",)))).plain
    assert "-/+ engine.gpu-a/llama_cpp" in replaced
    assert "asked for by --replace" in replaced


def test_refusals_and_notes_stand_before_the_last_line() -> None:
    plan = a_plan(notes=("sb.yml: `metrics` is not managed",))
    text = plan_text(document_of(plan, Limits(BlastRadius.HITLESS))).plain
    tail = text[text.index("refused:") :].splitlines()
    assert "note: sb.yml: `metrics` is not managed" in text
    assert tail[0].startswith("refused: the blast radius is reload")
    assert any("--max-blast-radius reload" in line for line in tail)


def test_explain_adds_reasons_and_the_values_of_new_things() -> None:
    plan = edited(a_plan(), "deployment.gpu-a/chat", leaves=(Leaf("max_concurrency", 4, 8, "the catalog says so"),))
    short, long = plan_text(document_of(plan)).plain, plan_text(document_of(plan), explain=True).plain
    assert "the catalog says so" not in short
    assert "4 → 8 (the catalog says so)" in long
    assert "sb.yml asks for something else" in long
    created = edited(
        a_plan(wanted=[*KNOWN, *host_resources("b")], unreachable={}),
        "host.b",
        leaves=(Leaf("labels.zone", None, "x"),),
    )
    assert "labels.zone" not in plan_text(document_of(created)).plain
    assert "labels.zone         x" in plan_text(document_of(created), explain=True).plain


def test_a_long_list_of_leaves_is_cut_with_a_count() -> None:
    plan = edited(
        a_plan(),
        "deployment.gpu-a/chat",
        leaves=(*(Leaf(f"f{index}", 1, 2) for index in range(30)), Leaf("", None, None, "more")),
    )
    assert "11 more in --format json" in plan_text(document_of(plan)).plain
    few = edited(a_plan(), "deployment.gpu-a/chat", leaves=(Leaf("", None, None, "more values differ"),))
    assert "…                   more values differ" in plan_text(document_of(few)).plain


def test_downtime_is_said_for_the_row_and_the_plan() -> None:
    plan = edited(edited(a_plan(), "bundle.gpu-a", downtime="queue"), "deployment.gpu-a/chat", downtime="queue")
    text = plan_text(document_of(plan)).plain
    assert text.count("requests wait while it changes") == 1
    assert "downtime                          requests wait while it changes" in text
    assert " ".join(text.split()).endswith("Requests wait while it changes.")


def test_an_artifact_says_beside_its_size_where_it_comes_from() -> None:
    new = a_plan(wanted=[*KNOWN, *host_resources("b")], unreachable={})
    plan = edited(
        new, "artifact.b/m:q4", download_bytes=1024, memory_bytes=9, notes=("apache-2.0, hf:x", "already known")
    )
    text = plan_text(document_of(plan)).plain
    assert "      download            1.0 KiB, apache-2.0, hf:x\n      already known\n" in text
    assert "memory" not in text


def test_memory_is_said_once() -> None:
    plan = edited(
        a_plan(), "deployment.gpu-a/chat", memory_bytes=1024, notes=("memory a replica: 1.0 KiB; 2.0 GiB free",)
    )
    assert plan_text(document_of(plan)).plain.count("memory a replica") == 1


def test_drift_says_why_whatever_the_repair_is() -> None:
    plan = a_plan(wanted=KNOWN, mode="drift", observed=())
    lost = edited(
        plan, "engine.gpu-a/llama_cpp", action="create", leaves=(Leaf("state", "absent", "ready", "it is gone"),)
    )
    text = plan_text(document_of(lost)).plain
    assert "  + engine.gpu-a/llama_cpp" in text
    assert "it changed on its host" in text
    assert "absent → ready (it is gone)" in text


@pytest.mark.parametrize("width", [40, 80, 100])
def test_every_line_fits_when_its_words_do(width: int) -> None:
    plan = edited(a_plan(), "bundle.gpu-a", leaves=())
    for line in plan_text(document_of(plan), width=width).plain.splitlines():
        assert cell_len(line) <= width


@pytest.mark.parametrize(
    ("leaf", "words"),
    [
        (Leaf("a", 4, 8), "4 → 8"),
        (Leaf("a", None, "x"), "(none) → x"),
        (Leaf("a", True, False), "true → false"),
        (Leaf("a", "", "x"), '"" → x'),
        (Leaf("size_bytes", 1024, 5 * 1024**3), "1.0 KiB → 5.0 GiB"),
        (Leaf("digest", "a" * 64, "b" * 64), "aaaaaaaaaaaa… → bbbbbbbbbbbb…"),
        (Leaf("a", ["x", 1], []), "[x, 1] → []"),
        (Leaf("a", [["x"]], {"k": None}), '[["x"]] → {"k": null}'),
        (Leaf("a", 1.5, UNKNOWN), "1.5 → (known after bootstrap)"),
        (Leaf("a", "\x1b[1m", "y" * 500), "\\x1b[1m → " + "y" * 72 + "… (428 more characters)"),
    ],
)
def test_values_are_shown_as_people_read_them(leaf: Leaf, words: str) -> None:
    plan = edited(a_plan(), "bundle.gpu-a", leaves=(leaf,))
    (row,) = (change for change in document_of(plan).resource_changes if change.address == "bundle.gpu-a")
    assert leaf_words(row.leaves[0]) == words


def test_one_side_of_a_leaf_is_shown_for_what_is_new_or_gone() -> None:
    assert leaf_words(LeafDocument(path="a", before=None, after=3), both=False) == "3"
    assert leaf_words(LeafDocument(path="a", before=2, after=None), both=False) == "2"


def test_a_saved_document_gives_the_same_text() -> None:
    document = document_of(a_plan())
    again = PlanDocument.model_validate_json(document.model_dump_json())
    assert plan_text(again).plain == plan_text(document).plain

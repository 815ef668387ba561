from __future__ import annotations

from dataclasses import replace

from sbctl.plan.build import build_plan
from sbctl.plan.document import document_of
from sbctl.plan.model import BlastRadius, Leaf
from sbctl.plan.policy import Limits
from sbctl.views.plan_markdown import plan_markdown
from tests.simulators.planners import FAKE_PLANNERS, host_resources, inputs

KNOWN = host_resources("a")
CHAT = {"model": "m", "rollout": "rolling", "artifact": "d1"}
EDITED = host_resources("a", port=9, chat={**CHAT, "max_concurrency": 8})


def test_a_comment_has_the_last_line_first_then_rows_then_what_differs() -> None:
    plan = build_plan(inputs(EDITED, KNOWN, notes=("a note",), header={"fleet": "f"}), FAKE_PLANNERS)
    changes = (replace(plan.changes[1], download_bytes=2048), *plan.changes[2:])
    comment = plan_markdown(document_of(replace(plan, changes=changes)))
    assert (
        comment
        == """\
### Plan: 0 to add, 3 to change, 0 to remove. Blast radius: restart. Download 2.0 KiB. No downtime.

`f`

| | resource | blast radius | |
|---|---|---|---|
| `~` | `runtime.a` | restart | sb.yml asks for something else; download 2.0 KiB |
| `~` | `bundle.a` | reload | sb.yml asks for something else |
| `~` | ↳ `deployment.a/chat` | reload | sb.yml asks for something else |

<details><summary>What differs</summary>

```diff
  runtime.a
! config.http_bind_port: 8080 → 9
  bundle.a
! deployments.chat.max_concurrency: 4 → 8
  deployment.a/chat
! max_concurrency: 4 → 8
```

</details>

- a note
"""
    )


def test_a_bundle_that_only_carries_its_members_is_no_change_of_its_own() -> None:
    plan = build_plan(inputs(host_resources("a", chat={**CHAT, "max_concurrency": 8}), KNOWN), FAKE_PLANNERS)
    carried = tuple(
        replace(one, leaves=(Leaf("revision", 3, 4),)) if str(one.address) == "bundle.a" else one
        for one in plan.changes
    )
    comment = plan_markdown(document_of(replace(plan, changes=carried)))
    assert comment.startswith("### Plan: 0 to add, 1 to change, 0 to remove.")
    assert "| | `bundle.a` | | revision 3 → 4 |\n| `~` | ↳ `deployment.a/chat` | reload |" in comment
    assert "! revision" not in comment


def test_no_changes_is_one_line() -> None:
    assert plan_markdown(document_of(build_plan(inputs(KNOWN, KNOWN), FAKE_PLANNERS))) == (
        "### No changes: the fleet is as sb.yml says.\n"
    )


def test_refusals_blocks_and_unreachable_hosts_are_said() -> None:
    plan = build_plan(
        inputs(
            EDITED,
            [*KNOWN, *host_resources("b"), *host_resources("c")],
            unreachable={"b": "gone"},
            prevent_destroy=("*.c*",),
        ),
        FAKE_PLANNERS,
    )
    comment = plan_markdown(document_of(plan, Limits(BlastRadius.HITLESS)))
    assert "> **refused** the blast radius is breaking" in comment
    assert "| `?` | `host.b` | unreachable | gone |" in comment
    assert "| `!` | `host.c` |" in comment


def test_a_comment_stays_below_the_size_of_one() -> None:
    known = [one for host in range(80) for one in host_resources(f"h{host}")]
    wanted = [one for host in range(80) for one in host_resources(f"h{host}", port=9, chat={"model": "n"})]
    plan = build_plan(inputs(wanted, known), FAKE_PLANNERS)
    leaves = tuple(Leaf(f"field{index}", "x" * 60, "y" * 60) for index in range(50))
    plan = replace(plan, changes=tuple(replace(one, leaves=leaves) for one in plan.changes if one.action == "update"))
    comment = plan_markdown(document_of(plan))
    assert len(comment) < 65_536
    assert f"| | {len(plan.changes) - 200} more | | |" in comment
    assert "more characters)" in comment


def test_more_rows_than_fit_are_counted() -> None:
    wanted = [one for host in range(40) for one in host_resources(f"h{host}")]
    assert "| | 80 more | | |" in plan_markdown(document_of(build_plan(inputs(wanted), FAKE_PLANNERS)))


def test_backticks_cannot_leave_their_fence() -> None:
    plan = build_plan(inputs(EDITED, KNOWN), FAKE_PLANNERS)
    leaf = Leaf("a", "```", "````")
    comment = plan_markdown(document_of(replace(plan, changes=(replace(plan.changes[1], leaves=(leaf,)),))))
    assert "`````diff" in comment

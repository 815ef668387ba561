"""How an apply ended: every host, every problem with its cause and next step, one sentence."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sbctl.apply.outcome import ApplyResult, HostResult
from sbctl.base.errors import ExitCode, InterruptedBySignal, SbctlError, UnreachableError
from sbctl.views.apply_json import apply_body, nothing_to_apply_body
from sbctl.views.apply_text import apply_text, print_apply_result, summary_sentence
from tests.simulators.apply_results import BROKEN, BUNDLE, PARTIAL, row


def test_every_host_and_every_problem_with_cause_and_next_step() -> None:
    assert (
        apply_text(PARTIAL, width=80).plain
        == """\
gpu-a  1 done
       degraded: deployment chat: replica 0 failed: exit status 1
gpu-b  1 done, 1 failed, 2 skipped
gpu-c  stale; 1 not started: engine.gpu-c/x is not as it was planned: state was
       1, now it is 2
gpu-d  unreachable: ssh 10.10.0.23:22 gave no answer in 10 s
gpu-e  unchanged

✗ engine.gpu-b/x  create failed at "install engine x", after 1 of 2 steps
    engine.broken: it \\x1b[31msaid\\u{202e} [/x] (gpu-b)
    → repair it, then run apply again
· gpu-c  nothing was started here
    plan.facts_changed: engine.gpu-c/x is not as it was planned: state was 1,
    now it is 2 (gpu-c)
    → plan again; nothing was changed on this host
  skipped, since engine.gpu-b/x is not done: bundle.gpu-b, deployment.gpu-b/chat

Apply: 2 done, 1 failed, 2 skipped, 1 not started in 12 s, serial 42."""
    )


@pytest.mark.parametrize("width", [20, 40, 80, 110])
def test_every_host_is_named_at_any_width(width: int) -> None:
    text = apply_text(PARTIAL, width=width).plain
    assert all(host.host in text for host in PARTIAL.hosts)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_many_hosts_without_a_problem_share_a_line_and_none_is_left_out() -> None:
    hosts = tuple(HostResult(f"h{number:03}", "done", {"done": 1}) for number in range(200))
    failed = HostResult("z", "failed", {"failed": 1})
    left = HostResult("y", "not_started", {"not_started": 1})
    text = apply_text(replace(PARTIAL, hosts=(*hosts, left, failed)), width=80).plain
    assert "200 hosts done: h000, h001" in text
    assert "1 host not started: y" in text

    assert text.splitlines()[0].startswith("z")
    assert all(host.host in text for host in hosts)


def test_a_host_that_a_stop_came_in_between_says_how_far_it_got() -> None:
    host = HostResult("a", "partial", {"done": 2, "not_started": 3})
    assert apply_text(replace(PARTIAL, hosts=(host,))).plain.startswith("a  2 done, 3 not started\n")


def test_an_interruption_is_one_line() -> None:
    stopped = InterruptedBySignal("apply.interrupted", "stopped", next_step="run apply again to continue")
    changes = (
        *(row(f"engine.h{number}/x", "done") for number in range(3)),
        *(row(f"engine.i{number}/x", "not_started", because="interrupted") for number in range(6)),
    )
    result = replace(PARTIAL, status="interrupted", changes=changes, hosts=(), unreachable={})
    assert apply_text(result).plain == "Interrupted: 3 of 9 changes done, 6 not started; run apply again to continue."
    begun = replace(result, changes=(*changes[:-1], row("engine.i5/x", "interrupted", stopped, steps_total=2)))
    assert summary_sentence(begun) == (
        "Interrupted: 3 of 9 changes done, 1 begun but not done, 5 not started; run apply again to continue."
    )
    assert "! engine.i5/x  create was interrupted, after 0 of 2 steps" in apply_text(begun).plain


def test_an_unknown_outcome_says_how_to_find_out() -> None:
    lost = UnreachableError("host.unreachable", "gave no answer", place="gpu-a")
    result = replace(PARTIAL, changes=(row("engine.gpu-a/x", "unknown", lost),), hosts=(), unreachable={})
    text = apply_text(result).plain
    assert "? engine.gpu-a/x  create has an unknown outcome" in text
    assert "→ run plan: it reads the host before anything else" in text


def test_members_that_share_the_fate_of_their_bundle_are_told_once() -> None:
    changes = (
        row("bundle.gpu-b", "failed", BROKEN),
        row("deployment.gpu-b/chat", "failed", BROKEN, member_of=BUNDLE),
    )
    text = apply_text(replace(PARTIAL, changes=changes, hosts=())).plain
    assert text.count("engine.broken") == 1
    assert "deployment.gpu-b/chat" not in text


def test_a_state_that_could_not_be_written_is_said_first_and_once() -> None:
    full = SbctlError("disk.full", "the disk is full", next_step="free space")
    changes = (
        row("engine.gpu-a/x", "failed", full),
        *(row(f"engine.h{number}/x", "not_started", because="the state could not be written") for number in range(9)),
    )
    result = replace(PARTIAL, changes=changes, hosts=(), journal_error=full)
    text = apply_text(result).plain
    assert text.startswith("✗ state  could not be written; nothing was started after that")
    assert text.count("disk.full") == 1
    assert "engine.h5/x and 3 more" in " ".join(text.split())


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (replace(PARTIAL, changes=()), "Apply: nothing to do."),
        (
            replace(PARTIAL, mode="destroy", status="applied", changes=(row("engine.a/x", "done"),)),
            "Destroy: 1 done in 12 s, serial 42.",
        ),
        (
            replace(PARTIAL, mode="rollback", status="applied", changes=(row("engine.a/x", "done"),)),
            "Rollback: 1 done in 12 s, serial 42.",
        ),
    ],
)
def test_the_sentence_names_the_command(result: ApplyResult, expected: str) -> None:
    assert summary_sentence(result) == expected


def test_json_has_the_same_content() -> None:
    body = json.loads(json.dumps(apply_body(PARTIAL)))
    assert (body["mode"], body["serial"], body["status"], body["exit_code"]) == ("apply", 42, "partial", ExitCode.STALE)
    assert [change["status"] for change in body["changes"]] == [change.status for change in PARTIAL.changes]
    failed = body["changes"][2]
    assert (failed["error"]["code"], failed["step"], failed["next_step"]) == (
        "engine.broken",
        "install engine x",
        "repair it, then run apply again",
    )
    assert body["changes"][4]["member_of"] == "bundle.gpu-b"
    assert [host["host"] for host in body["hosts"]] == [host.host for host in PARTIAL.hosts]
    assert body["hosts"][3]["unreachable"] == "ssh 10.10.0.23:22 gave no answer in 10 s"
    assert body["hosts"][0]["degraded"]


def test_json_of_nothing_has_the_same_fields() -> None:
    assert nothing_to_apply_body().keys() == apply_body(PARTIAL).keys()


@pytest.mark.parametrize("form", ["json", "text"])
def test_printing(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    print_apply_result(PARTIAL, format=form)
    printed = capsys.readouterr().out
    if form == "json":
        document = json.loads(printed)
        assert (document["schema_version"], document["command"]) == (1, "apply")
    else:
        assert printed.rstrip().endswith("serial 42.")


def test_printing_nothing_is_silent_in_text_and_whole_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_apply_result(None)
    assert capsys.readouterr().out == ""
    print_apply_result(None, format="json")
    assert json.loads(capsys.readouterr().out)["changes"] == []

"""What sbctl refuses, with which exit code, and what it says instead of doing something."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sbctl.trust.keys import SigningKey
from tests.simulators.operator_world import OperatorWorld

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "--foramt", "json"),
        ("aply",),
        ("plan", "--format", "yaml"),
        ("plan", "--max-blast-radius", "huge"),
        ("apply", "--parallelism", "none"),
        ("state",),
        ("state", "lits"),
        ("rollback", "one"),
        ("plan", "stray"),
        ("key", "add", "x"),
        ("schema", "no-such"),
        (),
    ],
)
def test_wrong_usage_is_64_and_never_reads_as_changes(world: OperatorWorld, arguments: tuple[str, ...]) -> None:
    done = world.sbctl(*arguments)
    assert done.code == 64, done
    assert done.out == ""
    assert done.err


def test_a_mistyped_flag_is_answered_with_the_right_one(world: OperatorWorld) -> None:
    assert "--format" in world.sbctl("plan", "--foramt", "json", expect=64).err


def test_a_mistyped_field_is_3_with_line_column_and_suggestion(world: OperatorWorld) -> None:
    world.file.write_text(
        "proxy:\n  model_host:\n    deployments:\n      chat:\n        model: smollm2-135m-instruct\n        max_concurency: 2\n"
    )
    for command in ("validate", "plan", "apply"):
        done = world.sbctl(command, expect=3, save=False)
        said = f"{done.out}{done.err}"
        assert "sb.yml:6:9" in said
        assert "max_concurency" in said
        assert 'did you mean "max_concurrency"?' in said
    assert not (world.fleet / ".sbctl").exists(), "a file that is wrong leaves no state"


def test_no_file_is_3_and_says_how_to_begin(world: OperatorWorld) -> None:
    done = world.sbctl("plan", expect=3, save=False)
    assert "sbctl init" in done.err


def test_a_file_that_is_no_plan_is_3_and_says_what_makes_one(world: OperatorWorld) -> None:
    for words in (("apply", "sb.yml"), ("show", "sb.yml")):
        done = world.sbctl(*words, expect=3)
        assert "plan.invalid" in done.err
        assert "plan --out" in done.err


# Two at once


def test_the_second_of_two_applies_is_6_and_names_the_first_while_who_only_reads_does_not_wait(
    changing: OperatorWorld,
) -> None:
    changing.behaves(never_ready=True)
    changing.deployments["chat"]["max_concurrency"] = 4
    first = changing.start("apply", "--yes")
    first.until_said("apply bundle to local")
    second = changing.sbctl("apply", "--yes", expect=6)
    assert str(first.pid) in second.err
    assert "sbctl apply" in second.err
    assert changing.sbctl("state", "unlock", expect=6).err.count(str(first.pid))
    document = changing.sbctl("destroy", "--yes", "--format", "json", expect=6).json()
    assert document["error"]["code"] == "state.locked"
    changing.sbctl("plan", expect=2)
    changing.behaves()
    assert first.finish().code == 0
    assert "nobody holds" in changing.sbctl("state", "unlock", expect=0).err


def test_with_lock_timeout_the_second_waits_for_the_first(changing: OperatorWorld) -> None:
    changing.behaves(never_ready=True)
    changing.deployments["chat"]["max_concurrency"] = 3
    first = changing.start("apply", "--yes")
    first.until_said("apply bundle to local")
    second = changing.start("apply", "--yes", "--lock-timeout", "60")
    second.until_said("waiting up to 60 s")
    changing.behaves()
    assert first.finish().code == 0
    done = second.finish()
    assert done.code == 0
    assert "No changes" in done.text


# Saved plans


@pytest.fixture
def saved(changing: OperatorWorld) -> Path:
    """A plan to raise max_concurrency, not applied yet."""
    changing.deployments["chat"]["max_concurrency"] = 4
    path = changing.root / "plan"
    changing.sbctl("plan", "--out", str(path), expect=2)
    return path


def test_a_saved_plan_is_carried_out_once(changing: OperatorWorld, saved: Path) -> None:
    shown = changing.sbctl("show", str(saved), expect=0)
    assert "max_concurrency 2 → 4" in shown.text
    done = changing.sbctl("apply", str(saved), expect=0)
    assert "yes/no" not in done.text
    again = changing.sbctl("apply", str(saved), expect=5)
    assert "plan" in again.err
    assert "stale" in changing.sbctl("show", str(saved), expect=0).err
    changing.check_settled()


def test_a_saved_plan_after_another_apply_is_5(changing: OperatorWorld, saved: Path) -> None:
    changing.deployments["chat"]["max_concurrency"] = 3
    changing.sbctl("apply", "--yes", expect=0)
    changing.deployments["chat"]["max_concurrency"] = 4
    stale = changing.sbctl("apply", str(saved), expect=5)
    assert "serial" in stale.err


def test_a_saved_plan_for_another_file_is_5(changing: OperatorWorld, saved: Path) -> None:
    changing.deployments["chat"]["max_concurrency"] = 6
    changing.sbctl("apply", str(saved), expect=5)


def test_B10_a_saved_plan_that_was_edited_is_4(changing: OperatorWorld, saved: Path) -> None:
    import base64

    envelope: dict[str, Any] = json.loads(saved.read_text())
    payload = base64.b64decode(envelope["payload"])
    edited = payload.replace(b'"to":4', b'"to":9').replace(b'"apply"', b'"destroy"', 1)
    assert edited != payload
    envelope["payload"] = base64.b64encode(edited).decode()
    saved.write_text(json.dumps(envelope))
    changing.sbctl("apply", str(saved), expect=4)
    saved.write_bytes(saved.read_bytes()[: len(saved.read_bytes()) // 2])
    changing.sbctl("apply", str(saved), expect=3)
    changing.config = json.loads(json.dumps(changing.base))
    changing.check_settled()


# Who may


def test_an_operator_whose_key_is_not_listed_is_4_and_learns_who_is(served: OperatorWorld) -> None:
    stranger = {"HOME": str(served.root / "stranger"), "SBCTL_OPERATOR": "stranger"}
    served.deployments["chat"]["max_concurrency"] = 4
    done = served.sbctl("apply", "--yes", env=stranger, expect=4)
    assert "operator" in done.err
    made = served.sbctl("key", "add", "stranger", "--generate", env=stranger, expect=0)
    assert made.out.startswith("sbctl key add stranger ed25519:")
    done = served.sbctl("apply", "--yes", env=stranger, expect=4)
    assert "listed: operator" in done.err
    served.sbctl("plan", env=stranger, expect=2)
    served.sbctl("drift", expect=0)


def test_without_a_terminal_and_without_yes_nothing_happens(served: OperatorWorld) -> None:
    served.deployments["chat"]["max_concurrency"] = 4
    done = served.sbctl("apply", expect=4)
    assert "--yes" in done.err
    served.sbctl("destroy", expect=4)
    served.sbctl("rollback")
    served.sbctl("drift", expect=0)


@pytest.mark.parametrize("arguments", [("apply", "--yes"), ("plan", "--yes", "--out", "p")])
def test_under_ci_no_key_is_made(world: OperatorWorld, arguments: tuple[str, ...]) -> None:
    done = world.sbctl(*arguments, env={"CI": "true"}, expect=4)
    assert "key add" in done.err
    assert not list(world.home.rglob("*.key"))
    assert world.leftovers() == []


def test_a_declared_signer_set_makes_no_key(world: OperatorWorld) -> None:
    world.config["fleet"] = {"trust": {"signers": {"ops": SigningKey.generate().public_text}}}
    done = world.sbctl("apply", "--yes", expect=4)
    assert "this fleet accepts only what ops signed" in " ".join(done.err.split())
    assert not list(world.home.rglob("*.key"))


# Policy


def test_an_open_endpoint_is_4_unless_it_is_meant(world: OperatorWorld) -> None:
    world.config["proxy"]["bind_address"] = "0.0.0.0"
    for command in (("plan",), ("apply", "--yes")):
        done = world.sbctl(*command, expect=4)
        assert "api_keys" in done.err
    world.config["fleet"] = {"public": True}
    world.sbctl("plan", expect=2)


def test_an_emptied_map_needs_allow_empty(served: OperatorWorld) -> None:
    served.deployments.clear()
    served.config["origins"] = {}
    assert "apply refuses" in served.sbctl("plan", expect=2).text
    assert "--allow-empty" in served.sbctl("apply", "--yes", expect=4).err
    served.sbctl("plan", "--allow-empty", expect=2)
    assert served.answers()


def test_what_may_not_be_destroyed_is_not(served: OperatorWorld) -> None:
    served.config["fleet"] = {"prevent_destroy": ["artifact.local/*"]}
    served.deployments["chat"]["model"] = "small"
    served.config["origins"]["localhost"]["action"] = served.serving(chat=["small"])
    done = served.sbctl("plan", expect=4)
    assert "prevent_destroy" in f"{done.out}{done.err}"


def test_B7_a_lost_state_is_not_taken_for_nothing_to_destroy(world: OperatorWorld) -> None:
    marker = world.prefix / "etc" / "marker.json"
    marker.parent.mkdir(parents=True)
    marker.write_text('{"lineage": "0e0e0e0e-0000-4000-8000-00000000000e", "host": "local"}\n')
    done = world.sbctl("destroy", "--yes", expect=4)
    assert "host.other_lineage" in done.err
    marker.unlink()


def test_nothing_to_destroy_is_0(world: OperatorWorld) -> None:
    world.sbctl("destroy", "--yes", expect=0)
    world.sbctl("destroy", "--yes", expect=0, save=False)
    assert not (world.fleet / ".sbctl").exists()


# Hosts that give no answer


def test_a_host_that_gives_no_answer_is_7_and_never_0_or_2_unless_it_may_be_left_out(world: OperatorWorld) -> None:
    world.config["fleet"] = {
        "hosts": {
            "here": {"address": "local"},
            "far": {"address": "127.255.255.254", "host_key": f"SHA256:{'A' * 43}"},
        },
        "ssh": {"port": 1},
    }
    done = world.sbctl("plan", expect=7)
    assert "? host.far" in done.text
    assert "--allow-unreachable" in done.text
    document = world.sbctl("plan", "--format", "json", expect=7).json()
    assert "far" in json.dumps(document["unreachable"])
    world.sbctl("plan", "--yes", "--out", "p", expect=3)
    world.sbctl("apply", "--yes", expect=7)
    assert world.leftovers() == [], "nothing is done by halves without being asked to"
    world.sbctl("plan", "--allow-unreachable", expect=2)
    world.sbctl("apply", "--yes", "--allow-unreachable", expect=0)
    assert world.answers()
    world.sbctl("plan", expect=7)
    world.sbctl("drift", expect=0)
    world.sbctl("destroy", "--yes", expect=0)
    assert world.leftovers() == []

"""The commands around plan and apply, as a user meets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.simulators.operator_world import OperatorWorld

pytestmark = pytest.mark.integration


# Without any host


def test_from_nothing_to_a_plan(world: OperatorWorld) -> None:
    assert "sbctl plan" in world.sbctl("init", expect=0, save=False).err
    assert "is valid" in world.sbctl("validate", expect=0, save=False).err
    world.sbctl("init", expect=4, save=False)
    world.sbctl("init", "--force", expect=0, save=False)
    planned = world.sbctl("plan", expect=2, save=False)
    assert "smollm2-135m-instruct" in planned.out
    assert "known after" not in planned.out
    assert not (world.fleet / ".sbctl").exists(), "a plan leaves nothing behind"
    assert world.leftovers() == []


def test_explain_says_what_a_field_means_and_where_its_value_comes_from(served: OperatorWorld) -> None:
    done = served.sbctl("explain", "proxy.model_host.deployments.chat.max_concurrency", expect=0)
    assert "Requests that one replica works on at once" in done.text
    assert "sb.yml" in done.text
    assert served.sbctl("explain", "proxy.model_host.deploymets", expect=3).err.count("deployments")


@pytest.mark.parametrize("name", ["sb", "catalog", "bundle", "plan", "state"])
def test_schemas_are_printed(world: OperatorWorld, name: str) -> None:
    assert world.sbctl("schema", name, expect=0, save=False).json()["$schema"]


def test_two_files_are_compared_offline(served: OperatorWorld) -> None:
    served.save()
    base = served.root / "base.yml"
    base.write_bytes(served.file.read_bytes())
    (served.root / "models.yaml").write_bytes((served.fleet / "models.yaml").read_bytes())
    assert served.sbctl("plan", "--against", str(base), expect=0).out
    served.deployments["chat"]["max_concurrency"] = 4
    served.deployments["more"] = dict(served.deployments["chat"], model="small")
    served.config["origins"]["localhost"]["action"] = served.serving(chat=["tiny"], more=["small"])
    unreachable = {"SBCTL_NODE_PREFIX": "/proc/nowhere"}
    done = served.sbctl("plan", "--against", str(base), env=unreachable, expect=2)
    last = " ".join(done.out.split()[-30:])
    assert "to add" in last
    assert "to change" in last
    assert "0 to remove" in last
    assert "Blast radius" in last
    document = served.sbctl("plan", "--against", str(base), "--format", "json", expect=2).json()
    assert "artifact.local/small:q4" in {row["address"] for row in document["resource_changes"]}
    assert "```" in served.sbctl("plan", "--against", str(base), "--format", "markdown", expect=2).out
    served.sbctl("plan", "--against", str(base), "--out", "p", expect=64)


@pytest.mark.parametrize("file", [True, False])
def test_doctor_works_with_and_without_a_file(world: OperatorWorld, file: bool) -> None:
    done = world.sbctl("doctor", save=file, expect=0)
    assert "python" in done.out
    document = world.sbctl("doctor", "--format", "json", save=file, expect=0).json()
    assert document["ready"] is True
    assert [row["deployment"] for row in document["serve_entries"]] == (["chat"] if file else [])
    assert all(check["verdict"] in ("pass", "warn", "skip") for check in document["checks"])


def test_doctor_refuses_what_cannot_work_and_says_the_remedy(served: OperatorWorld, world: OperatorWorld) -> None:
    world.config["proxy"]["http_bind_port"] = served.port
    done = world.sbctl("doctor", expect=4)
    assert str(served.port) in done.text
    assert "choose another port" in done.text


# State


def test_state_can_be_listed_shown_pulled_and_pushed_back(changing: OperatorWorld) -> None:
    listed = changing.sbctl("state", "list", expect=0).out
    for address in ("host.local", "runtime.local", "engine.local/llama_cpp", "artifact.local/tiny:q4", "bundle.local"):
        assert address in listed
    assert "127.0.0.1" in changing.sbctl("state", "show", "runtime.local", expect=0).out
    document = changing.sbctl("state", "pull", expect=0)
    copy = changing.root / "copy.json"
    copy.write_text(document.out)
    changing.sbctl("state", "push", str(copy), expect=0)
    changing.deployments["chat"]["max_queue_depth"] = 7
    changing.sbctl("apply", "--yes", expect=0)
    older = changing.sbctl("state", "push", str(copy), expect=3)
    assert "serial" in older.err, "what is older than the state is refused by name"
    changing.deployments["chat"].pop("max_queue_depth")
    changing.sbctl("apply", "--yes", expect=0)
    serial = changing.sbctl("state", "pull", expect=0).json()["serial"]
    changing.sbctl("state", "push", "--force", str(copy), expect=0)
    assert changing.sbctl("state", "pull", expect=0).json()["serial"] > serial, "never backwards"


def test_what_is_forgotten_can_be_taken_in_again(changing: OperatorWorld) -> None:
    changing.sbctl("state", "rm", "artifact.local/tiny:q4", expect=4)
    changing.sbctl("state", "rm", "artifact.local/tiny:q4", "--yes", expect=0)
    assert "artifact" not in changing.sbctl("state", "list", expect=0).out
    changing.sbctl("plan", expect=2)
    changing.sbctl("state", "import", "artifact.local/tiny:q4", expect=0)
    changing.sbctl("state", "import", "artifact.local/none", expect=3)
    changing.check_settled()


def test_history_names_who_and_from_where(served: OperatorWorld) -> None:
    runs = served.sbctl("state", "history", "--format", "json", expect=0).json()["runs"]
    assert runs[-1]["command"] == "apply"
    assert runs[-1]["serial"] == 1
    assert runs[-1]["operator"]


@pytest.mark.parametrize("damage", ["empty", "truncated", "flipped", "gone"])
def test_a_damaged_state_is_refused_by_name_and_never_read_as_nothing(
    served: OperatorWorld, world: OperatorWorld, damage: str
) -> None:
    kept = served.fleet / ".sbctl"
    copied = world.fleet / ".sbctl"
    copied.mkdir()
    for path in kept.iterdir():
        (copied / path.name).write_bytes(path.read_bytes())
    database = copied / "state.db"
    data = database.read_bytes()
    if damage == "gone":
        database.unlink()
    else:
        flipped = data.replace(b"tiny:q4", b"tinz:q4")
        assert flipped != data
        database.write_bytes({"empty": b"", "truncated": data[: len(data) // 2], "flipped": flipped}[damage])
    for command in (("plan",), ("apply", "--yes"), ("destroy", "--yes"), ("state", "list")):
        done = world.sbctl(*command, expect=3)
        assert done.err.startswith("error[state.")
        assert "state push --force" in done.err
    assert world.leftovers() == []
    world.sbctl("state", "push", "--force", str(copied / "backup.json"), expect=0)
    assert "host.local" in world.sbctl("state", "list", expect=0).out


# Going back


def test_a_rollback_is_a_new_serial_with_the_old_content_and_the_next_plan_says_why(changing: OperatorWorld) -> None:
    before = changing.sbctl("state", "pull", expect=0).json()["serial"]
    changing.deployments["chat"]["max_concurrency"] = 4
    changing.sbctl("apply", "--yes", expect=0)
    changing.sbctl("rollback", expect=4)
    done = changing.sbctl("rollback", "--yes", expect=0)
    assert "max_concurrency 4 → 2" in done.text
    runs = changing.sbctl("state", "history", "--format", "json", expect=0).json()["runs"]
    assert [run["command"] for run in runs[:2]] == ["rollback", "apply"]
    assert runs[0]["serial"] == before + 2
    assert "--parallel 2" in " ".join(changing.engine.cmdline())
    changing.sbctl("drift", expect=0)
    planned = changing.sbctl("plan", expect=2)
    assert "max_concurrency 2 → 4" in planned.text
    assert "rollback" in planned.text, "why the file and the fleet differ"
    changing.sbctl("rollback", str(before + 1), "--yes", expect=0)
    assert "--parallel 4" in " ".join(changing.engine.cmdline())
    changing.sbctl("rollback", "99999", "--yes", expect=3)


# Keys and bundles


def test_a_second_operator_is_listed_carried_to_the_host_and_may_then_apply(changing: OperatorWorld) -> None:
    second = {"HOME": str(changing.root / "second"), "SBCTL_OPERATOR": "second"}
    made = changing.sbctl("key", "add", "second", "--generate", env=second, expect=0)
    public = made.out.split()[-1]
    changing.sbctl("key", "add", "second", public, env=second, expect=4)
    changing.sbctl("key", "add", "second", public, expect=0)
    assert "runtime.local" in changing.sbctl("plan", expect=2).out
    changing.sbctl("apply", "--yes", expect=0)
    listed = changing.sbctl("key", "list", "--format", "json", env=second, expect=0).json()
    assert {row["name"] for row in listed["signers"]} == {"operator", "second"}
    changing.deployments["chat"]["max_concurrency"] = 6
    changing.sbctl("apply", "--yes", env=second, expect=0)
    assert "--parallel 6" in " ".join(changing.engine.cmdline())
    verified = changing.sbctl("bundle", "verify", str(changing.paths.bundle), "--format", "json", expect=0).json()
    assert "second" in json.dumps(verified["signer"])


def test_a_key_is_rotated_without_a_moment_in_which_nobody_is_believed(changing: OperatorWorld) -> None:
    key_file = changing.home / ".config/sbctl/keys/operator.key"
    before = key_file.read_bytes()
    changing.sbctl("key", "rotate", expect=0)
    assert "apply" in changing.sbctl("key", "remove", "operator.retiring", expect=4).err
    assert key_file.read_bytes() == before
    changing.sbctl("apply", "--yes", expect=0)
    changing.sbctl("key", "rotate", expect=0)
    assert "operator.retiring is not listed" in changing.sbctl("key", "remove", "operator.retiring", expect=0).err
    assert key_file.read_bytes() != before
    assert sorted(path.name for path in key_file.parent.iterdir()) == ["operator.key"]
    assert "runtime.local" in changing.sbctl("plan", expect=2).out
    changing.sbctl("apply", "--yes", expect=0)
    changing.sbctl("plan", expect=0)
    assert "rotate" in changing.sbctl("key", "remove", "operator", expect=4).err
    listed = changing.sbctl("key", "list", "--format", "json", expect=0).json()
    assert [row["name"] for row in listed["signers"] if row["name"] != "second"] == ["operator"]


def test_a_bundle_can_be_exported_shown_and_verified(served: OperatorWorld) -> None:
    out = Path("b.json")
    served.sbctl("bundle", "export", "--out", str(out), expect=0)
    assert "not checked" in served.sbctl("bundle", "show", str(out), expect=0).err
    assert "chat" in served.sbctl("bundle", "verify", str(out), expect=0).out
    served.sbctl("bundle", "verify", str(out), "--host", "other", expect=4)
    path = served.fleet / out
    envelope = json.loads(path.read_text())
    envelope["signatures"][0]["sig"] = "A" * len(envelope["signatures"][0]["sig"])
    path.write_text(json.dumps(envelope))
    served.sbctl("bundle", "verify", str(out), expect=4)
    path.unlink()

"""stdout is the result and stderr the talk, on any terminal and on none."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess

import pytest

from tests.simulators.operator_world import SBCTL, OperatorWorld

pytestmark = pytest.mark.integration

JSON_COMMANDS: dict[str, tuple[tuple[str, ...], int]] = {
    "plan": (("plan",), 0),
    "drift": (("drift",), 0),
    "output": (("output",), 0),
    "doctor": (("doctor",), 0),
    "validate": (("validate",), 0),
    "explain": (("explain", "proxy.http_bind_port"), 0),
    "state.list": (("state", "list"), 0),
    "state.show": (("state", "show", "runtime.local"), 0),
    "state.history": (("state", "history"), 0),
    "key.list": (("key", "list"), 0),
    "apply": (("apply", "--yes"), 0),
    "bundle.verify": (("bundle", "verify", "BUNDLE"), 0),
    "bundle.show": (("bundle", "show", "BUNDLE"), 0),
}


@pytest.mark.parametrize("command", JSON_COMMANDS)
def test_json_is_all_there_is_on_stdout(served: OperatorWorld, command: str) -> None:
    arguments, code = JSON_COMMANDS[command]
    given = [str(served.paths.bundle) if one == "BUNDLE" else one for one in arguments]
    done = served.sbctl(*given, "--format", "json", expect=code)
    document = done.json()
    assert document["schema_version"] == 1
    assert document["command"] == command
    assert "error" not in done.err


@pytest.mark.parametrize(
    "arguments", [("plan", "-f", "missing.yml"), ("state", "show", "runtime.nowhere"), ("bundle", "show", "sb.yml")]
)
def test_a_failure_as_json_is_json_too(served: OperatorWorld, arguments: tuple[str, ...]) -> None:
    done = served.sbctl(*arguments, "--format", "json")
    document = done.json()
    assert document["schema_version"] == 1
    assert document["error"]["code"]
    assert document["error"]["message"]
    assert document["error"]["exit_code"] == done.code == 3
    assert document["command"] in ("plan", "state.show", "bundle.show")


def test_without_json_a_failure_leaves_stdout_empty(served: OperatorWorld) -> None:
    done = served.sbctl("plan", "-f", "missing.yml", expect=3)
    assert done.out == ""
    assert done.err.startswith("error[")


@pytest.mark.parametrize("arguments", [("plan",), ("schema",), ("state", "pull"), ("doctor", "--format", "json")])
def test_B16_a_reader_that_goes_away_ends_it_quietly(served: OperatorWorld, arguments: tuple[str, ...]) -> None:
    shell = " ".join([SBCTL, *arguments]) + " | head -1"
    done = subprocess.run(
        ["/bin/bash", "-c", shell],
        cwd=served.fleet,
        env=served.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.parametrize(
    "env",
    [
        {"COLUMNS": "20"},
        {"COLUMNS": "20", "LANG": "C", "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"NO_COLOR": "1", "TERM": "dumb"},
        {"LANG": "C.UTF-8", "TZ": "Asia/Kolkata"},
    ],
)
def test_narrow_plain_and_foreign_terminals_work(served: OperatorWorld, env: dict[str, str]) -> None:
    served.deployments["chat"]["max_concurrency"] = 4
    for command in (("plan",), ("output",), ("doctor",), ("state", "history"), ("explain", "proxy")):
        done = served.sbctl(*command, env=env)
        assert done.code in (0, 2), done
        assert done.out
        assert "\x1b" not in done.out
        assert "Traceback" not in done.err
        if env.get("LC_ALL") == "C":
            assert done.out.isascii()


@pytest.mark.parametrize("closed", ["stdin", "stdout", "stderr"])
def test_closed_streams_are_no_reason_to_fail(served: OperatorWorld, closed: str) -> None:
    close = {"stdin": "<&-", "stdout": ">&-", "stderr": "2>&-"}[closed]
    done = subprocess.run(
        ["/bin/bash", "-c", f"{SBCTL} plan {close}"],
        cwd=served.fleet,
        env=served.environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done
    assert "Traceback" not in done.stderr


def _on_terminal(
    world: OperatorWorld, *arguments: str, answer: str = "", env: dict[str, str] | None = None
) -> tuple[int, str]:
    """Run with a terminal for all three streams; `answer` is typed once a question stands there."""
    pid, fd = pty.fork()
    if pid == 0:
        os.chdir(world.fleet)
        os.execve(SBCTL, [SBCTL, *arguments], world.environ(TERM="xterm", **(env or {})))
    seen = b""
    asked = False
    while True:
        try:
            part = os.read(fd, 65536)
        except OSError:
            break
        if not part:
            break
        seen += part
        if answer and not asked and b"yes/no" in seen:
            os.write(fd, answer.encode())
            asked = True
    os.close(fd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), seen.decode(errors="replace")


def test_on_a_terminal_apply_asks_and_only_yes_is_yes(changing: OperatorWorld) -> None:
    changing.deployments["chat"]["max_concurrency"] = 4
    changing.save()
    code, seen = _on_terminal(changing, "apply", answer="maybe\n")
    assert code == 4
    assert "1 change, blast radius reload" in seen
    changing.sbctl("plan", expect=2)
    code, seen = _on_terminal(changing, "apply", answer="yes\n")
    assert code == 0
    assert "\x1b[" in seen
    changing.check_settled()


def test_NO_COLOR_is_honoured_on_a_terminal(served: OperatorWorld) -> None:
    coloured = re.compile("\x1b\\[[0-9;]*m")
    served.deployments["chat"]["max_concurrency"] = 4
    served.save()
    code, seen = _on_terminal(served, "plan")
    assert code == 2
    assert coloured.search(seen)
    code, seen = _on_terminal(served, "plan", env={"NO_COLOR": "1"})
    assert code == 2
    assert not coloured.search(seen)


def test_progress_as_json_is_one_event_a_line_on_stderr(changing: OperatorWorld) -> None:
    changing.deployments["chat"]["max_concurrency"] = 4
    done = changing.sbctl("apply", "--yes", "--format", "json", expect=0)
    assert done.json()["command"] == "apply"
    events = [json.loads(line) for line in done.err.splitlines()]
    assert [event["sequence"] for event in events] == sorted(event["sequence"] for event in events)
    assert events[0]["type"] == "run_started"
    assert events[-1]["type"] == "run_finished"
    assert events[-1]["exit_code"] == 0

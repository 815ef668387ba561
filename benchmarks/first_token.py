"""From a bare host to the first served token: how long, and what it went into, step by step.

    .venv/bin/python benchmarks/first_token.py [--runs N]

Lab hosts with nothing of ours on them; one `sbctl apply` sends the runtime, the engine's wheel and the weights (`delivery: push`) and
returns once the model has produced a token; then a client on this machine asks for a streamed completion. The engine and the model are real:
llama.cpp from its wheel and a small model of the built-in catalog. A first host fills the operator's caches, so that no run measures the
package index; each run then has a bare host of its own. Wall seconds, since that is what somebody waits for: the run with the least total is
shown, and other work on the machine shows in it. Needs root, and the package index once.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.lab_fleet import require_lab  # noqa: E402
from tests.lab.fixture import LabHost, booted  # noqa: E402
from tests.simulators.operator_world import OperatorWorld, new_world  # noqa: E402

PORT = 8080
MODEL = {"model": "smollm2-135m-instruct", "variant": "q4_1", "pull": "on_boot", "warm": True, "max_concurrency": 2}
ASKED = {
    "model": "small",
    "messages": [{"role": "user", "content": "What is the capital of France?"}],
    "max_tokens": 16,
    "temperature": 0,
    "stream": True,
}


@dataclass(frozen=True)
class Row:
    what: str
    seconds: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="bare hosts to start from; the quickest counts")
    runs = parser.parse_args().runs
    require_lab(runs + 1)
    with booted(runs + 1) as lab:
        first, *bare = lab.hosts
        served(first)
        report(min((served(host) for host in bare), key=total_s))


def served(host: LabHost) -> list[Row]:
    """One apply to a bare host and one question to it."""
    with new_world() as world:
        world.config = configuration(world, host)
        begun_s = time.monotonic()
        running = world.start("apply", "--yes", "--format", "json")
        running.until_said('"run_started"')
        planned_s = time.monotonic() - begun_s
        done = running.finish()
        applied_s = time.monotonic() - begun_s
        if done.code != 0:
            raise SystemExit(f"apply ended with {done.code}: {done.text[-4000:]}")
        token_s = first_token_s(host)
    events = done.events()
    run_s = next(float(event["elapsed_s"]) for event in events if event["type"] == "run_finished")
    return [
        Row("sbctl starts, looks at the host, plans", planned_s),
        *steps(events, run_s),
        Row("sbctl ends", max(0.0, applied_s - planned_s - run_s)),
        Row("first token of a completion, from this machine", token_s),
    ]


def configuration(world: OperatorWorld, host: LabHost) -> dict[str, Any]:
    return {
        "fleet": {
            "ssh": {"user": "root", "identity_file": host.identity_file},
            "defaults": {"delivery": "push"},
            "hosts": {host.name: {"address": host.address, "host_key": host.fingerprint}},
            "public": True,
        },
        "proxy": {
            "http_bind_port": PORT,
            "bind_address": "0.0.0.0",
            "model_host": {"shutdown_deadline_ms": 3000, "deployments": {"chat": MODEL}},
        },
        "origins": {host.address: {"action": world.serving(chat=["small"])}},
    }


def steps(events: list[dict[str, Any]], run_s: float) -> Iterator[Row]:
    """A row for each step, in order; what the run did besides them is one row: the lease, reading back, recording."""
    in_steps_s = 0.0
    for event in events:
        if event["type"] == "step_finished":
            in_steps_s += float(event["duration_s"])
            yield Row(f"{event['address'].partition('.')[0]}: {event['title']}", float(event["duration_s"]))
    yield Row("lease, reading the host back, recording", run_s - in_steps_s)


def first_token_s(host: LabHost) -> float:
    """From before the connection to the first piece of text."""
    begun_s = time.monotonic()
    with closing(http.client.HTTPConnection(host.address, PORT, timeout=120)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(ASKED), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise SystemExit(f"the host answered {answer.status}: {answer.read(2000)!r}")
        while line := answer.readline():
            text = line.removeprefix(b"data: ").strip()
            if text.startswith(b"{"):
                [choice] = json.loads(text)["choices"]
                if choice["delta"].get("content"):
                    return time.monotonic() - begun_s
    raise SystemExit("the completion ended without a token")


def total_s(rows: list[Row]) -> float:
    return sum(row.seconds for row in rows)


def report(rows: list[Row]) -> None:
    whole_s = total_s(rows)
    print(f"{'wall s':>8}{'share':>8}  what")
    for row in rows:
        print(f"{row.seconds:8.2f}{row.seconds / whole_s:8.0%}  {row.what}")
    print(f"{whole_s:8.2f}{'':8}  from a bare host to the first served token")


if __name__ == "__main__":
    main()

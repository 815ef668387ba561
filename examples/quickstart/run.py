"""`make run`: show the plan, apply it, ask the model one question, and leave it serving."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).resolve().parent
SBCTL = [str(Path(sys.executable).parent / "sbctl")]
FILE = ["-f", str(HERE / "sb.yml")]
QUESTION = "What is the capital of France? Answer in one sentence."


def say(text: str) -> None:
    """One line for the reader, in order with what the commands print."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def sbctl(*arguments: str) -> int:
    """Run one command with its output on this terminal; its exit code."""
    say("\n$ " + " ".join(["sbctl", *arguments]))
    return subprocess.run([*SBCTL, *arguments, *FILE], check=False).returncode


def answer_of(*arguments: str) -> dict[str, Any]:
    """What a command says as JSON; empty when it says nothing."""
    done = subprocess.run([*SBCTL, *arguments, "--format", "json", *FILE], stdout=subprocess.PIPE, check=False)
    return dict(json.loads(done.stdout or "{}"))


def ask(endpoint: dict[str, Any]) -> str:
    """One chat completion over the OpenAI API."""
    body = {
        "model": endpoint["model"],
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": 48,
        "temperature": 0,
    }
    answer = httpx.post(f"{endpoint['base_url']}/chat/completions", json=body, timeout=120, trust_env=False)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"]).strip()


def main() -> int:
    planned = sbctl("plan")
    if planned not in (0, 2):
        say(f"\nThis machine cannot serve it yet. What it serves, and at which ports, stands in {HERE / 'sb.yml'}.")
        return planned
    if planned == 2 and (applied := sbctl("apply", "--yes")):
        return applied
    endpoint = answer_of("output")["endpoints"][0]
    say(f"\nQ: {QUESTION}\nA: {ask(endpoint)}\n")
    say(f"It keeps serving. Use it with any OpenAI client, model {endpoint['model']}:")
    say(f"  OPENAI_BASE_URL={endpoint['base_url']} OPENAI_API_KEY=none")
    say("Remove it:")
    say("  make stop")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`make run`: show the plan, apply it, ask the model one question, and leave it serving."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import httpx

HERE = Path(__file__).resolve().parent
SBCTL = [str(Path(sys.executable).parent / "sbctl")]
FILE = ["-f", str(HERE / "sb.yml")]
ENDPOINT = "http://127.0.0.1:8080/v1"
QUESTION = "What is the capital of France? Answer in one sentence."


def sbctl(*arguments: str) -> int:
    """Run one command with its output on this terminal; its exit code."""
    shown = " ".join(["sbctl", *arguments])
    sys.stdout.write(f"\n$ {shown}\n")
    sys.stdout.flush()
    return subprocess.run([*SBCTL, *arguments, *FILE], check=False).returncode


def ask() -> str:
    """One chat completion over the OpenAI API."""
    body = {"model": "smollm2", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 48, "temperature": 0}
    answer = httpx.post(f"{ENDPOINT}/chat/completions", json=body, timeout=120)
    answer.raise_for_status()
    return str(answer.json()["choices"][0]["message"]["content"]).strip()


def main() -> int:
    planned = sbctl("plan")
    if planned not in (0, 2):
        return planned
    if planned == 2 and (applied := sbctl("apply", "--yes")):
        return applied
    sys.stdout.write(f"\nQ: {QUESTION}\nA: {ask()}\n\n")
    sys.stdout.write(f"It keeps serving. Use it:   OPENAI_BASE_URL={ENDPOINT} OPENAI_API_KEY=none (any OpenAI client, model smollm2)\n")
    sys.stdout.write("Remove it:                 make stop\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

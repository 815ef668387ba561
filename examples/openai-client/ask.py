"""Ask a model that sbctl serves, with the official client: `pip install openai`, then `python ask.py`.

OPENAI_BASE_URL and OPENAI_API_KEY are read from the environment; `sbctl output` prints both and the model's name.
"""

from __future__ import annotations

import sys

from openai import OpenAI


def main(model: str = "smollm2") -> None:
    client = OpenAI()
    question = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]

    answer = client.chat.completions.create(model=model, messages=question, max_tokens=48, temperature=0)  # type: ignore[arg-type]
    print("whole: ", answer.choices[0].message.content)

    print("stream:", end=" ", flush=True)
    for chunk in client.chat.completions.create(
        model=model, messages=question, max_tokens=48, temperature=0, stream=True
    ):  # type: ignore[call-overload]
        if chunk.choices:
            print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main(*sys.argv[1:])

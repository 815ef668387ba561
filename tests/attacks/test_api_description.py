"""The HTTP APIs against their own description: whatever is sent, no answer is a 500, and each is as its schema says.

What is sent is drawn from the description and bent at random, from a fixed seed, so that a failure is found again.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from sbctl.runtime.openapi import openapi_document
from tests.attacks.test_http_attacks import BASIC, Target

DOCUMENT = openapi_document()
SCHEMAS = {"components": DOCUMENT["components"]}
ROUNDS = 6
JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 2**53, 1.5, "", "q", "é\x00\u202e", "../../etc/passwd", "x" * 3000, [], [1], {}, {"a": {"b": []}},
    {"deployment": "q"}, {"messages": [{"role": "user", "content": "Hi"}]},
)  # fmt: skip
PATHS = ("q", "0" * 26, "%2e%2e", "a%2Fb", "%00", "é", "x" * 300, "'", "%")


@pytest.fixture
async def target(tmp_path: Path) -> AsyncIterator[Target]:
    made = Target(tmp_path)
    await made.start()
    yield made
    await made.stop()


def _value(chance: random.Random, schema: dict[str, Any]) -> Any:
    """Mostly of the schema, now and then something else."""
    if chance.random() < 0.25:
        return chance.choice(JUNK)
    if "$ref" in schema:
        return _value(chance, DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]])
    if "anyOf" in schema:
        return _value(chance, chance.choice(schema["anyOf"]))
    if "enum" in schema:
        return chance.choice(schema["enum"])
    if schema.get("type") == "object":
        found = {
            name: _value(chance, one) for name, one in schema.get("properties", {}).items() if chance.random() < 0.8
        }
        return {
            **found,
            **({chance.choice(("x", "stream", "q")): chance.choice(JUNK)} if chance.random() < 0.2 else {}),
        }
    return chance.choice(("q", "public", "ready")) if schema.get("type") == "string" else chance.choice(JUNK)


def _body(chance: random.Random, operation: dict[str, Any]) -> bytes:
    content = operation.get("requestBody", {}).get("content", {})
    schema = next(iter(content.values()), {}).get("schema", {"type": "object"})
    data = json.dumps(_value(chance, schema)).encode()
    cut = chance.random()
    return data[: len(data) // 2] if cut < 0.1 else data + b"}" if cut < 0.2 else data


def _checked(operation: dict[str, Any], status: int, content_type: str, body: bytes) -> str | None:
    """What is wrong with an answer."""
    told = operation["responses"].get(str(status))
    if status == 500 or told is None:
        return f"{status} is not described: {body[:200]!r}"
    schema = told["content"].get(content_type.split(";", maxsplit=1)[0], {}).get("schema")
    if schema is None:
        return f"{content_type} is not described for {status}"
    if content_type.startswith("application/json"):
        validator = Draft202012Validator({**SCHEMAS, **schema})
        return next((f"{status}: {error.message}" for error in validator.iter_errors(json.loads(body))), None)
    return None


@pytest.mark.parametrize("tag", ["admin", "data"])
async def test_G24_every_answer_is_in_its_schema_and_none_is_a_500(target: Target, tag: str) -> None:
    chance = random.Random(20261130)
    port = target.admin_port if tag == "admin" else target.data_port
    known = {"Authorization": BASIC} if tag == "admin" else {}
    wrong, seen = [], set()
    timeout = aiohttp.ClientTimeout(total=60)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", headers=known, timeout=timeout) as session:
        for path, methods in DOCUMENT["paths"].items():
            for method, operation in methods.items():
                if tag not in operation["tags"]:
                    continue
                for _ in range(ROUNDS):
                    asked = re.sub(r"\{\w+\}", lambda _: chance.choice(PATHS), path)
                    data = _body(chance, operation) if method != "get" else None
                    kind = "application/json" if chance.random() < 0.9 else "text/plain"
                    headers = {"Content-Type": kind} if data is not None else {}
                    async with session.request(method, asked, data=data, headers=headers) as answer:
                        body = await answer.read()
                        seen.add(answer.status)
                        fault = _checked(operation, answer.status, answer.headers.get("Content-Type", ""), body)
                    if fault is not None:
                        wrong.append(f"{method} {asked[:80]} {(data or b'')[:120]!r}: {fault}")
    assert wrong == []
    assert seen >= ({200, 202, 400, 404} if tag == "admin" else {200, 400, 404})


def test_every_route_of_the_tables_is_described_once_with_its_own_name() -> None:
    names = [
        one.get("operationId") for path in DOCUMENT["paths"].values() for one in path.values() if "admin" in one["tags"]
    ]
    assert len(names) == len(set(names))
    used = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(DOCUMENT["paths"]) + json.dumps(SCHEMAS)))
    assert used == set(DOCUMENT["components"]["schemas"])
    for schema in DOCUMENT["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)

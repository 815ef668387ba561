"""schemathesis over both HTTP APIs: no 500, every answer as the description says. Few examples, from a fixed seed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS

from sbctl.runtime.openapi import openapi_document
from tests.attacks.test_http_attacks import BASIC, Target

SCHEMA = schemathesis.openapi.from_dict(openapi_document())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
CHECKED = CHECKS.get_by_names(
    ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance"]
)
BOUNDS = settings(
    max_examples=4,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class _Served:
    """Both listeners on a loop of their own: schemathesis's client blocks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ready = threading.Event()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.target: Target

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self.target = Target(self._folder)
        self._loop.run_until_complete(self.target.start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self.target.stop())
        self._loop.close()

    def __enter__(self) -> Target:
        self._thread.start()
        assert self._ready.wait(60)
        return self.target

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with _Served(tmp_path_factory.mktemp("api")) as served:
        yield served


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_G24_no_500_and_every_answer_in_its_schema(target: Target, operation: schemathesis.APIOperation) -> None:
    tags = operation.definition.raw["tags"]

    @BOUNDS
    @given(case=operation.as_strategy())
    def knock(case: schemathesis.Case) -> None:
        for tag in tags:
            port, headers = (target.admin_port, {"Authorization": BASIC}) if tag == "admin" else (target.data_port, {})
            response = case.call(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
            case.validate_response(response, checks=list(CHECKED))

    knock()

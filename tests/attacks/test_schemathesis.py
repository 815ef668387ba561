"""schemathesis over both HTTP APIs, every route: no 500, every answer as the description says, for requests as described, for those that are
not, and without credentials. Few examples, from a fixed seed."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS

from sbctl.runtime.admin_routes import ROUTES
from sbctl.runtime.openapi import openapi_document
from tests.attacks.test_http_attacks import BASIC, Target

SCHEMA = schemathesis.openapi.from_dict(openapi_document())
OPERATIONS = [result.ok() for result in SCHEMA.get_all_operations()]
METHODS = {"get", "put", "post", "delete", "patch", "head", "options"}
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


def knock(target: Target, operation: schemathesis.APIOperation, mode: GenerationMode, admin: dict[str, str]) -> None:
    tags = operation.definition.raw["tags"]

    @BOUNDS
    @given(case=operation.as_strategy(generation_mode=mode))
    def asked(case: schemathesis.Case) -> None:
        for tag in tags:
            port, headers = (target.admin_port, admin) if tag == "admin" else (target.data_port, {})
            response = case.call(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=30)
            case.validate_response(response, checks=list(CHECKED))

    asked()


def test_every_route_of_the_description_is_knocked_at() -> None:
    described = {
        f"{method.upper()} {path}"
        for path, methods in openapi_document()["paths"].items()
        for method in methods
        if method in METHODS
    }
    assert {operation.label for operation in OPERATIONS} == described
    assert {route.path for route in ROUTES} <= set(openapi_document()["paths"])


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_G24_no_500_and_every_answer_in_its_schema(target: Target, operation: schemathesis.APIOperation) -> None:
    knock(target, operation, GenerationMode.POSITIVE, {"Authorization": BASIC})
    knock(target, operation, GenerationMode.POSITIVE, {})


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda one: one.label)
def test_G24_what_is_not_as_described_is_refused_as_described(
    target: Target, operation: schemathesis.APIOperation
) -> None:
    with contextlib.suppress(Unsatisfiable):  # a route that takes nothing can be asked nothing wrong
        knock(target, operation, GenerationMode.NEGATIVE, {"Authorization": BASIC})

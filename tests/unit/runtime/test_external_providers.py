"""Asking somebody else's API: which key, what is believed of an answer, and that a prompt goes nowhere else."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.secret import Secret
from sbctl.runtime.external.providers import ExternalProviders, Question
from sbctl.runtime.gateway import answers
from sbctl.runtime.gateway.ports import Source
from sbctl.runtime.gateway.relay import DocumentRelay, Relay, StreamRelay
from sbctl.trust.bundle import ExternalMember
from tests.simulators.external_api import Answer, ExternalApi, completion, events
from tests.simulators.public_ca import issue, public_ca

FIRST, SECOND = "provider_key_" + "1" * 16, "provider_key_" + "2" * 16
SECRETS = {FIRST: Secret(b"sk-first"), SECOND: Secret(b"sk-second")}


class Caller:
    """Keeps what it gets (`ports.Client`)."""

    def __init__(self) -> None:
        self.data = b""
        self.broken: bool | None = None

    def answer(self, answer: answers.Answer) -> None:
        self.data, self.broken = answer.body, False

    def begin(self, status: int, lines: bytes) -> None: ...

    def write(self, data: bytes) -> None:
        self.data += data

    def finish(self, *, broken: bool = False, told: bool = True) -> None:
        self.broken = broken

    def feed_from(self, source: Source | None) -> None: ...


class World:
    """One runtime's providers and one API."""

    def __init__(self, api: ExternalApi, keys: tuple[str, ...] = (FIRST, SECOND)) -> None:
        self.api = api
        self.member = ExternalMember(name="other", base_url=api.base_url, models={"m": "big"}, keys=keys)
        self.providers = ExternalProviders(lambda: FetchSettings.from_environ({}), SECRETS.__getitem__, SYSTEM_CLOCK)

    async def ask(self, *, streams: bool = False) -> tuple[Relay, Caller]:
        caller = Caller()

        def relay() -> Relay:
            kind: Any = StreamRelay if streams else DocumentRelay
            more = {"keeps_usage": True} if streams else {}
            made: Relay = kind(caller, b"", lambda: None, request_id="r", model="m", **more)
            return made

        body = json.dumps({"model": "big", "stream": streams}).encode()
        question = Question("/chat/completions", body, "application/json", "r", caller, relay)
        return await self.providers.ask(self.member, question), caller

    async def refusal(self, *, streams: bool = False) -> str:
        with pytest.raises(SbctlError) as caught:
            await self.ask(streams=streams)
        assert "sk-" not in caught.value.message
        return caught.value.code

    def used_keys(self) -> list[str | None]:
        return [asked.headers.get("Authorization") for asked in self.api.asked]


@pytest.fixture
def api() -> Iterator[ExternalApi]:
    with ExternalApi() as api:
        yield api


def run(world: World, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async def whole() -> None:
        try:
            await work()
        finally:
            await world.providers.close()

    asyncio.run(whole())


def test_a_document_and_a_stream_come_back_under_the_public_name(api: ExternalApi) -> None:
    world = World(api)

    async def work() -> None:
        relay, caller = await world.ask()
        assert json.loads(caller.data) == {**json.loads(completion("big")), "model": "m"}
        assert relay.usage is not None
        assert relay.usage.completion_tokens == 3
        relay, caller = await world.ask(streams=True)
        assert caller.data.replace(b'"m"', b'"big"').replace(b" ", b"") == events("big").replace(b" ", b"")
        assert caller.broken is False
        assert relay.usage is not None
        assert (api.asked[0].path, world.used_keys()) == ("/v1/chat/completions", ["Bearer sk-first"] * 2)

    run(world, work)


@pytest.mark.parametrize(
    "answer",
    [Answer(429, b"{}", {"Retry-After": "30"}), Answer(401, b"{}"), Answer(403, b"{}")],
    ids=lambda a: a.status,
)
def test_the_next_key_is_used_while_one_rests(api: ExternalApi, answer: Answer) -> None:
    world = World(api)
    api.answers["Bearer sk-first"] = answer

    async def work() -> None:
        for _ in range(2):
            await world.ask()
        assert world.used_keys() == ["Bearer sk-first", "Bearer sk-second", "Bearer sk-second"]
        api.answers["Bearer sk-second"] = answer
        assert await world.refusal() == "upstream_failed"
        assert await world.refusal() == "upstream_failed"
        assert len(api.asked) == 4, "with no key left nobody is asked"

    run(world, work)


@pytest.mark.parametrize("status", [400, 413, 422])
def test_what_the_caller_did_wrong_is_the_caller_s(api: ExternalApi, status: int) -> None:
    world = World(api)
    api.answers["Bearer sk-first"] = Answer(status, b'{"error":{"message":"no such tool"}}')

    async def work() -> None:
        for _ in range(5):
            with pytest.raises(InputError, match="no such tool"):
                await world.ask()
        assert len(api.asked) == 5, "no other key is tried, and the provider is not blamed"

    run(world, work)


@pytest.mark.parametrize(
    ("streams", "answer"),
    [
        (False, Answer(500, b"{}")),
        (False, Answer(404, b"{}")),
        (False, Answer(302, b"", {"Location": "http://127.0.0.1:1/elsewhere"})),
        (False, Answer(200, b"no json")),
        (False, Answer(200, completion("big"), {"Content-Encoding": "gzip"})),
        (False, Answer(200, completion("big")[:20], cut=True)),
        (True, Answer(200, completion("big"), {"Content-Type": "application/json"})),
        (True, Answer(200, b"data: {", cut=True)),
    ],
    ids=["500", "404", "redirect", "no_json", "compressed", "cut", "no_stream", "cut_stream"],
)
def test_a_provider_that_fails_three_times_is_left_alone(api: ExternalApi, streams: bool, answer: Answer) -> None:
    world = World(api)
    api.answers["Bearer sk-first"] = answer

    async def work() -> None:
        for _ in range(5):
            assert await world.refusal(streams=streams) == "upstream_failed"
        assert len(api.asked) == 3

    run(world, work)


def test_a_stream_that_breaks_ends_without_done_and_is_not_asked_again(api: ExternalApi) -> None:
    world = World(api)
    api.answers["Bearer sk-first"] = Answer(200, events("big", ends=False), cut=True)

    async def work() -> None:
        relay, caller = await world.ask(streams=True)
        assert relay.problem is not None
        assert caller.broken is True
        assert b"from " in caller.data
        assert b"[DONE]" not in caller.data
        assert len(api.asked) == 1

    run(world, work)


@pytest.mark.parametrize("vouched", [True, False])
def test_a_certificate_that_nobody_vouches_for_gets_no_prompt(tmp_path: Path, vouched: bool) -> None:
    pair, authority = tmp_path / "pair.pem", tmp_path / "ca.pem"
    pair.write_bytes(issue("127.0.0.1").pair)
    authority.write_bytes(public_ca())
    settings = FetchSettings.from_environ({"PIP_CERT": str(authority)} if vouched else {})
    with ExternalApi(str(pair)) as api:
        world = World(api)
        world.providers = ExternalProviders(lambda: settings, SECRETS.__getitem__, SYSTEM_CLOCK)

        async def work() -> None:
            if vouched:
                await world.ask()
            else:
                assert await world.refusal() == "upstream_failed"
            assert len(api.asked) == vouched

        run(world, work)


def test_a_key_that_is_not_on_the_host_is_as_good_as_none(api: ExternalApi) -> None:
    def missing(name: str) -> Secret:
        raise InputError("egress.secret_missing", f"the secret {name} is not on this host")

    world = World(api)
    world.providers = ExternalProviders(lambda: FetchSettings.from_environ({}), missing, SYSTEM_CLOCK)

    async def work() -> None:
        assert await world.refusal() == "upstream_failed"
        assert api.asked == []

    run(world, work)

"""A server of the store that sends nonsense: an error of ours, never memory without end, never an exception that ends a watch."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from nats.aio.msg import Msg
from nats.errors import ProtocolError

from sbctl.base.errors import SbctlError, UnreachableError
from sbctl.base.limits import MIB
from sbctl.runtime.cluster.nats_link import Link, StoreServer
from sbctl.runtime.cluster.nats_wire import BoundedClient, answer_of, heard
from sbctl.runtime.cluster.store import VALUE_MAX_BYTES, Bucket


@pytest.mark.parametrize(
    ("sent", "is_good"),
    [
        (b"MSG x 1 99999999999\r\n", False),
        (b"HMSG x 1 12 17000000\r\nNATS/1.0", False),
        (b"X" * (300 * 1024), False),
        (b"MSG x 1 11000000\r\n" + b"y" * MIB, True),
        (b"PONG\r\nMSG x 1 2\r\nhi\r\n+OK\r\n", True),
    ],
    ids=["a huge message", "a huge one with headers", "a line without an end", "a large message", "small talk"],
)
async def test_what_a_server_announces_is_bounded(sent: bytes, is_good: bool) -> None:
    client = BoundedClient()
    if is_good:
        await client._ps.parse(sent)
        return
    with pytest.raises(ProtocolError):
        await client._ps.parse(sent)


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff", b"[]", b"1", b'{"error": "no"}', b'{"error": {"err_code": []}}', b'{"error": {"err_code": "1"}}', b"[" * 100_000],
)  # fmt: skip
def test_an_answer_that_is_none_is_one_of_a_store_that_does_not_answer(data: bytes) -> None:
    with pytest.raises(UnreachableError) as caught:
        answer_of(data)
    assert caught.value.code == "store.unreachable"


def message(sequence: str, data: bytes = b"x", subject: str = "$KV.sbctl_leases.controller") -> Msg:
    headers = {"Nats-Subject": subject, "Nats-Sequence": sequence}
    return Msg(_client=BoundedClient(), subject="any", data=data, headers=headers)


def test_a_value_beyond_its_bucket_is_none_and_a_number_that_is_none_is_no_message() -> None:
    assert heard(message("7"), Bucket.LEASES) == ("controller", 7, b"x")
    assert heard(message("7", bytes(VALUE_MAX_BYTES[Bucket.LEASES] + 1)), Bucket.LEASES) == ("controller", 7, None)
    for number in ("", "-1", "7.5", "\u0667", "one"):
        assert heard(message(number), Bucket.LEASES) is None
    assert heard(message("7", subject="$KV.sbctl_nodes.a"), Bucket.LEASES) is None


class _Answers:
    """A client whose server answers everything with one document."""

    is_closed = False

    def __init__(self, document: Any) -> None:
        self._data = json.dumps(document).encode()

    async def request(self, *_: object, **__: object) -> Msg:
        return Msg(_client=BoundedClient(), subject="any", data=self._data)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
_KNOWN = st.sampled_from(["error", "message", "seq", "state", "created", "config", "cluster", "data", "hdrs", "last_seq", "messages",
                          "replicas", "leader", "active", "err_code", "description"])  # fmt: skip
_ANSWER = st.dictionaries(_KNOWN, _JSON | st.dictionaries(_KNOWN, _JSON, max_size=4), max_size=5)


@given(_ANSWER)
@example({"message": []})
@example({"message": {"hdrs": 1}})
@example({"cluster": {"leader": "a", "replicas": [{"active": 1e999}]}, "state": {}})
@example({"cluster": {"leader": "a", "replicas": 7}})
@example({"created": "x", "state": {"last_seq": 1e999, "messages": 0}, "config": {}})
@example({"seq": "one"})
async def test_whatever_a_server_answers_no_question_ends_in_an_error_that_is_not_ours(
    document: dict[str, Any],
) -> None:
    link = Link(StoreServer("a", "127.0.0.1", 1))
    link._client = _Answers(document)  # type: ignore[assignment]
    for question in (
        link.read(Bucket.LEASES, "controller"),
        link.info(Bucket.LEASES),
        link.write(Bucket.LEASES, "controller", b"x"),
        link.make("create", Bucket.LEASES, {}),
    ):
        try:
            await question
        except SbctlError:
            continue

"""A session tells lost from refused from done, never sends twice what may have arrived, and asks the right side of a host."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.errors import (
    HostError,
    InterruptedBySignal,
    RefusedError,
    SbctlError,
    UnreachableError,
)
from sbctl.base.secret import Secret
from sbctl.remote.session import HostSession
from sbctl.remote.transport import ChannelBroken, lost, timed_out
from tests.simulators.scripted_node import CUT, HELLO, STALL, ScriptedTransport, facts_of

RUNNING = facts_of(current="0.1.0", installed=("0.1.0",))
DEADLINE_S = 5.0
ENGINE = {"engine": "llama_cpp", "version": "1"}


def _session(transport: ScriptedTransport) -> HostSession:
    return HostSession("gpu-a", transport, SYSTEM_CLOCK)


def _call(session: HostSession, method: str = "engine.remove", params: Any = None, **more: Any) -> Any:
    sent = ENGINE if params is None else params
    return session.call(
        method, sent, **{"secrets": {}, "deadline_s": DEADLINE_S, "progress": lambda _d, _t: None, **more}
    )


def _transport(**more: Any) -> ScriptedTransport:
    return ScriptedTransport(**{"bootstrapped": {"facts": RUNNING}, **more})


class TestSnapshot:
    def test_a_host_without_a_runtime_is_described_by_its_facts(self) -> None:
        transport = _transport(bootstrapped={"facts": facts_of()})
        snapshot = _session(transport).snapshot(DEADLINE_S)
        assert not snapshot.bootstrapped
        assert snapshot.host.hostname == "gpu-a"
        assert transport.opened == []

    def test_a_host_with_a_runtime_is_described_by_its_node_interface(self) -> None:
        transport = _transport(handler=lambda request: [{"id": request["id"], "result": {"engines": []}}])
        snapshot = _session(transport).snapshot(DEADLINE_S)
        assert snapshot.bootstrapped
        argv, environment = transport.opened[0]
        directory = "/opt/sbctl/0.1.0/bin"
        assert argv == [f"{directory}/python", "-I", f"{directory}/sbctl-runtime", "node", "--stdio"]
        assert environment == {
            "HOME": "/root",
            "XDG_RUNTIME_DIR": "/run/user/0",
            "LANG": "C.UTF-8",
            "PATH": "/usr/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/sbin:/bin",
        }

    def test_one_channel_serves_all_snapshots_and_facts_are_asked_once(self) -> None:
        transport = _transport()
        session = _session(transport)
        for _ in range(3):
            session.snapshot(DEADLINE_S)
        assert len(transport.opened) == 1
        assert [command for command, _, _ in transport.asked] == ["facts"]

    def test_a_version_that_an_interrupted_run_installed_answers_too(self) -> None:
        transport = _transport(bootstrapped={"facts": facts_of(installed=("0.1.0", "0.2.0"))})
        assert _session(transport).snapshot(DEADLINE_S).bootstrapped
        assert transport.opened[0][0][0] == "/opt/sbctl/0.2.0/bin/python"

    @pytest.mark.parametrize("how", ["no program", "no interpreter", "damaged program"])
    def test_a_runtime_whose_program_is_gone_counts_as_not_bootstrapped(self, how: str) -> None:
        damaged = _transport(first=(CUT,), status=1, stderr="ImportError: no module")
        status_127 = _transport(first=(CUT,), status=127)
        transport = {"no program": _transport(missing=True), "no interpreter": status_127}.get(how, damaged)
        assert not _session(transport).snapshot(DEADLINE_S).bootstrapped

    @pytest.mark.parametrize(
        ("first", "code"),
        [
            ((CUT,), "remote.lost"),
            ((STALL,), "remote.timeout"),
            (({"hello": {"protocol": 2, "version": "9"}},), "node.protocol_mismatch"),
            (({"hello": {"protocol": 0, "version": "0"}},), "node.protocol_mismatch"),
            (({"hello": {}},), "node.protocol_error"),
            (({"hello": 1},), "node.protocol_error"),
            (({"id": 1},), "node.protocol_error"),
            ((b"Welcome to Debian",), "node.protocol_error"),
        ],
    )
    def test_a_node_interface_that_does_not_start_says_why(self, first: Any, code: str) -> None:
        transport = _transport(first=first)
        with pytest.raises(SbctlError) as caught:
            _session(transport).snapshot(DEADLINE_S)
        assert caught.value.code == code
        assert transport.channels[0].closed

    @pytest.mark.parametrize(
        ("answer", "code"),
        [
            ([CUT], "remote.lost"),
            ([STALL], "remote.timeout"),
            ([{"id": 7, "result": {}}], "node.protocol_error"),
            ([{"id": 1, "result": 3}], "node.protocol_error"),
            ([{"id": 1, "result": {"bundle": {"revision": "x"}}}], "host.answer_invalid"),
        ],
    )
    def test_a_snapshot_that_is_lost_changed_nothing_and_is_no_outcome_unknown(self, answer: Any, code: str) -> None:
        with pytest.raises(SbctlError) as caught:
            _session(_transport(handler=lambda _request: answer)).snapshot(DEADLINE_S)
        assert caught.value.code == code

    def test_a_channel_found_dead_is_opened_again_once(self) -> None:
        transport = _transport()
        session = _session(transport)
        session.snapshot(DEADLINE_S)
        transport.channels[0].refuses_input = True
        assert session.snapshot(DEADLINE_S).bootstrapped
        assert len(transport.channels) == 2


class TestCall:
    def test_the_result_is_answered_with_progress_and_secrets_beside_the_parameters(self) -> None:
        def handler(request: dict[str, Any]) -> Iterable[dict[str, Any]]:
            number = request["id"]
            yield {"id": number, "progress": {"done": 1, "total": None, "note": "half"}}
            yield {"id": number, "progress": {"done": 2, "total": 2}}
            yield {"id": number, "result": {"removed": True}}

        transport = _transport(handler=handler)
        seen: list[tuple[int, int | None]] = []
        result = _call(
            _session(transport), secrets={"key": Secret(b"\xffvalue")}, progress=lambda *step: seen.append(step)
        )
        assert result == {"removed": True}
        assert seen == [(1, None), (2, 2)]
        assert transport.channels[0].requests == [
            {"id": 1, "method": "engine.remove", "params": ENGINE, "secrets": {"key": "/3ZhbHVl"}}
        ]

    def test_the_error_of_the_host_is_raised_as_it_was_and_the_channel_stays(self) -> None:
        refusal = RefusedError("artifact.in_use", "leased", place="/c", next_step="stop it").to_wire()
        transport = _transport(handler=lambda request: [{"id": request["id"], "error": refusal}])
        session = _session(transport)
        for _ in range(2):
            with pytest.raises(RefusedError) as caught:
                _call(session)
            assert (caught.value.code, caught.value.place) == ("artifact.in_use", "gpu-a: /c")
        assert len(transport.channels) == 1

    @pytest.mark.parametrize(
        "answer", [[CUT], [STALL], [b"\0\0\0\x09{}", CUT], [b"\0\0\0\x02[]"], [{"id": 99, "result": {}}], [{"id": 1}]]
    )
    def test_an_answer_that_is_lost_means_unknown_and_nothing_is_sent_again(self, answer: Any) -> None:
        transport = _transport(handler=lambda _request: answer)
        with pytest.raises(HostError) as caught:
            _call(_session(transport))
        assert caught.value.code == "host.outcome_unknown"
        assert caught.value.retryable
        assert sum(len(channel.requests) for channel in transport.channels) == 1
        assert transport.channels[0].closed

    def test_a_request_that_cannot_have_arrived_is_sent_on_a_new_channel(self) -> None:
        transport = _transport()
        session = _session(transport)
        _call(session)
        transport.channels[0].refuses_input = True
        assert _call(session) == {}
        assert [len(channel.requests) for channel in transport.channels] == [1, 1]

    def test_cancelling_from_the_progress_closes_the_channel(self) -> None:
        def handler(request: dict[str, Any]) -> Iterable[dict[str, Any]]:
            return [{"id": request["id"], "progress": {"done": 1, "total": 2}}]

        def cancel(_done: int, _total: int | None) -> None:
            raise InterruptedBySignal("interrupted", "stopped")

        transport = _transport(handler=handler)
        with pytest.raises(InterruptedBySignal):
            _call(_session(transport), progress=cancel)
        assert transport.channels[0].closed

    def test_a_host_without_a_runtime_says_so(self) -> None:
        with pytest.raises(HostError) as caught:
            _call(_session(_transport(bootstrapped={"facts": facts_of()})))
        assert caught.value.code == "node.missing"

    @pytest.mark.parametrize(
        ("method", "params"),
        [
            ("engine.remove", {"engine": "vllm", "version": "1"}),
            ("engine.remove", {}),
            ("bundle.clear", {"x": 1}),
            ("nothing", {}),
        ],
    )
    def test_parameters_that_a_method_does_not_have_are_a_fault_of_ours(self, method: str, params: Any) -> None:
        transport = _transport()
        with pytest.raises(ValueError):  # noqa: PT011 - pydantic's own text
            _call(_session(transport), method, params)
        assert transport.opened == []


MARK = {"lineage": "l", "host": "gpu-a"}
WHEEL = {"filename": "uv-1-py3-none-any.whl", "sha256": "a" * 64}
INSTALL = {"version": "0.2.0", "python": "/usr/bin/python3.12", "uv": WHEEL, "wheels": [WHEEL]}


class TestBootstrapCalls:
    @pytest.mark.parametrize(
        ("method", "params", "command", "python"),
        [
            ("host.mark", MARK, "mark", "/usr/bin/python3.11"),
            ("host.unmark", {"lineage": "l"}, "unmark", "/usr/bin/python3.11"),
            ("runtime.install", INSTALL, "install", "/usr/bin/python3.12"),
        ],
    )
    def test_what_a_host_needs_before_and_after_its_runtime_goes_by_the_bootstrap(
        self, method: str, params: Any, command: str, python: str
    ) -> None:
        transport = _transport(bootstrapped={"facts": RUNNING, command: {"done": True}})
        assert _call(_session(transport), method, params) == {"done": True}
        name, sent, interpreter = transport.asked[-1]
        assert (name, interpreter) == (command, python)
        assert {key: sent[key] for key in params} == params
        assert transport.opened == []

    def test_after_an_install_the_new_version_answers_before_it_is_current(self) -> None:
        transport = _transport()
        session = _session(transport)
        session.snapshot(DEADLINE_S)
        _call(session, "runtime.install", INSTALL)
        _call(session)
        assert transport.channels[0].closed
        assert [argv[0] for argv, _ in transport.opened] == [
            "/opt/sbctl/0.1.0/bin/python",
            "/opt/sbctl/0.2.0/bin/python",
        ]

    def test_after_a_removal_the_node_process_is_ended_and_the_facts_are_asked_again(self) -> None:
        transport = _transport(bootstrapped={"facts": [RUNNING, facts_of()]})
        session = _session(transport)
        _call(session, "runtime.remove", {"lineage": "l"})
        assert transport.channels[0].closed
        assert not session.snapshot(DEADLINE_S).bootstrapped

    @pytest.mark.parametrize(
        ("broken", "code"),
        [
            (ChannelBroken(lost("gpu-a"), sent=True), "host.outcome_unknown"),
            (ChannelBroken(timed_out("gpu-a", 1.0), sent=True), "host.outcome_unknown"),
            (ChannelBroken(HostError("host.answer_invalid", "no"), sent=True), "host.outcome_unknown"),
            (ChannelBroken(lost("gpu-a"), sent=False), "remote.lost"),
        ],
    )
    def test_an_answer_of_the_bootstrap_that_never_came_means_unknown(self, broken: ChannelBroken, code: str) -> None:
        transport = _transport(bootstrapped={"facts": RUNNING, "mark": broken})
        with pytest.raises(SbctlError) as caught:
            _call(_session(transport), "host.mark", MARK)
        assert caught.value.code == code

    def test_a_host_that_was_never_reached_is_unreachable_not_unknown(self) -> None:
        refused = UnreachableError("ssh.refused", "refused", retryable=True)
        transport = _transport(bootstrapped={"facts": RUNNING, "mark": refused})
        with pytest.raises(UnreachableError) as caught:
            _call(_session(transport), "host.mark", MARK)
        assert caught.value.code == "ssh.refused"

    def test_without_a_python_that_is_new_enough_the_reader_is_told_what_to_install(self) -> None:
        transport = _transport(bootstrapped={"facts": facts_of(pythons=())})
        with pytest.raises(HostError) as caught:
            _call(_session(transport), "host.mark", MARK)
        assert caught.value.code == "host.no_python"
        assert "apt-get install" in (caught.value.next_step or "")

    def test_an_interpreter_the_operator_names_is_looked_at(self) -> None:
        transport = _transport()
        HostSession("gpu-a", transport, SYSTEM_CLOCK, python="/opt/py/bin/python3").snapshot(DEADLINE_S)
        assert transport.asked[0][1] == {"extra_pythons": ["/opt/py/bin/python3"], "pythons_if_installed": False}

    def test_interpreters_are_looked_for_only_where_nobody_told_them(self) -> None:
        told = {"host": {"pythons": [{"path": "/usr/bin/python3.12", "version": "3.12.1"}]}}
        transport = _transport(handler=lambda request: [{"id": request["id"], "result": told}])
        session = _session(transport)
        session.snapshot(DEADLINE_S)
        _call(session, "host.mark", MARK)
        asked = [(command, sent.get("pythons_if_installed"), python) for command, sent, python in transport.asked]
        assert asked == [("facts", False, None), ("mark", None, "/usr/bin/python3.12")]

    def test_a_damaged_runtime_makes_the_host_look_for_its_interpreters(self) -> None:
        transport = _transport(first=(CUT,), status=1)
        assert not _session(transport).snapshot(DEADLINE_S).bootstrapped
        assert [sent["pythons_if_installed"] for _, sent, _ in transport.asked] == [False, True]


class TestPut:
    DIGEST = "b" * 64
    MISMATCH = HostError("put.digest_mismatch", "other bytes", retryable=True)

    def _put(self, transport: ScriptedTransport, tmp_path: Path) -> list[tuple[int, int | None]]:
        source = tmp_path / "blob"
        source.write_bytes(b"12345")
        seen: list[tuple[int, int | None]] = []
        _session(transport).put(self.DIGEST, source, deadline_s=DEADLINE_S, progress=lambda *step: seen.append(step))
        return seen

    def _transport(self, begin: Any, finish: Any) -> ScriptedTransport:
        return _transport(bootstrapped={"facts": RUNNING, "blob_begin": begin, "blob_finish": finish})

    def test_a_blob_that_is_there_is_not_sent(self, tmp_path: Path) -> None:
        transport = self._transport({"complete": True, "part": "/s/p"}, {})
        assert self._put(transport, tmp_path) == [(5, 5)]
        assert transport.uploads == []

    def test_a_blob_is_uploaded_beside_its_name_then_verified_there(self, tmp_path: Path) -> None:
        transport = self._transport({"complete": False, "part": "/s/p"}, {})
        self._put(transport, tmp_path)
        assert [target for _, target in transport.uploads] == ["/s/p"]
        assert [command for command, _, _ in transport.asked] == ["facts", "blob_begin", "blob_finish"]
        assert transport.asked[-1][1] == {"sha256": self.DIGEST, "size_bytes": 5}

    def test_bytes_that_arrived_damaged_are_sent_once_more(self, tmp_path: Path) -> None:
        transport = self._transport({"complete": False, "part": "/s/p"}, [self.MISMATCH, {}])
        self._put(transport, tmp_path)
        assert len(transport.uploads) == 2

    def test_bytes_that_arrive_damaged_twice_are_an_error(self, tmp_path: Path) -> None:
        transport = self._transport({"complete": False, "part": "/s/p"}, [self.MISMATCH, self.MISMATCH])
        with pytest.raises(HostError) as caught:
            self._put(transport, tmp_path)
        assert caught.value.code == "put.digest_mismatch"
        assert len(transport.uploads) == 2


def test_a_lost_answer_about_a_blob_is_only_a_lost_connection(tmp_path: Path) -> None:
    (tmp_path / "blob").write_bytes(b"x")
    broken = ChannelBroken(lost("gpu-a"), sent=True)
    transport = _transport(bootstrapped={"facts": RUNNING, "blob_begin": broken})
    with pytest.raises(UnreachableError) as caught:
        _session(transport).put("a" * 64, tmp_path / "blob", deadline_s=DEADLINE_S, progress=lambda _done, _total: None)
    assert caught.value.retryable


def test_closing_ends_the_node_process_and_the_connection() -> None:
    transport = _transport()
    session = _session(transport)
    session.snapshot(DEADLINE_S)
    session.close()
    assert transport.channels[0].closed
    assert transport.closed
    assert HELLO["hello"]["protocol"] == 1

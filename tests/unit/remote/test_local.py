"""This machine as a host: real child processes, a real bootstrap, and a node program that does as it is told."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, SbctlError, UnreachableError
from sbctl.remote.observe import observe_fleet
from sbctl.remote.session import HostSession, open_session

DEADLINE_S = 20.0

NODE = """
import json, os, struct, sys
def write(message):
    body = json.dumps(message).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(body)) + body)
    sys.stdout.buffer.flush()
def read():
    head = sys.stdin.buffer.read(4)
    return json.loads(sys.stdin.buffer.read(struct.unpack(">I", head)[0])) if head else None
sys.stderr.write("starting\\n" * 50000)
sys.stderr.flush()
write({"hello": {"protocol": 1, "version": "0.0.1", "pid": os.getpid()}})
while (request := read()) is not None:
    number, method = request["id"], request["method"]
    if method == "snapshot":
        write({"id": number, "result": {"host": {"hostname": json.dumps([sys.argv[1:], dict(os.environ)])[:250]}}})
    elif method == "engine.remove" and request["params"]["version"] == "die":
        os._exit(3)
    elif method == "engine.remove" and request["params"]["version"] == "hang":
        sys.stdin.buffer.read()
    else:
        write({"id": number, "result": {"environment": dict(os.environ), "flags": [sys.flags.isolated, os.getsid(0) == os.getpid()]}})
open(os.path.join(os.environ["SBCTL_NODE_PREFIX"], "ended"), "w").close()
"""


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    programs = tmp_path / "node/opt/0.0.1/bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs / "sbctl-runtime").write_text(NODE)
    (tmp_path / "node/opt/current").symlink_to("0.0.1")
    return tmp_path / "node"


def _open(prefix: Path, **more: str) -> HostSession:
    environ = {"PATH": os.environ["PATH"], "HOME": "/root", "SBCTL_NODE_PREFIX": str(prefix), **more}
    return open_session("local", Connection("local"), clock=SYSTEM_CLOCK, environ=environ)


@pytest.fixture
def session(prefix: Path) -> Iterator[HostSession]:
    opened = _open(prefix)
    yield opened
    opened.close()


def _remove(session: HostSession, version: str = "1", deadline_s: float = DEADLINE_S) -> Any:
    params = {"engine": "llama_cpp", "version": version}
    return session.call("engine.remove", params, secrets={}, deadline_s=deadline_s, progress=lambda _done, _total: None)


def test_a_machine_without_a_runtime_is_described_by_its_facts(tmp_path: Path) -> None:
    snapshot = _open(tmp_path).snapshot(DEADLINE_S)
    assert not snapshot.bootstrapped
    assert snapshot.paths is not None
    assert snapshot.paths.opt == str(tmp_path / "opt")


def test_the_node_process_is_isolated_and_sees_only_what_it_needs(prefix: Path) -> None:
    operators = {"AWS_SECRET": "canary", "HF_TOKEN": "canary", "PYTHONPATH": "/evil", "LD_PRELOAD": "/evil.so"}
    session = _open(prefix, https_proxy="http://proxy:3128", UV_INDEX_URL="http://index/simple", **operators)
    told = _remove(session)
    session.close()
    environment = told["environment"]
    environment.pop("LC_CTYPE", None)
    assert environment.pop("SBCTL_FETCH_ENVIRONMENT") == "operator"
    assert set(environment) == {"PATH", "HOME", "LANG", "SBCTL_NODE_PREFIX", "https_proxy", "UV_INDEX_URL"}
    assert "canary" not in json.dumps(told)
    assert told["flags"] == [1, True]


def test_closing_lets_the_node_process_end_by_itself(session: HostSession, prefix: Path) -> None:
    assert session.snapshot(DEADLINE_S).bootstrapped
    session.close()
    assert (prefix / "ended").exists()


def test_a_node_process_that_dies_leaves_the_outcome_unknown_and_the_next_call_works(session: HostSession) -> None:
    with pytest.raises(HostError) as caught:
        _remove(session, "die")
    assert caught.value.code == "host.outcome_unknown"
    assert _remove(session)["flags"]


def test_a_call_ends_at_its_deadline_and_its_process_with_it(session: HostSession) -> None:
    with pytest.raises(HostError) as caught:
        _remove(session, "hang", deadline_s=0.5)
    assert caught.value.code == "host.outcome_unknown"
    assert session.snapshot(DEADLINE_S).bootstrapped


@pytest.mark.parametrize("missing", ["python", "sbctl-runtime"])
def test_programs_that_are_gone_are_no_runtime(prefix: Path, missing: str) -> None:
    (prefix / "opt/0.0.1/bin" / missing).unlink()
    session = _open(prefix)
    assert not session.snapshot(DEADLINE_S).bootstrapped
    session.close()


def test_a_damaged_program_is_one_to_install_anew(prefix: Path) -> None:
    (prefix / "opt/0.0.1/bin/sbctl-runtime").write_text("raise SystemExit('the library is missing')")
    session = _open(prefix)
    assert not session.snapshot(DEADLINE_S).bootstrapped
    with pytest.raises(SbctlError) as caught:
        session.call("bundle.clear", {}, secrets={}, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)
    session.close()
    assert caught.value.code == "node.start_failed"
    assert "the library is missing" in caught.value.message


def test_a_program_that_may_not_be_started_is_unreachable(prefix: Path) -> None:
    program = prefix / "opt/0.0.1/bin/python"
    program.unlink()
    program.write_text("#!/bin/sh\n")
    with pytest.raises(UnreachableError) as caught:
        _open(prefix).snapshot(DEADLINE_S)
    assert caught.value.code == "node.start_failed"


def test_a_file_is_put_by_its_digest_and_a_wrong_one_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "blob"
    source.write_bytes(b"weights")
    digest = hashlib.sha256(b"weights").hexdigest()
    session = _open(tmp_path / "node")
    for _ in range(2):
        session.put(digest, source, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)
    assert (tmp_path / "node/state/staging/blobs" / digest).read_bytes() == b"weights"
    with pytest.raises(HostError) as caught:
        session.put("0" * 64, source, deadline_s=DEADLINE_S, progress=lambda _done, _total: None)
    assert caught.value.code == "put.digest_mismatch"
    assert os.listdir(tmp_path / "node/state/staging/blobs") == [digest]


def test_an_observation_of_this_machine_has_it_and_closes_its_process(prefix: Path) -> None:
    environ = {"SBCTL_NODE_PREFIX": str(prefix), "PATH": os.environ["PATH"], "HOME": "/root"}
    with observe_fleet({"local": Connection("local")}, clock=SYSTEM_CLOCK, environ=environ) as observed:
        assert observed.snapshots["local"].bootstrapped
        assert observed.unreachable == {}
    assert (prefix / "ended").exists()


def test_an_observation_of_nothing_is_empty() -> None:
    with observe_fleet({}, clock=SYSTEM_CLOCK) as observed:
        assert (observed.snapshots, observed.unreachable, observed.sessions) == ({}, {}, {})

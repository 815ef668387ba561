"""The program around the daemon: dispatch, logs, notifications, jobs, error bodies."""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import structlog

from sbctl.base.errors import EngineError, InputError, RefusedError, SbctlError
from sbctl.runtime.admission import AdmissionError
from sbctl.runtime.gateway.answers import error_answer
from sbctl.runtime.log import configure_logging, get_log
from sbctl.runtime.main import main
from sbctl.runtime.notify import Notifier


class _Noon:
    def now(self) -> datetime:
        return datetime(2026, 11, 28, 12, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return 0.0

    def sleep_s(self, seconds: float) -> None: ...


@pytest.fixture
def logs() -> Iterator[None]:
    root = logging.getLogger()
    before = (root.handlers, root.level)
    configure_logging(clock=_Noon())
    yield
    structlog.reset_defaults()
    root.handlers, root.level = before[0], before[1]


@pytest.mark.parametrize(
    ("argv", "code"), [(["--version"], 0), (["--help"], 0), ([], 64), (["srve"], 64), (["--verbose", "serve"], 64)]
)
def test_wrong_usage_is_64_never_2(argv: list[str], code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == code
    capsys.readouterr()


@pytest.mark.flow
def test_an_error_is_one_line_and_its_exit_code(tmp_path: Path) -> None:
    env = {"PATH": os.environ["PATH"], "SBCTL_NODE_PREFIX": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])}
    argv = [sys.executable, "-P", "-m", "sbctl.runtime.main", "serve"]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 3
    assert done.stderr.startswith("sbctl-runtime serve: file.missing: there is no such file")
    assert not (tmp_path / "state" / "control.sock").exists()


def test_a_log_line_is_one_json_object_without_credentials(logs: None, capsys: pytest.CaptureFixture[str]) -> None:
    get_log("x").info(
        "it\nis",
        header="Authorization: Bearer abcdef",
        nested={"argv": ["--api-key sk-1234567890abc"]},
        long="y" * 9000,
    )
    get_log("x").debug("not shown")
    logging.getLogger("aiohttp.server").error("failed for hf_abcdefghijklmno")
    logging.getLogger("aiohttp.server").info("not shown")
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    first, second = (json.loads(line) for line in lines)
    assert (first["at"], first["event"], first["part"], first["level"]) == (
        "2026-11-28T12:00:00Z",
        "it\nis",
        "x",
        "info",
    )
    assert "abcdef" not in lines[0]
    assert "1234567890" not in lines[0]
    assert len(first["long"]) == 4000
    assert second["library"] == "aiohttp.server"
    assert "abcdefghijklmno" not in lines[1]


def test_a_closed_stderr_does_not_stop_the_daemon(logs: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, "w", encoding="utf-8") as closed:
        pass
    monkeypatch.setattr(sys, "stderr", closed)
    get_log("x").error("nobody hears it")


@pytest.mark.parametrize("abstract", [False, True])
def test_the_service_manager_hears_ready_alive_and_stopping(tmp_path: Path, abstract: bool) -> None:
    name = f"@sbctl-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        notifier = Notifier({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": str(os.getpid())})
        assert notifier.watchdog_interval_s == 2.0
        notifier.ready("serving")
        notifier.status("x")
        notifier.alive()
        notifier.stopping()
        said = [manager.recv(200) for _ in range(4)]
    assert said == [b"READY=1\nSTATUS=serving\n", b"STATUS=x\n", b"WATCHDOG=1\n", b"STOPPING=1\n"]
    notifier.alive()


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "x"},
        {"NOTIFY_SOCKET": "/x", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"},
    ],
)
def test_without_a_manager_or_for_another_process_it_is_silent(environ: dict[str, str]) -> None:
    notifier = Notifier(environ)
    assert notifier.watchdog_interval_s is None
    notifier.ready("x")


@pytest.mark.parametrize(
    ("error", "status", "code", "reason", "retry_after"),
    [
        (AdmissionError("queue_full", "too many", retry_after_s=2.1), 503, "queue_full", "queue_full", "3"),
        (AdmissionError("queue_timeout", "waited", retry_after_s=1), 503, "queue_timeout", "queue_timeout", "1"),
        (AdmissionError("draining", "draining", retry_after_s=1), 503, "no_ready_replica", "draining", "1"),
        (EngineError("engine_early_exit", "/secret/path broke"), 503, "no_ready_replica", "engine_early_exit", "1"),
        (EngineError("crash_loop", "it kept failing"), 503, "crash_loop", "crash_loop", "1"),
        (EngineError("upstream_failed", "pid 7 died"), 502, "upstream_failed", "upstream_failed", None),
        (RefusedError("rate_limited", "slow", detail={"retry_after_s": 0.2}), 429, "rate_limited", "rate_limited", "1"),
        (RefusedError("unknown_model", "this model is not served here"), 404, "unknown_model", "unknown_model", None),
        (InputError("invalid_request", '"n" is wrong'), 400, "invalid_request", "invalid_request", None),
        (RefusedError("unauthorized", "a key is needed"), 401, "unauthorized", "unauthorized", None),
    ],
)
def test_error_bodies_in_the_shape_that_clients_read(
    error: SbctlError, status: int, code: str, reason: str, retry_after: str | None
) -> None:
    response = error_answer(error, "abc")
    headers = dict(line.split(": ", 1) for line in response.lines.decode().splitlines())
    body: dict[str, Any] = json.loads(response.body)["error"]
    assert (response.status, body["code"], body["sbproxy_reason"], headers.get("Retry-After")) == (
        status,
        code,
        reason,
        retry_after,
    )
    assert body["request_id"] == "abc" == headers["X-Request-Id"]
    assert "/secret" not in body["message"]
    assert "pid" not in body["message"]
    assert ("WWW-Authenticate" in headers) is (status == 401)


@pytest.mark.parametrize(
    ("argv", "code", "says"),
    [
        (["--version"], 0, "sbctl-runtime "),
        (["--help"], 0, "subcommand"),
        ([], 64, "required: command"),
        (["sevre"], 64, "invalid choice: 'sevre'"),
        (["--no-such", "serve"], 64, "usage"),
        (["node"], 64, "node --stdio"),
    ],
)
def test_a_command_line_without_a_subcommand_is_explained(
    capsys: pytest.CaptureFixture[str], argv: list[str], code: int, says: str
) -> None:
    try:
        status = main(argv)
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else 1
    assert status == code
    out, err = capsys.readouterr()
    assert says in out + err


def test_an_installation_that_is_whole_says_its_version(capsys: pytest.CaptureFixture[str]) -> None:
    from sbctl import __version__

    assert main(["check"]) == 0
    assert capsys.readouterr().out == f"sbctl-runtime {__version__}\n"

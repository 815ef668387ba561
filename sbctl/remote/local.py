"""This machine as a host: the same commands and the same node interface as over SSH, by child processes and links instead of a network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.egress import OPERATORS_OWN
from sbctl.base.clock import Clock
from sbctl.base.errors import HostError, UnreachableError
from sbctl.base.file_slice import ByteSource, FileSlice
from sbctl.base.fs import copy_stream, link_or_copy, remove_file
from sbctl.node.facts import FactsError, gather
from sbctl.node.paths import PREFIX_VARIABLE
from sbctl.remote import bootstrap_script
from sbctl.remote.bootstrap import FACTS
from sbctl.remote.transport import STDERR_TAIL_BYTES, Channel, Progress, is_ready

__all__ = ["LocalTransport", "ProcessChannel"]

_INHERITED: Final = (
    PREFIX_VARIABLE,
    "SBCTL_PACKAGE_INDEX",
    "SBCTL_DOWNLOAD_HOSTS",
    "HF_ENDPOINT",
    "PIP_CERT",
    "UV_INDEX_URL",
    "UV_DEFAULT_INDEX",
    "PIP_INDEX_URL",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    *(name for stem in ("http_proxy", "https_proxy", "all_proxy", "no_proxy") for name in (stem, stem.upper())),
)
"""What a pull on this machine needs to reach the same places as its operator; nothing else of the operator's environment is passed on,
tokens least of all: a secret that a host needs is sent beside the call that needs it."""

_END_GRACE_S: Final = 5.0


class ProcessChannel:
    """A child process in a session of its own, so that Ctrl-C at the terminal reaches only us."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            list(argv),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environment),
            cwd="/",
            close_fds=True,
            start_new_session=True,
            bufsize=0,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._input = self._process.stdin.fileno()
        self._output = self._process.stdout.fileno()
        os.set_blocking(self._input, False)
        self._complaints: deque[int] = deque(maxlen=STDERR_TAIL_BYTES)
        self._listener = threading.Thread(target=self._listen, daemon=True, name="node-stderr")
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stderr
        with contextlib.suppress(OSError, ValueError):
            while chunk := os.read(self._process.stderr.fileno(), 1 << 16):
                self._complaints.extend(chunk)

    def receive(self, count: int, timeout_s: float) -> bytes:
        if not is_ready(self._output, timeout_s=timeout_s):
            raise TimeoutError
        return os.read(self._output, count)

    def send(self, data: bytes, timeout_s: float) -> None:
        view = memoryview(data)
        while view:
            if not is_ready(self._input, writable=True, timeout_s=timeout_s):
                raise TimeoutError
            view = view[os.write(self._input, view[: 1 << 16]) :]

    def ended(self, timeout_s: float) -> int | None:
        try:
            status = self._process.wait(max(0.0, timeout_s))
        except subprocess.TimeoutExpired:
            return None
        return status if status >= 0 else None

    def stderr_tail(self) -> str:
        self._listener.join(0.5)
        return bytes(self._complaints).decode("utf-8", "replace")

    def close(self) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        with contextlib.suppress(OSError):
            process.stdin.close()
        for end in (process.terminate, process.kill):
            try:
                process.wait(_END_GRACE_S)
                break
            except subprocess.TimeoutExpired:
                end()
        process.wait()
        self._listener.join(_END_GRACE_S)
        process.stdout.close()
        if not self._listener.is_alive():
            process.stderr.close()


class LocalTransport:
    """The machine that sbctl runs on, as the user it runs as."""

    def __init__(self, host: str, environ: Mapping[str, str], clock: Clock) -> None:
        self._host = host
        self._environ = environ
        self._clock = clock

    def bootstrap(
        self, command: str, params: Mapping[str, Any], *, python: str | None, deadline_s: float
    ) -> Mapping[str, Any]:
        del python
        if command != FACTS:
            return bootstrap_script.perform(command, {"deadline_s": deadline_s, **params}, self._environ, os.getuid())
        try:
            extra, always = params.get("extra_pythons", ()), params.get("pythons_if_installed", True)
            ports = params.get("ports", ())
            return gather(self._environ, os.getuid(), extra, pythons_if_installed=always, ports=ports)
        except FactsError as error:
            raise HostError(error.code, error.message, place=error.place, next_step=error.next_step) from error
        except ValueError as error:
            raise HostError("host.facts_failed", str(error), place=self._host) from error

    def open_channel(self, argv: Sequence[str], environment: Mapping[str, str], *, deadline_s: float) -> Channel:
        del deadline_s
        inherited = {name: self._environ[name] for name in _INHERITED if self._environ.get(name)}
        try:
            return ProcessChannel(argv, {**environment, **inherited, OPERATORS_OWN: "operator"})
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError as error:
            raise UnreachableError(
                "node.start_failed",
                f"{argv[0]} cannot be started: {error.strerror}",
                place=self._host,
                next_step="sbctl apply installs the runtime anew; see that its directory is not mounted with noexec",
            ) from error

    def upload(self, source: ByteSource, target: str, *, deadline_s: float, progress: Progress) -> None:
        del deadline_s
        size = source.stat().st_size
        progress(0, size)
        remove_file(Path(target))
        if isinstance(source, FileSlice):
            with source.open() as reader:
                copy_stream(reader, Path(target))
        else:
            link_or_copy(source, Path(target))
        progress(size, size)

    def close(self) -> None:
        """Nothing is held."""

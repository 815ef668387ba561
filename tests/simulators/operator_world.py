"""A user with a machine: sb.yml in a directory, a home, a node below a prefix, and the real `sbctl` as a process.

The model is nine bytes and the engine is `fake_llama_server`, unless a test asks for the real ones. Everything is below one short directory
(UNIX sockets have short paths); what is fetched from the package index is shared by all tests of a machine.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from sbctl import __version__
from sbctl.base.digests import sha256_bytes
from sbctl.node.paths import NodePaths
from tests.simulators.gguf_files import tiny_gguf
from tests.simulators.ports import free_port

ROOT = Path(__file__).resolve().parents[2]
FAKE = Path(__file__).with_name("fake_llama_server.py")
SBCTL = str(Path(sys.executable).parent / "sbctl")
SHARED_CACHE = Path(os.environ.get("SBCTL_TEST_CACHE") or ROOT / ".cache" / "test")
WAIT_S = 60.0

__all__ = ["Done", "OperatorWorld", "new_world", "until"]


def until(condition: Callable[[], Any], what: str, deadline_s: float = WAIT_S) -> Any:
    """The first true value of `condition`."""
    end_s = time.monotonic() + deadline_s
    while not (value := condition()):
        assert time.monotonic() < end_s, f"not within {deadline_s:.0f} s: {what}"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Done:
    """One ended command."""

    argv: tuple[str, ...]
    code: int
    out: str
    err: str

    def json(self) -> dict[str, Any]:
        """stdout, which must be one JSON object and nothing else."""
        document = json.loads(self.out)
        assert isinstance(document, dict)
        return document

    def events(self) -> list[dict[str, Any]]:
        """The events on stderr of `--format json`."""
        return [json.loads(line) for line in self.err.splitlines() if line.startswith("{")]

    @property
    def text(self) -> str:
        """Both streams with white space made one, so that a test does not depend on where lines break."""
        return " ".join(f"{self.out} {self.err}".split())


class OperatorWorld:
    """`config` is written as sb.yml before each command; change it in place."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.fleet, self.home, self.prefix = root / "fleet", root / "home", root / "node"
        for folder in (self.fleet, self.home):
            folder.mkdir(parents=True)
        self.paths = NodePaths(self.prefix / "etc", self.prefix / "state", self.prefix / "cache", self.prefix / "opt")
        self.program = root / "llama-server"
        self.port, self.admin_port = free_port(), free_port()
        self.env: dict[str, str] = {}
        self.settled = False
        self.transcript: list[Done] = []
        self.program.write_bytes(FAKE.read_bytes())
        self.program.chmod(0o755)
        self.behaves()
        self._write_catalog()
        self.base = self._base()
        self.config = copy.deepcopy(self.base)

    # The files of the user

    def _write_catalog(self) -> None:
        models = {}
        for name in ("tiny", "small"):
            data = tiny_gguf(note=name)
            weights = self.root / f"{name}.gguf"
            weights.write_bytes(data)
            variant = {
                "id": "q4",
                "format": "gguf",
                "quant": "Q4",
                "engines": ["llama_cpp"],
                "source": f"file:{weights}",
                "revision": "1",
                "files": [{"path": weights.name, "sha256": sha256_bytes(data), "size_bytes": len(data)}],
                "requirements": {"accelerators": ["cpu"], "min_memory_bytes": 1},
                "stability": "stable",
                "certification": "tests",
            }
            models[name] = {
                "params": "1M",
                "family": "tiny",
                "license": "apache-2.0",
                "context_length": 2048,
                "variants": [variant],
            }
        catalog = {"schema_version": 2, "catalog_revision": "tests-1", "models": models}
        (self.fleet / "models.yaml").write_text(json.dumps(catalog))

    def _base(self) -> dict[str, Any]:
        deployment = {"model": "tiny", "variant": "q4", "pull": "on_boot", "warm": True, "max_concurrency": 2}
        return {
            "proxy": {
                "http_bind_port": self.port,
                "admin": {"enabled": True, "port": self.admin_port},
                "model_host": {
                    "catalog_file": "models.yaml",
                    "shutdown_deadline_ms": 3000,
                    "engines": {"llama_cpp": {"launch": "binary", "path": str(self.program)}},
                    "deployments": {"chat": deployment},
                },
            },
            "origins": {"localhost": {"action": self.serving(chat=["tiny"])}},
        }

    def serving(self, **models: list[str]) -> dict[str, Any]:
        """The action of an origin: deployment → public names."""
        providers = [
            {"name": f"p-{name}", "provider_type": "managed_model", "deployment": name, "models": list(names)}
            for name, names in models.items()
        ]
        return {"type": "ai_proxy", "providers": providers}

    @property
    def deployments(self) -> dict[str, Any]:
        found: dict[str, Any] = self.config["proxy"]["model_host"]["deployments"]
        return found

    @property
    def file(self) -> Path:
        return self.fleet / "sb.yml"

    def save(self) -> None:
        """JSON is YAML."""
        self.file.write_text(json.dumps(self.config, indent=2) + "\n")

    def behaves(self, **behave: Any) -> None:
        """How the engine program misbehaves from its next start or request on."""
        Path(f"{self.program}.control.json").write_text(json.dumps(behave))

    def has_the_programs_of(self, other: OperatorWorld) -> None:
        """The runtime stands installed on this machine as it does on that one, for tests that are about something else: an apply finds it,
        and is done in a third of the time."""
        shutil.copytree(other.paths.version(__version__), self.paths.version(__version__), symlinks=True)

    # Commands

    def environ(self, **more: str) -> dict[str, str]:
        inherited = {name: os.environ[name] for name in os.environ if name.startswith(("COV", "PIP_", "SSL_"))}
        inherited |= {
            name: value
            for name, value in os.environ.items()
            if name.lower() in ("http_proxy", "https_proxy", "no_proxy", "all_proxy", "sbctl_package_index")
        }
        own = {
            "HOME": str(self.home),
            "PATH": os.environ["PATH"],
            "LANG": "C.UTF-8",
            "COLUMNS": "100",
            "SBCTL_NODE_PREFIX": str(self.prefix),
            "XDG_CACHE_HOME": str(SHARED_CACHE),
        }
        return {**inherited, **own, **self.env, **more}

    def start(self, *arguments: str, env: Mapping[str, str] | None = None, save: bool = True) -> Running:
        """Begin a command without a terminal, with nothing on stdin."""
        if save:
            self.save()
        return Running(self, arguments, self.environ(**(env or {})))

    def sbctl(
        self, *arguments: str, expect: int | None = None, env: Mapping[str, str] | None = None, save: bool = True
    ) -> Done:
        """Run a command to its end; with `expect`, its exit code is asserted."""
        done = self.start(*arguments, env=env, save=save).finish()
        if expect is not None:
            said = f"{done.out[-2500:]}\n{done.err[-2500:]}"
            assert done.code == expect, f"{done.argv} ended with {done.code}, not {expect}\n{said}"
        return done

    def check_settled(self) -> None:
        """Hosts, state and sb.yml agree."""
        self.sbctl("drift", expect=0)
        self.sbctl("plan", expect=0)
        self.settled = True

    # Looking from outside

    def processes(self) -> list[psutil.Process]:
        """Whatever runs from below the directory: supervisor, runtime, engines."""
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError, psutil.Error):
                with open(f"/proc/{name}/cmdline", "rb") as file:
                    is_ours = os.fsencode(self.root) in file.read()
                if is_ours and int(name) != os.getpid():
                    found.append(psutil.Process(int(name)))
        return found

    def running(self, word: str) -> list[psutil.Process]:
        """Processes with this word on their command line: `main serve`, `main supervise`, `--model`."""
        return [process for process in self.processes() if word in _cmdline(process)]

    @property
    def engine(self) -> psutil.Process:
        """The one engine process."""
        (found,) = self.running("--model")
        return found

    def leftovers(self) -> list[str]:
        """Every path below the node's prefix."""
        return (
            sorted(str(path.relative_to(self.root)) for path in self.prefix.rglob("*")) if self.prefix.exists() else []
        )

    def listens(self, port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(2)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    def ask(
        self, path: str = "/v1/chat/completions", *, model: str = "tiny", **body: Any
    ) -> tuple[int, dict[str, Any]]:
        """One request to the data plane."""
        asked = {"model": model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, **body}
        return self._request(self.port, "POST", path, asked, {})

    def answers(self, model: str = "tiny") -> bool:
        try:
            return self.ask(model=model)[0] == 200
        except OSError:
            return False

    def admin(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        """One request to the admin API, with the password from the host's file."""
        password = (self.paths.secrets / "admin_password").read_text()
        token = base64.b64encode(f"admin:{password}".encode()).decode()
        return self._request(self.admin_port, method, path, body, {"Authorization": f"Basic {token}"})

    def status(self) -> list[dict[str, Any]]:
        """The rows of the admin API's status."""
        rows: list[dict[str, Any]] = self.admin("GET", "/admin/model-host/status")[1]["deployments"]
        return rows

    def _request(
        self, port: int, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> tuple[int, dict[str, Any]]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        with contextlib.closing(connection):
            data = None if body is None else json.dumps(body)
            sent = {**headers, **({"Content-Type": "application/json"} if data is not None else {})}
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or b"{}")

    def close(self) -> None:
        """End whatever still runs and remove everything."""
        for word in ("supervise", ""):
            for process in self.processes():
                if word in _cmdline(process):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
        shutil.rmtree(self.root, ignore_errors=True)


class Running:
    """A command under way."""

    def __init__(self, world: OperatorWorld, arguments: tuple[str, ...], env: Mapping[str, str]) -> None:
        self._world = world
        self._arguments = arguments
        self._out = world.root / f"out.{len(os.listdir(world.root))}.{time.monotonic_ns()}"
        self._err = self._out.with_suffix(".err")
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [SBCTL, *arguments], cwd=world.fleet, env=dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    def said(self, text: str) -> bool:
        """Whether either stream holds this text by now."""
        return any(text.encode() in path.read_bytes() for path in (self._out, self._err))

    def times_said(self, text: str) -> int:
        """How often both streams together hold this text by now."""
        return sum(path.read_bytes().count(text.encode()) for path in (self._out, self._err))

    def until_said(self, text: str, deadline_s: float = WAIT_S) -> None:
        def come() -> bool:
            assert self.said(text) or self.process.poll() is None, f"it ended without saying {text!r}: {self.finish()}"
            return self.said(text)

        until(come, f"{text!r} from {self._arguments}", deadline_s)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def finish(self, deadline_s: float = 240.0) -> Done:
        try:
            self.process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        done = Done(
            self._arguments,
            self.process.returncode,
            self._out.read_text(errors="replace"),
            self._err.read_text(errors="replace"),
        )
        self._world.transcript.append(done)
        self._out.unlink()
        self._err.unlink()
        return done


def _cmdline(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


@contextlib.contextmanager
def new_world() -> Iterator[OperatorWorld]:
    """A machine with nothing on it; afterwards nothing of it is left, whatever happened."""
    world = OperatorWorld(Path(tempfile.mkdtemp(prefix="sbe", dir="/tmp")))
    try:
        yield world
    finally:
        world.close()

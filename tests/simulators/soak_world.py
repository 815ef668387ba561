"""A real runtime under steady load for as long as one likes: two models that take turns on one budget, one that is edited, one that somebody
else stands in for. What is lost, and what grows, is written down.

    callers ► a, b      each more than half of what models may take of this machine: one is loaded at a time
            ► r         edited, replaced, moved, adjusted all the time
            ► f         one request at a time and nobody waits: the rest is answered by an API of somebody else
    editor  ► the next desired state, as a signed bundle or as the file of a runtime that was started by hand
    watcher ► memory, descriptors and threads of the daemon, once a second

Everything is on loopback and ends by itself.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import random
import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import psutil

from sbctl.engines.memory import usable_host_bytes
from sbctl.node.machine import memory_limit
from sbctl.trust.bundle import BundleContent, DeploymentMember, ExternalMember, OriginMember
from tests.simulators.external_api import ExternalApi
from tests.simulators.runtime_world import (
    LINEAGE,
    Operator,
    RuntimeProcess,
    content,
    engine_program,
    member,
    prepare_node,
    weights,
)

__all__ = ["Sample", "SoakWorld", "Told", "growth"]

Told = Literal["bundles", "file"]
_CALLERS: Final = (("a", 1, 0.6), ("b", 1, 0.6), ("r", 2, 0.1), ("f", 3, 0.15))
"""Model, how many callers, and the seconds between an answer and the next request of each."""
_EDIT_EVERY_S: Final = 1.5
_PATIENCE_S: Final = 120.0


@dataclass(frozen=True)
class Sample:
    """One look at the daemon."""

    at_s: float
    memory_bytes: int
    """What it wrote to: pages of files are no growth of its own, and whether they are private depends on who else has them at the moment."""
    descriptors: int
    threads: int


def growth(samples: Sequence[Sample], name: str) -> int:
    """By how much the floor of the last third lies above that of the third before it; the first third is warming up.

    The floor, because what is in use comes and goes, and only what is never given back raises the least of many looks.
    """
    third = len(samples) // 3
    before, after = samples[third : 2 * third], samples[2 * third :]
    return int(_floor(after, name) - _floor(before, name))


def _floor(samples: Sequence[Sample], name: str) -> float:
    """The tenth part that is lowest, by its median: one look alone may be wrong."""
    values = sorted(getattr(sample, name) for sample in samples)
    return statistics.median(values[: max(1, len(values) // 10)])


class SoakWorld:
    """`run` it once."""

    def __init__(self, prefix: Path, how: Told, *, seed: int) -> None:
        self.prefix, self.how = prefix, how
        self.answers: Counter[tuple[str, str]] = Counter()
        """By model and how it was answered: `200 local`, `200 external`, or what went wrong."""
        self.edits = 0
        self.refused = 0
        self.swaps = 0
        self.samples: list[Sample] = []
        self.problems: list[str] = []
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._operator = Operator()
        admin = {"admin_enabled": True, "admin_rate_limit_per_minute": 100_000}
        self._config = {"lineage": LINEAGE, "host": "local", "http_bind_port": 0, "admin_port": 0, **admin}
        prepare_node(prefix, self._operator, **admin)
        self._artifact = weights(prefix)
        self._program = engine_program(prefix, token_delay_s=0.01)
        self._bad = engine_program(prefix, "bad", exit_at_once=3)
        size = int(usable_host_bytes(psutil.virtual_memory().total, memory_limit()) * 0.52)
        swapped = self._member(warm=False, pull="on_demand", memory_bytes=size)
        self._fixed = {"a": swapped, "b": swapped, "f": self._alone()}
        self._revision = 0
        self._edited = self._member()
        self._more: dict[str, DeploymentMember] = {}
        self.runtime: RuntimeProcess
        self.api: ExternalApi

    def run(self, duration_s: float) -> None:
        """Everything for so long. What went wrong is in `problems` and `answers`."""
        with ExternalApi() as self.api:
            try:
                self._begin()
                self._live(duration_s)
            finally:
                self._stop.set()
                runtime: RuntimeProcess | None = getattr(self, "runtime", None)
                if runtime is not None and runtime.process.poll() is None:
                    assert runtime.stop(timeout_s=60) == 0, runtime.log.read_text()[-3000:]

    # The daemon

    @property
    def _file(self) -> Path:
        return self.prefix / "mine.json"

    def _begin(self) -> None:
        if self.how == "file":
            self._write(self._desired())
            self.runtime = RuntimeProcess(self.prefix, "--config", str(self._file))
            self.runtime.await_healthy(_PATIENCE_S)
            return
        self.runtime = RuntimeProcess(self.prefix)
        self.runtime.await_healthy(_PATIENCE_S)
        assert "result" in self._take(self._desired())

    def _member(self, **changes: Any) -> DeploymentMember:
        patient = {"max_queue_depth": 64, "queue_timeout_ms": int(_PATIENCE_S * 1000)}
        return member(self._artifact, self._program, **{**patient, **changes})

    def _alone(self) -> DeploymentMember:
        return self._member(max_concurrency=1, max_queue_depth=0, cold_start="fallback")

    def _desired(self, edited: DeploymentMember | None = None, extern: str = "other") -> BundleContent:
        deployments = {**self._fixed, "r": edited or self._edited, **self._more}
        models = {f"{name}-model": name for name in deployments}
        other = ExternalMember(name=extern, base_url=self.api.base_url, models={"f-model": "big"})
        origin = OriginMember(models=models, default_model="r-model", stand_ins=(other,))
        return content(deployments, origins={"ai.internal": origin})

    def _take(self, desired: BundleContent) -> dict[str, Any]:
        """A signed bundle, or the file: `{"result": …}` or `{"error": …}`."""
        if self.how == "file":
            self._write(desired)
            return self._reloaded()
        told = self.runtime.apply(self._operator.bundle(desired, self._revision + 1), self._revision or None)
        self._revision += "result" in told
        return told

    def _reloaded(self) -> dict[str, Any]:
        """Asked again while the daemon takes the file up by itself, which it does when it lay still for a moment."""
        end_s = time.monotonic() + _PATIENCE_S
        while True:
            status, answer = self.runtime.admin("POST", "/admin/reload", {})
            if status == 200:
                return {"result": answer}
            if "reload_in_progress" not in json.dumps(answer) or time.monotonic() > end_s:
                return {"error": answer}
            time.sleep(0.1)

    def _write(self, desired: BundleContent) -> None:
        text = json.dumps({"runtime": self._config, "content": desired.model_dump(mode="json")})
        fresh = self._file.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self._file)

    # Load

    def _live(self, duration_s: float) -> None:
        callers = [
            threading.Thread(target=self._call, args=(model, pause_s))
            for model, count, pause_s in _CALLERS
            for _ in range(count)
        ]
        workers = [*callers, threading.Thread(target=self._edit), threading.Thread(target=self._watch_turns)]
        for worker in workers:
            worker.start()
        end_s = time.monotonic() + duration_s
        while time.monotonic() < end_s and self.runtime.process.poll() is None and not self.problems:
            self.samples.append(self._look())
            time.sleep(1.0)
        self._stop.set()
        for worker in workers:
            worker.join(_PATIENCE_S)
            assert not worker.is_alive(), "somebody still waits for an answer"
        assert self.runtime.process.poll() is None, self.runtime.log.read_text()[-3000:]

    def _look(self) -> Sample:
        process = psutil.Process(self.runtime.process.pid)
        with process.oneshot():
            memory = process.memory_info()
            return Sample(time.monotonic(), memory.rss - memory.shared, process.num_fds(), process.num_threads())

    def _call(self, model: str, pause_s: float) -> None:
        """One caller: a connection that is kept, every other request streamed."""
        host = self.runtime.status()["http_url"].removeprefix("http://")
        connection = http.client.HTTPConnection(host, timeout=_PATIENCE_S)
        for number in itertools.count():
            if self._stop.wait(pause_s):
                break
            self.answers[model, self._ask(connection, model, stream=number % 2 == 0)] += 1
        connection.close()

    def _ask(self, connection: http.client.HTTPConnection, model: str, *, stream: bool) -> str:
        body = {
            "model": f"{model}-model",
            "messages": [{"role": "user", "content": "Hi"}],
            "max_tokens": 4,
            "stream": stream,
        }
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return f"lost: {error!r}"
        if response.status != 200:
            return f"{response.status} {text[:200]!r}"
        if stream and not text.endswith(b"data: [DONE]\n\n"):
            return f"a stream without its end: {text[-200:]!r}"
        return f"200 {response.headers['x-sbproxy-route-class']}"

    def _watch_turns(self) -> None:
        """How often another of the two is the loaded one; never both."""
        last: list[str] = []
        with self._noted("the turns of a and b"):
            while not self._stop.wait(0.2):
                rows = self.runtime.status()["deployments"]
                ready = [row["deployment"] for row in rows if row["deployment"] in "ab" and row["state"] == "ready"]
                assert len(ready) <= 1, ready
                if ready and ready != last:
                    last, self.swaps = ready, self.swaps + 1

    # Change

    def _edit(self) -> None:
        with self._noted("an edit"):
            for number in itertools.count():
                if self._stop.wait(_EDIT_EVERY_S):
                    return
                getattr(self, f"_edit_{_EDITS[number % len(_EDITS)]}")(number)
                del self.api.asked[:]

    @contextlib.contextmanager
    def _noted(self, what: str) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            self.problems.append(f"{what}: {error!r}")

    def _accepted(self, desired: BundleContent) -> None:
        told = self._take(desired)
        assert "result" in told, told
        self.edits += 1

    def _edit_rolling(self, number: int) -> None:
        self._edited = self._edited.model_copy(update={"max_concurrency": 2 + number % 3, "rollout": "rolling"})
        self._accepted(self._desired())

    def _edit_recreate(self, number: int) -> None:
        self._edited = self._edited.model_copy(update={"max_concurrency": 3 + number % 3, "rollout": "recreate"})
        self._accepted(self._desired())

    def _edit_adjust(self, number: int) -> None:
        self._edited = self._edited.model_copy(update={"max_queue_depth": 64 + number % 7})
        self._accepted(self._desired(extern=f"other{number % 3}"))

    def _edit_added(self, _number: int) -> None:
        self._more = {"x": self._member()}
        self._accepted(self._desired())

    def _edit_removed(self, _number: int) -> None:
        self._more = {}
        self._accepted(self._desired())

    def _edit_bad(self, _number: int) -> None:
        told = self._take(self._desired(member(self._artifact, self._bad)))
        assert "error" in told, told
        self.refused += 1

    def _edit_again(self, _number: int) -> None:
        """The same once more: a signal for the file, a repeat of the bundle."""
        if self.how == "file":
            self._write(self._desired())
            self.runtime.process.send_signal(signal.SIGHUP)
        self._accepted(self._desired())

    def _edit_evicted(self, _number: int) -> None:
        """Whoever of the two is loaded goes, unless it is asked just now."""
        for name in "ab":
            self.runtime.act(name, "evict" if self._draw.random() < 0.5 else "load")


_EDITS: Final = ("rolling", "adjust", "added", "again", "recreate", "bad", "removed", "evicted")

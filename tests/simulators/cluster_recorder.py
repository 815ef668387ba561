"""Who writes down what a cluster does: asks every node how it sees the cluster, lets callers ask a gateway, and notes what was put to it.

It knows of a node only a function that gives its status document, and of a gateway only where it listens, so processes on loopback and hosts of a
lab are recorded alike.
"""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Self

from tests.simulators.cluster_events import (
    Asked,
    Engines,
    Event,
    Fault,
    History,
    Limits,
    Mark,
    Published,
    Revoked,
    Slot,
    Told,
    View,
)
from tests.simulators.cluster_figures import report
from tests.simulators.cluster_history import check

__all__ = ["Gateway", "Recorder", "engines_of", "events_of", "is_settled"]

LIVE: Final = frozenset({"preparing", "ready", "draining"})
_ANSWER_S: Final = 90.0
_CALM_S: Final = 2.0
"""A node that is back may be offered replicas a moment later."""
Document = Mapping[str, Any]


# --- what a status document says


def _mark(revision: int | None, digest: str | None) -> Mark | None:
    return None if revision is None or digest is None else (revision, digest)


def events_of(document: Document, at_s: float, nodes: frozenset[str], failovers: int | None = None) -> Iterator[Event]:
    """`document`: GET /admin/cluster/status of one node. `nodes`: those that should be there."""
    observer, authority = document["local_node_id"], document["deployment_authority"]
    rows, deployments = document["nodes"], document["deployments"]
    epoch, holder = document["lease_epoch"], authority["signer_node_id"]
    yield View(
        at_s,
        observer,
        mark=_mark(authority["active_revision"], authority["active_content_digest"]),
        plan=None if epoch is None else (epoch, holder),
        assigned=frozenset(place["node_id"] for one in deployments for place in one["assignments"]),
        handing=frozenset(
            one["deployment_id"]
            for one in deployments
            if one["phase"] != "stable" or one["retained"] or one["draining"] or not one["target_ready"]
        ),
        absent=frozenset(row["node_id"] for row in rows if row["membership_state"] != "alive"),
        settled=is_settled(document, nodes) if rows else None,
        failovers=failovers,
    )
    for row in rows:
        if row["snapshot_age_ms"] is not None:
            yield _told(row, at_s, observer)


def _told(row: Document, at_s: float, observer: str) -> Told:
    bundle, assignment = row["active_bundle"], row["assignment"]
    return Told(
        at_s,
        observer,
        row["node_id"],
        at_s - row["snapshot_age_ms"] / 1000,
        row["identity_epoch"],
        row["incarnation"],
        row["snapshot_generation"],
        mark=None if bundle is None else (bundle["revision"], bundle["content_digest"]),
        assignment=None if assignment is None else (assignment["lease_epoch"], assignment["counter"]),
        live=frozenset(
            (one["deployment"], one["deployment_generation"], one["slot"])
            for one in row["replicas"]
            if one["state"] in LIVE and one["slot"] is not None
        ),
        counted=row["exclusion_reason"] is None,
    )


def is_settled(document: Document, nodes: frozenset[str]) -> bool:
    """Whether this node sees nothing that is still to be done: every node of `nodes` counts, at this node's own bundle, and every warm replica is
    ready where the plan has it."""
    authority = document["deployment_authority"]
    mark = (authority["active_revision"], authority["active_content_digest"])
    rows = {row["node_id"]: row for row in document["nodes"]}
    here = [rows[name] for name in nodes if name in rows and rows[name]["exclusion_reason"] is None]
    return (
        document["store"]["state"] == "connected"
        and document["problem"] is None
        and document["brake"] is None
        and not document["local_problems"]
        and mark[0] is not None
        and len(here) == len(nodes)
        and all(_stands_at(row, mark) for row in here)
        and all(_is_whole(one) for one in document["deployments"])
    )


def _stands_at(row: Document, mark: tuple[int | None, str | None]) -> bool:
    bundle = row.get("active_bundle")
    return bundle is not None and (bundle["revision"], bundle["content_digest"]) == mark and not row["authority_stale"]


def _is_whole(one: Document) -> bool:
    return (
        one["phase"] in ("stable", "restored")
        and not one["unplaced_replicas"]
        and not one["retained"]
        and not one["draining"]
        and one["ready_replicas"] == one["desired_replicas"]
    )


# --- what a gateway answers


@dataclass(frozen=True, slots=True)
class Gateway:
    """`address`: host and port, as they are now; `host`: the origin that is asked; `node_of`: who computed it, by the answer's first event or body.

    One request in `whole_every` is no stream. A stream is whole with `least` pieces of text, else with `tokens` of them.
    """

    name: str
    address: Callable[[], tuple[str, int]]
    model: str
    host: str = "ai.internal"
    tokens: int = 16
    whole_every: int = 4
    least: int | None = None
    prompt: str = "Hi"
    node_of: Callable[[str], str] = lambda _text: ""

    def ask(self, now_s: Callable[[], float], *, stream: bool) -> Asked:
        """Never raises: what goes wrong is in the event."""
        began = Asked(now_s(), 0.0, self.name, stream=stream)
        try:
            found = self._ask(began, now_s, stream)
        except (OSError, http.client.HTTPException, ValueError) as error:
            found = replace(began, problem=repr(error))
        return replace(found, ended_s=now_s())

    def _ask(self, began: Asked, now_s: Callable[[], float], stream: bool) -> Asked:
        connection = http.client.HTTPConnection(*self.address(), timeout=_ANSWER_S)
        try:
            messages = [{"role": "user", "content": self.prompt}]
            body = {"model": self.model, "messages": messages, "max_tokens": self.tokens, "stream": stream}
            headers = {"Content-Type": "application/json", "Host": self.host}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
            response = connection.getresponse()
            return self._read(replace(began, status=response.status), response, now_s)
        finally:
            connection.close()

    def _read(self, asked: Asked, response: http.client.HTTPResponse, now_s: Callable[[], float]) -> Asked:
        first = response.read1(1 << 16) if response.status == 200 else b""
        asked = replace(asked, first_byte_s=now_s() if first else None)
        text, problem = first, ""
        try:
            text += response.read()
        except (OSError, http.client.HTTPException) as error:
            text += getattr(error, "partial", b"")
            problem = repr(error)
        if response.status != 200:
            return replace(asked, code=_code(text), retry_after="Retry-After" in response.headers, problem=problem)
        said = text.decode("utf-8", "replace")
        asked = replace(asked, node=self.node_of(said), problem=problem)
        if asked.stream:
            return _streamed(asked, said, self.tokens if self.least is None else self.least)
        with suppress(ValueError, KeyError):
            return replace(asked, done=bool(json.loads(said)["choices"]) and not problem)
        return replace(asked, problem=problem or said[-200:])


def _code(text: bytes) -> str:
    with suppress(ValueError, KeyError, TypeError):
        error = json.loads(text)["error"]
        return str(error.get("sbproxy_reason") or error.get("code") or "")
    return text[:80].decode("utf-8", "replace")


def _streamed(asked: Asked, text: str, least: int) -> Asked:
    events = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    terminated = text.endswith("data: [DONE]\n\n")
    errors = [_code(event.encode()) for event in events if event.startswith('{"error"')]
    contents = sum('"content":' in event for event in events)
    done = terminated and not errors and not asked.problem and contents >= least
    return replace(asked, done=done, terminated=terminated, code=errors[0] if errors else "")


# --- what runs on a machine


def engines_of(at_s: float, node: str, records: Path) -> Engines:
    """Processes that live, out of the records that a node keeps of what it started."""
    running: list[Slot] = []
    for path in sorted(records.glob("*.json")):
        with suppress(OSError, ValueError, KeyError):
            record = json.loads(path.read_text())
            state = Path(f"/proc/{record['pid']}/stat").read_text().rsplit(")", 1)[1].split()
            if state[0] not in "ZX" and int(state[19]) == record["start_ticks"]:
                running.append((record["deployment"], record["generation"], record["replica"]))
    return Engines(at_s, node, tuple(running))


# --- the recorder


class Recorder:
    """Collects from threads of its own while its `with` block lasts; `history` at any time. `looks`: by node, its status document, and of a gateway how
    often it asked another replica."""

    def __init__(
        self,
        nodes: Iterable[str],
        looks: Mapping[str, Callable[[], Document]],
        *,
        engines: Callable[[float, str], Engines] | None = None,
        failovers: Mapping[str, Callable[[], int]] | None = None,
        every_s: float = 0.25,
    ) -> None:
        self.nodes = frozenset(nodes)
        self._looks = dict(looks)
        self._engines = engines
        self._failovers = dict(failovers or {})
        self._every_s = every_s
        self._events: list[Event] = []
        self._revoked: set[str] = set()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._began_s = time.monotonic()

    def now_s(self) -> float:
        return time.monotonic() - self._began_s

    def note(self, *events: Event) -> None:
        self._events.extend(events)

    def __enter__(self) -> Self:
        for node in self._looks:
            self._begin(self._watch, node)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _begin(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _watch(self, node: str) -> None:
        while not self._stop.wait(self._every_s):
            if self._engines is not None:
                self.note(self._engines(self.now_s(), node))
            with suppress(OSError, http.client.HTTPException, ValueError):
                self.look(node)

    def look(self, node: str) -> Document:
        """Ask once, and note it. A node that does not answer tells nothing."""
        document = self._looks[node]()
        count = self._failovers.get(node)
        at_s = self.now_s()
        self.note(*events_of(document, at_s, self.nodes - self._revoked, None if count is None else count()))
        return document

    # Load

    def load(self, *gateways: Gateway, callers: int = 3, pause_s: float = 0.02) -> None:
        """Callers of each, one request after another, until the block ends."""
        for gateway in gateways:
            for number in range(callers):
                self._begin(self._call, gateway, number, pause_s)

    def _call(self, gateway: Gateway, number: int, pause_s: float) -> None:
        while not self._stop.wait(pause_s):
            number += 1
            self.note(gateway.ask(self.now_s, stream=number % gateway.whole_every != 0))

    # What is put to the cluster

    @contextmanager
    def fault(self, name: str, *nodes: str, refuses: bool = True) -> Iterator[None]:
        """While the block lasts. `nodes`: whose work may break off."""
        began_s = self.now_s()
        try:
            yield
        finally:
            self.note(Fault(began_s, self.now_s(), name, frozenset(nodes), refuses))

    def published(self, by: str, revision: int, digest: str) -> None:
        """Acknowledged just now."""
        self.note(Published(self.now_s(), by, (revision, digest)))

    def revoked(self, node: str, identity_epoch: int = 1) -> None:
        self.note(Revoked(self.now_s(), node, identity_epoch))
        self._revoked.add(node)

    def settles(self, observers: Iterable[str], within_s: float) -> None:
        """Until all of them have seen for `_CALM_S` that nothing is to be done. Raises AssertionError with what they see."""
        asked = sorted(observers)
        end_s = time.monotonic() + within_s
        calm_since_s: float | None = None
        while calm_since_s is None or time.monotonic() - calm_since_s < _CALM_S:
            seen = {node: self._unsettled(node) for node in asked}
            left = {node: what for node, what in seen.items() if what is not None}
            if left:
                calm_since_s = None
            elif calm_since_s is None:
                calm_since_s = time.monotonic()
            assert not left or time.monotonic() < end_s, left
            time.sleep(self._every_s)

    def _unsettled(self, node: str) -> object:
        """What it sees that is to be done, or why it does not answer; None: nothing."""
        try:
            document = self.look(node)
        except (OSError, http.client.HTTPException, ValueError) as error:
            return repr(error)
        return None if is_settled(document, self.nodes - self._revoked) else _short(document)

    # What comes of it

    def history(self, *, exclusive: Iterable[str] = (), limits: Limits | None = None) -> History:
        return History(tuple(self._events), self.nodes, frozenset(exclusive), limits or Limits())

    def holds(self, *, exclusive: Iterable[str] = (), limits: Limits | None = None) -> History:
        """Prints the figures. Raises AssertionError with every violation."""
        history = self.history(exclusive=exclusive, limits=limits)
        print(report(history))
        violations = check(history)
        assert not violations, "\n".join([*violations[:20], report(history)])
        return history


def _short(document: Document) -> object:
    return {
        "store": document["store"]["state"],
        "problem": document["problem"],
        "local_problems": document["local_problems"],
        "brake": document["brake"],
        "nodes": {row["node_id"]: row["exclusion_reason"] or row["health"] for row in document["nodes"]},
        "deployments": {
            one["deployment_id"]: (
                one["phase"],
                one["ready_replicas"],
                one["desired_replicas"],
                one["unplaced_replicas"],
            )
            for one in document["deployments"]
        },
    }

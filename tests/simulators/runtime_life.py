"""A scripted life of what a runtime keeps on disk, and what the next one reads of it.

`live` performs SCRIPT and tells each operation that returned; `seen` is what a new runtime finds. Whatever stops the life after k operations
returned, it must find exactly what stood after k or after k + 1. Operations are those of the daemon: one database, and files beside it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.node.drain_file import clear_drain, read_drain, write_drain
from sbctl.node.paths import NodePaths
from sbctl.runtime.assigned import assigned_artifacts
from sbctl.runtime.audit import verify_audit
from sbctl.runtime.deployments_revision import DEPLOYMENTS_COPY
from sbctl.runtime.job_rows import JobRow
from sbctl.runtime.ownership import OwnershipRecord, OwnershipRecords
from sbctl.runtime.store import RuntimeStore
from sbctl.runtime.unit_records import UnitRecord, UnitRecords
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.verifier import verify_bundle
from tests.simulators.artifact_samples import artifact_of
from tests.simulators.runtime_world import SCOPE, Operator, content, member

__all__ = ["SCRIPT", "golden", "live", "paths_below", "seen"]

SCRIPT: Final = (
    "open", "accept 1", "job", "job ends", "stop q", "engine", "release q", "accept 2", "unit", "seed", "replace", "drain", "accept owned",
    "reopen", "engine ends", "note", "observe", "unit ends", "in service", "clear", "accept 5", "reopen", "job",
)  # fmt: skip

_OWNER: Final = OwnershipRecord(
    token="0" * 16,
    pid=4711,
    start_ticks=1,
    boot_id="b",
    deployment="q",
    replica=0,
    generation=1,
    program="/opt/llama-server",
    address="127.0.0.1:1",
)
_UNIT: Final = UnitRecord(
    token="1" * 16,
    unit=f"sbctl-engine-q-g1-r0-{'1' * 16}.service",
    deployment="q",
    replica=0,
    generation=1,
    started_as="0" * 64,
    port=4711,
)
_JOB: Final = JobRow("01J00000000000000000000001", "pull", "q", "queued", 1, 1)


def paths_below(root: Path) -> NodePaths:
    return NodePaths(root / "etc", root / "state", root / "cache", root / "opt")


@functools.cache
def _facts() -> ArtifactFacts:
    return artifact_of({"w.gguf": b"weights"}, "file:/w")


def _member(depth: int) -> DeploymentMember:
    return member(_facts(), "/opt/llama-server", max_concurrency=depth)


@functools.cache
def _bundle(revision: int) -> tuple[str, Any]:
    """One envelope and one operator for all lives, so that they can be compared."""
    operator = _operator()
    envelope = operator.bundle(content({"q": _member(revision)}), revision)
    verified = verify_bundle(envelope, trust=operator.trust, scope=SCOPE, fence=None, now=SYSTEM_CLOCK.now())
    return envelope, verified


@functools.cache
def _operator() -> Operator:
    return Operator()


class _Life:
    def __init__(self, root: Path) -> None:
        self.paths = paths_below(root)
        self.store: RuntimeStore | None = None

    def do(self, operation: str) -> None:
        name, _, number = operation.partition(" ")
        if name in ("open", "reopen"):
            self.close()
            self.store = RuntimeStore(self.paths.database, self.paths.bundle)
            self.store.accepted()
        elif name == "accept":
            envelope, verified = _bundle(4 if number == "owned" else int(number))
            self._open.accept(verified, envelope, admin_managed=number == "owned")
        else:
            _DO[operation](self)

    @property
    def _open(self) -> RuntimeStore:
        assert self.store is not None
        return self.store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()

    def replace(self) -> None:
        self._open.replace_admin_deployments(1, {"q": _member(7), "r": _member(1)}, ("q",))

    def observe(self) -> None:
        fs.write_atomic(self.paths.state / "observed_memory.json", b'{"observed":[]}')


_DO: Final[Mapping[str, Callable[[_Life], object]]] = {
    "job": lambda life: life._open.put_job(_JOB),
    "job ends": lambda life: life._open.put_job(replace(_JOB, state="ready", updated_at_ms=2)),
    "stop q": lambda life: life._open.set_stopped("q", True),
    "release q": lambda life: life._open.set_stopped("q", False),
    "seed": lambda life: life._open.seed_admin_deployments({"q": _member(5)}),
    "replace": _Life.replace,
    "note": lambda life: life._open.audit("login", "ops"),
    "clear": lambda life: life._open.forget_bundle(),
    "engine": lambda life: OwnershipRecords(life.paths.engine_records).write(_OWNER),
    "engine ends": lambda life: OwnershipRecords(life.paths.engine_records).remove(_OWNER.token),
    "unit": lambda life: UnitRecords(life.paths.engine_records / "units").write(_UNIT),
    "unit ends": lambda life: UnitRecords(life.paths.engine_records / "units").remove(_UNIT.token),
    "drain": lambda life: write_drain(life.paths, by="ops", since="now"),
    "in service": lambda life: clear_drain(life.paths),
    "observe": _Life.observe,
}


def live(root: Path, returned: Callable[[], None], between: Callable[[], None] = lambda: None) -> None:
    """To its end, or to the first error. `root/state` is there. `between` runs after each operation that was told."""
    life = _Life(root)
    try:
        for operation in SCRIPT:
            life.do(operation)
            returned()
            between()
    finally:
        life.close()


def seen(root: Path) -> dict[str, Any]:
    """What a runtime finds that starts there. It repairs what it may repair, and nothing may be half there."""
    paths = paths_below(root)
    store = RuntimeStore(paths.database, paths.bundle)
    try:
        fence, accepted, owned = store.fence(), store.accepted(), store.admin_deployments()
        audit = verify_audit(paths.database)
        assert audit.broken_at is None, audit.why
        envelope = None if accepted is None else _bundle(accepted.payload.revision)[0]
        assert (paths.bundle.read_text() if paths.bundle.exists() else None) == envelope
        copy = paths.state / DEPLOYMENTS_COPY
        assert (copy.read_text() if copy.exists() else None) == (None if owned is None else owned.row[2])
        assert assigned_artifacts(paths.bundle) is not None
        records = list(OwnershipRecords(paths.engine_records).read())
        assert all(record is not None for _path, record in records), "half a record"
        observed = paths.state / "observed_memory.json"
        return {
            "fence": None if fence is None else (fence.key_epoch, fence.revision, fence.content_digest),
            "accepted": None if accepted is None else (accepted.payload.revision, accepted.signer),
            "owned": None if owned is None else (owned.revision, owned.content_digest),
            "stopped": sorted(store.stopped()),
            "jobs": [(job.id, job.state) for job in store.jobs()],
            "audit": audit.entries,
            "engines": [path.name for path, _record in records],
            "units": [record.unit for record in UnitRecords(paths.engine_records / "units").read()],
            "drained": read_drain(paths),
            "observed": json.loads(observed.read_bytes()) if observed.exists() else None,
        }
    finally:
        store.close()


def golden(root: Path) -> list[dict[str, Any]]:
    """What is found before the first operation and after each."""
    (root / "state").mkdir(parents=True)
    trace = [_seen_in_a_copy(root)]
    live(root, lambda: trace.append(_seen_in_a_copy(root)))
    return trace


def _seen_in_a_copy(root: Path) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(dir=root.parent) as name:
        copy = Path(name) / "node"
        shutil.copytree(root, copy, ignore=shutil.ignore_patterns("*-shm"))
        with contextlib.suppress(FileNotFoundError):
            return seen(copy)
    raise AssertionError("nothing was copied")

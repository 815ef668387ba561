"""`serve --locked`: a runtime that was started by hand serves what was locked, or does not begin to listen."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.cache_calls import CacheCalls
from sbctl.artifacts.lockfile import LOCK_NAME, WantedModel, lock_of, write_lock
from sbctl.base.errors import SbctlError, UsageError
from sbctl.node.paths import node_paths
from sbctl.runtime import daemon
from sbctl.runtime.locked_models import refuse_drifted_models
from sbctl.runtime.settings import load_settings
from tests.simulators.runtime_world import SCOPE, content, member, weights


class Place:
    """A configuration file with one model, its lockfile and its cache."""

    def __init__(self, folder: Path) -> None:
        self.paths = node_paths(0, {"SBCTL_NODE_PREFIX": str(folder)})
        self.file = folder / "mine.json"
        self.facts = weights(folder, "chat")
        self.member = member(self.facts, "/engine")
        runtime = {"lineage": "mine", "host": SCOPE, "http_bind_port": 1}
        document = {"runtime": runtime, "content": content({"chat": self.member}).model_dump(mode="json")}
        self.file.write_text(json.dumps(document))

    def lock(self, version: str | None = None) -> None:
        engine = self.member.engine
        write_lock(
            self.file.parent / LOCK_NAME,
            lock_of([WantedModel(self.facts, engine.engine, version or engine.version)], now_ms=0),
        )

    def fetch(self) -> None:
        calls = CacheCalls(ArtifactCache(self.paths.models), {})
        calls.pull(self.facts, asyncio.run, progress=lambda _done, _total: None)

    def refusal(self) -> str | None:
        try:
            refuse_drifted_models(load_settings(self.paths, self.file), self.file)
        except SbctlError as error:
            return f"{error.code}: {error}"
        return None


def test_a_file_is_held_to_its_lock_and_its_cache(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert "models_lock.missing" in (place.refusal() or "")
    place.lock()
    assert "not in the cache" in (place.refusal() or "")
    place.fetch()
    assert place.refusal() is None
    place.lock(version="another")
    assert "models_lock.drift" in (place.refusal() or "")


def test_a_drifted_runtime_ends_before_anything_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place(tmp_path)
    place.lock()
    monkeypatch.setenv("SBCTL_NODE_PREFIX", str(tmp_path))
    monkeypatch.setattr("os.umask", lambda _mask: 0)
    monkeypatch.setattr(daemon, "configure_logging", lambda: None)
    monkeypatch.setattr(daemon, "die_with_supervisor", lambda: None)
    monkeypatch.setattr(daemon, "Daemon", lambda *_: pytest.fail("it went on"))
    monkeypatch.setattr(socket.socket, "bind", lambda *_: pytest.fail("it listens"))
    with pytest.raises(SbctlError) as caught:
        daemon.run_serve(["--config", str(place.file), "--locked"])
    assert (caught.value.code, int(caught.value.exit_code)) == ("models_lock.drift", 4)


def test_a_bundle_has_no_lockfile_beside_it(tmp_path: Path) -> None:
    place = Place(tmp_path)
    with pytest.raises(UsageError):
        refuse_drifted_models(load_settings(place.paths, place.file), None)

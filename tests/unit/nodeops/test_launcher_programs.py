"""Which programs of the user's root lists for the launcher: on a worker of a cluster those of its configuration, elsewhere those of the bundle."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from sbctl.node.cluster_config import ClusterConfig, ClusterStoreServer
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.runtime.nodeops import launcher_units
from sbctl.runtime.nodeops.launcher_units import install_launcher
from sbctl.runtime.nodeops.programs import Finished

OWN, OTHER, OLD = "/usr/local/bin/llama-server", "/opt/llama/llama-server", "/opt/old/llama-server"


def config(*programs: str, roles: Sequence[str] = ("worker",), cluster: bool = True) -> RuntimeConfig:
    node = ClusterConfig(
        cluster_id="prod",
        node_id="w1",
        roles=tuple(roles),  # type: ignore[arg-type]
        store=(ClusterStoreServer(node_id="a", address="10.0.0.1", port=4222),),
        programs=programs,
    )
    return RuntimeConfig(lineage="fleet-1", host="w1", cluster=node if cluster else None)


@pytest.mark.parametrize(
    ("listed", "former", "now", "after"),
    [
        ([], None, config(OWN), [OWN]),
        ([OLD], config(cluster=False), config(OWN), [OLD, OWN]),
        ([OLD, OWN], config(OWN), config(OTHER), [OTHER, OWN]),
        ([OTHER, OWN], config(OTHER), config(OTHER), [OTHER]),
        ([OWN], config(OWN), config(), [OWN]),
        ([OWN], config(), config(), []),
        ([OWN], None, config(cluster=False), [OWN]),
        ([OWN], None, config(roles=("gateway",)), [OWN]),
        ([], None, config("llama-server"), ["/found/llama-server"]),
    ],
)
def test_root_lists_what_the_cluster_may_start_here(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    listed: list[str],
    former: RuntimeConfig | None,
    now: RuntimeConfig,
    after: list[str],
) -> None:
    paths = NodePaths(tmp_path / "etc", tmp_path / "state", tmp_path / "cache", tmp_path / "opt")
    paths.etc.mkdir()
    monkeypatch.setattr(launcher_units, "_UNITS", tmp_path)
    monkeypatch.setattr(launcher_units, "render_launcher", lambda _version: {})
    monkeypatch.setattr(launcher_units, "_ctl", lambda *_words, **_options: Finished(0, ""))
    monkeypatch.setattr(launcher_units, "find_llama_server", lambda _path: Path("/found/llama-server"))
    site = paths.etc / "launcher.json"
    document = {"schema_version": 1, "engines": "/opt/e", "weights": ["/w"], "programs": listed, "away_s": 60.0}
    site.write_text(json.dumps(document))
    install_launcher(paths, paths.opt / "1", now, former)
    assert json.loads(site.read_text())["programs"] == after

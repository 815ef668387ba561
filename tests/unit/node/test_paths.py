"""Where files of ours live, for root, for a user, for a prefix; and that the module runs on old interpreters."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sbctl.node import facts, paths
from sbctl.node.paths import node_paths

USER_ID = 4711
HOME = {"HOME": "/home/ops"}


@pytest.mark.parametrize(
    ("uid", "env", "expected"),
    [
        (0, {}, ("/etc/sbctl", "/var/lib/sbctl", "/var/cache/sbctl", "/opt/sbctl")),
        (
            0,
            {"HOME": "/elsewhere", "XDG_STATE_HOME": "/x"},
            ("/etc/sbctl", "/var/lib/sbctl", "/var/cache/sbctl", "/opt/sbctl"),
        ),
        (0, {"SBCTL_NODE_PREFIX": "/p"}, ("/p/etc", "/p/state", "/p/cache", "/p/opt")),
        (USER_ID, {**HOME, "SBCTL_NODE_PREFIX": "/p"}, ("/p/etc", "/p/state", "/p/cache", "/p/opt")),
        (
            USER_ID,
            HOME,
            (
                "/home/ops/.config/sbctl-runtime",
                "/home/ops/.local/state/sbctl",
                "/home/ops/.cache/sbctl",
                "/home/ops/.local/share/sbctl",
            ),
        ),
        (
            USER_ID,
            {**HOME, "XDG_CONFIG_HOME": "/c", "XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/k", "XDG_DATA_HOME": "/d"},
            ("/c/sbctl-runtime", "/s/sbctl", "/k/sbctl", "/d/sbctl"),
        ),
        (
            USER_ID,
            {**HOME, "XDG_STATE_HOME": "relative"},
            (
                "/home/ops/.config/sbctl-runtime",
                "/home/ops/.local/state/sbctl",
                "/home/ops/.cache/sbctl",
                "/home/ops/.local/share/sbctl",
            ),
        ),
    ],
)
def test_directories_by_user_and_environment(uid: int, env: dict[str, str], expected: tuple[str, ...]) -> None:
    found = node_paths(uid, env)
    assert (str(found.etc), str(found.state), str(found.cache), str(found.opt)) == expected


@pytest.mark.parametrize(
    ("uid", "env"), [(0, {"SBCTL_NODE_PREFIX": "relative"}), (2**31 - 7, {}), (2**31 - 7, {"HOME": "x"})]
)
def test_what_gives_no_absolute_path_is_refused(uid: int, env: dict[str, str]) -> None:
    with pytest.raises(ValueError, match=r"absolute|home"):
        node_paths(uid, env)


def test_names_in_the_directories_are_the_contract_between_both_sides() -> None:
    found = node_paths(0, {"SBCTL_NODE_PREFIX": "/p"})
    assert {
        name: str(getattr(found, name))
        for name in (
            "staging",
            "blobs",
            "marker",
            "runtime_config",
            "trust",
            "control_socket",
            "models",
            "engines",
            "current",
        )
    } == {
        "staging": "/p/state/staging",
        "blobs": "/p/state/staging/blobs",
        "marker": "/p/etc/marker.json",
        "runtime_config": "/p/etc/runtime.json",
        "trust": "/p/etc/trust.json",
        "control_socket": "/p/state/control.sock",
        "models": "/p/cache/models",
        "engines": "/p/opt/engines",
        "current": "/p/opt/current",
    }
    assert str(found.version("0.1.0")) == "/p/opt/0.1.0"


@pytest.mark.parametrize("module", [paths, facts])
def test_the_modules_sent_as_text_parse_on_python_3_8_and_import_only_the_standard_library(module: object) -> None:
    source = Path(str(module.__file__)).read_text()  # type: ignore[attr-defined]
    tree = ast.parse(source, feature_version=(3, 8))
    imported = {
        name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= {
        "__future__",
        "collections",
        "dataclasses",
        "datetime",
        "json",
        "os",
        "pathlib",
        "pwd",
        "re",
        "subprocess",
        "sys",
        "typing",
        "sbctl",
    }
    assert "slots=True" not in source

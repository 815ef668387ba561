"""docs/dependencies.md names every dependency, once, in the right section, with a reason."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def _sections() -> dict[str, dict[str, str]]:
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)$", text, flags=re.MULTILINE)[1:]
    return {
        title: dict(re.findall(r"^\| `([^`]+)` \| (.+) \|$", body, re.MULTILINE))
        for title, body in zip(parts[::2], parts[1::2], strict=True)
    }


def _listed(file: str) -> set[str]:
    lines = (ROOT / "requirements" / file).read_text(encoding="utf-8").splitlines()
    return {line.strip() for line in lines if line.strip() and not line.startswith(("#", "-"))}


PROJECT = {
    re.split(r"[<>=!~\[ ]", line)[0]
    for line in tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
}


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("On hosts and on the operator's machine", _listed("runtime.in")),
        ("On the operator's machine only", PROJECT - _listed("runtime.in")),
        ("For development", _listed("dev.in")),
    ],
)
def test_each_dependency_has_its_reason(title: str, expected: set[str]) -> None:
    assert set(_sections()[title]) == expected


def test_what_is_said_to_be_unused_is_and_the_rest_is_used() -> None:
    modules = {
        "nats-py": "nats",
        "nvidia-ml-py": "pynvml",
        "pypi-simple": "pypi_simple",
        "prometheus-client": "prometheus_client",
        "ruamel.yaml": "ruamel",
    }
    sources = "\n".join(
        path.read_text(encoding="utf-8")
        for folder in ("sbctl", "providers", "examples", "tests")
        for path in (ROOT / folder).rglob("*.py")
    )
    for name, reason in {
        **_sections()["On hosts and on the operator's machine"],
        **_sections()["On the operator's machine only"],
    }.items():
        if name == "uv":
            continue  # a program, not a module
        imported = (
            re.search(rf"^\s*(?:import|from) {re.escape(modules.get(name, name))}\b", sources, re.MULTILINE) is not None
        )
        assert imported != reason.endswith("not used yet"), name

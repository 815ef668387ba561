"""Files as SBproxy's users have them: each loads, or fails for the right reason. Our own of the same forms, and a directory of real ones."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, SbctlError
from sbctl.config.catalog_file import read_catalog_file
from sbctl.config.diagnose import Report
from sbctl.config.load import load

FIXTURES = Path(__file__).parents[2] / "fixtures" / "config"
RIGHT_REASONS = {"config.not_available", "config.unenforced", "config.unset_variable", "config.rule"}
"""What may stop a file of SBproxy's: a form that comes later, a restriction that is not enforced, a variable of the node, a cluster of which it
tells one node alone."""


@pytest.mark.parametrize(
    ("name", "environ", "codes"),
    [
        ("managed.yml", {}, set()),
        ("managed.yml", {"FIXTURE_CACHE": "relative"}, {"config.bad_value"}),
        (
            "cluster_shared_key.yml",
            {},
            {"config.unset_variable", "config.unenforced", "config.rule"},
        ),
        ("cluster_shared_key.yml", {"FIXTURE_NODE": "a"}, {"config.unenforced", "config.rule"}),
        ("cluster_mtls.yml", {}, {"file.missing", "config.rule"}),
        ("serving.yml", {}, set()),
        ("guarded.yml", {}, {"config.unenforced"}),
        ("relative_cache.yml", {}, {"config.bad_value"}),
    ],
)
def test_fixtures(name: str, environ: dict[str, str], codes: set[str]) -> None:
    try:
        load(FIXTURES / name, environ=environ)
    except ConfigError as error:
        assert {finding.code for finding in error.diagnostics} == codes
    else:
        assert codes == set()


def test_what_a_managed_file_becomes() -> None:
    config = load(FIXTURES / "managed.yml", environ={})
    host = config.hosts["local"]
    assert set(host.origins) == {"127.0.0.1", "localhost"}
    deployment = host.deployments["small"]
    assert (deployment.engine_policy.launch, deployment.engine_policy.version) == ("binary", "b9905")
    assert {note.code for note in config.notes} == {"config.unused_engine", "config.not_managed"}


def _corpus() -> list[Path]:
    root = os.environ.get("SBCTL_CORPUS")
    return sorted((*Path(root).rglob("*.yml"), *Path(root).rglob("*.yaml"))) if root else []


@pytest.mark.skipif(not _corpus(), reason="optional: SBCTL_CORPUS names no directory of configuration files")
@pytest.mark.parametrize("path", _corpus(), ids=str)
def test_a_directory_of_real_files(path: Path) -> None:
    if path.suffix == ".yaml":
        report = Report()
        assert read_catalog_file(report, path, None) is not None, report.diagnostics
        return
    try:
        load(path, environ={})
    except ConfigError as error:
        assert {finding.code for finding in error.diagnostics} <= RIGHT_REASONS
    except SbctlError as error:
        pytest.fail(f"{path}: {error}")

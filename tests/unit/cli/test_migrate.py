"""`sbctl migrate` rewrites a file once, and `bundle export --by-hand` writes what a runtime can be started on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sbctl.base.errors import ExitCode
from sbctl.cli.main import main
from sbctl.node.paths import NodePaths
from sbctl.runtime.settings import load_settings
from tests.simulators.provider_world import QUICKSTART

pytestmark = pytest.mark.flow

LEGACY = """\
# ours
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - name: local   # here
          serve: {models: [{model: smollm2-135m-instruct, variant: q4_1, reference: {model: gpt}}]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path / "sb.yml"


def test_a_file_is_rewritten_in_place_and_once(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(LEGACY)
    assert main(["migrate", "--print"]) == ExitCode.DONE
    shown = capsys.readouterr()
    assert file.read_text() == LEGACY
    assert main(["migrate", "--format", "json"]) == ExitCode.DONE
    told = json.loads(capsys.readouterr().out)
    assert shown.out.strip() == file.read_text().strip()
    assert told["changed"] is True
    assert told["deployments"][0].startswith("legacy-local-smollm2-135m-instruct-")
    assert "reference is left out" in told["left_out"][0]
    assert {"# ours", "- name: local # here"} <= {" ".join(line.split()) for line in file.read_text().splitlines()}
    assert main(["validate"]) == ExitCode.DONE
    assert main(["migrate"]) == ExitCode.DONE
    assert "nothing to rewrite" in capsys.readouterr().err


def test_what_cannot_be_rewritten_is_exit_3_and_untouched(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_text(LEGACY.replace("reference: {model: gpt}", "gguf_file: a.gguf"))
    before = file.read_text()
    assert main(["migrate"]) == ExitCode.INVALID
    assert "gguf_file" in capsys.readouterr().err
    assert file.read_text() == before


def test_a_runtime_can_be_started_on_what_is_exported_by_hand(file: Path) -> None:
    file.write_text(QUICKSTART)
    out = file.with_name("local.json")
    assert main(["bundle", "export", "--by-hand", "--out", str(out)]) == ExitCode.DONE
    folder = file.parent
    found = load_settings(NodePaths(folder / "a", folder / "b", folder / "c", folder / "d"), out)
    assert found.content is not None
    assert list(found.content.deployments) == ["chat"]
    assert (found.config.host, found.config.http_bind_port, found.file) == ("local", 8080, out)
    assert main(["bundle", "export", "--by-hand", "--host", "nobody", "--out", str(out)]) == ExitCode.INVALID

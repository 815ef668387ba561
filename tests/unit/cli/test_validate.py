"""`sbctl validate` is offline: whatever became of the state, a file is judged by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ExitCode
from sbctl.cli.main import main

FILE = (
    "fleet: {name: prod, state: {backend: http, address: 'http://127.0.0.1:1/state'}}\nproxy: {http_bind_port: 8080}\n"
)


def test_no_state_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sb.yml").write_text(FILE)
    assert main(["validate"]) == ExitCode.DONE
    assert not (tmp_path / ".sbctl").exists()
    (tmp_path / ".sbctl").mkdir()
    (tmp_path / ".sbctl" / "state.db").write_bytes(b"damaged")
    assert main(["validate"]) == ExitCode.DONE
    assert main(["plan"]) != ExitCode.DONE

"""The server that the `http` tests use is held against the client whose protocol it speaks: terraform's own http backend."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.simulators.state_server import StateServer, serving

pytestmark = pytest.mark.integration

MAIN = """
terraform {{
  backend "http" {{
    address = "{address}"
    lock_address = "{lock}"
    unlock_address = "{lock}"
    lock_method = "{lock_method}"
    unlock_method = "{unlock_method}"
    username = "ops"
    password = "let me in"
    retry_max = 0
  }}
}}
resource "terraform_data" "one" {{ input = "{value}" }}
"""


def terraform(directory: Path, *arguments: str, expect: int = 0) -> str:
    program = shutil.which("terraform")
    if program is None:
        pytest.skip("optional: terraform is not on this machine")
    done = subprocess.run(
        [program, f"-chdir={directory}", *arguments, "-no-color"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, timeout=240, check=False,
        env={"PATH": os.defpath, "HOME": str(directory), "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "NO_PROXY": "127.0.0.1"},
    )  # fmt: skip
    assert done.returncode == expect, done.stdout.decode()
    return done.stdout.decode()


def write(directory: Path, server: StateServer, value: str) -> None:
    lock = server.url("/state/lock") if server.gitlab else server.url()
    methods = ("POST", "DELETE") if server.gitlab else ("LOCK", "UNLOCK")
    text = MAIN.format(address=server.url(), lock=lock, lock_method=methods[0], unlock_method=methods[1], value=value)
    (directory / "main.tf").write_text(text)


@pytest.mark.parametrize("gitlab", [False, True])
def test_terraform_keeps_its_state_there(tmp_path: Path, gitlab: bool) -> None:
    with serving(gitlab=gitlab, user="ops", password="let me in") as server:
        write(tmp_path, server, "first")
        terraform(tmp_path, "init", "-input=false")
        terraform(tmp_path, "apply", "-auto-approve", "-input=false")
        first = server.place().json
        assert first["resources"][0]["instances"][0]["attributes"]["input"]["value"] == "first"
        assert server.place().holder is None
        write(tmp_path, server, "second")
        terraform(tmp_path, "apply", "-auto-approve", "-input=false")
        assert (server.place().json["lineage"], server.place().json["serial"] > first["serial"]) == (
            first["lineage"],
            True,
        )
        held = {
            "ID": "1f3b",
            "Operation": "OperationTypeApply",
            "Info": "",
            "Who": "amy@ci",
            "Version": "1",
            "Created": "2026-11-29T12:00:00Z",
            "Path": "",
        }
        server.place().holder = held
        said = terraform(tmp_path, "plan", "-input=false", expect=1)
        assert "ID=1f3b" in said
        assert json.dumps(server.place().holder) == json.dumps(held)

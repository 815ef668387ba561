"""`sbctl models` on a directory of this machine: what is told, what changes, and how it ends."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sbctl.artifacts.lockfile import LOCK_NAME
from sbctl.base.digests import sha256_bytes
from sbctl.base.scrypt import scrypt_matches
from sbctl.cli.main import main
from sbctl.node.paths import PREFIX_VARIABLE
from tests.simulators.gguf_files import tiny_gguf

pytestmark = pytest.mark.flow

SB = """\
proxy:
  model_host:
    catalog_file: models.yaml
    offline: {offline}
    deployments: {{chat: {{model: tiny, variant: q4, engine: llama_cpp}}}}
origins:
  localhost: {{action: {{type: ai_proxy, providers: [{{name: l, provider_type: managed_model, deployment: chat, models: [tiny]}}]}}}}
"""


class Site:
    """A directory with sb.yml, a catalog of two variants, and a node of its own that has no runtime."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.weights = {"q4": tiny_gguf(note="four"), "q8": tiny_gguf(note="eight")}
        self.file = root / "sb.yml"
        self.write()

    def write(self, *, offline: bool = False) -> None:
        for name, data in self.weights.items():
            (self.root / f"{name}.gguf").write_bytes(data)
        self.file.write_text(SB.format(offline=str(offline).lower()))
        variants = [
            {
                "id": name,
                "format": "gguf",
                "quant": name.upper(),
                "engines": ["llama_cpp"],
                "source": f"file:{self.root}/{name}.gguf",
                "revision": "1",
                "files": [{"path": f"{name}.gguf", "sha256": sha256_bytes(data), "size_bytes": len(data)}],
                "requirements": {"accelerators": ["cpu"], "min_memory_bytes": 1},
                "stability": "stable",
                "certification": "tests",
            }
            for name, data in self.weights.items()
        ]
        model = {"params": "1M", "family": "tiny", "license": "mit", "context_length": 512, "variants": variants}
        document = {"schema_version": 2, "catalog_revision": "t", "models": {"tiny": model}}
        (self.root / "models.yaml").write_text(json.dumps(document))


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv(PREFIX_VARIABLE, str(tmp_path / "node"))
    monkeypatch.chdir(tmp_path)
    return Site(tmp_path)


Sbctl = Callable[..., Any]


@pytest.fixture
def sbctl(site: Site, capsys: pytest.CaptureFixture[str]) -> Sbctl:
    """Runs one command, expects its exit code, and gives what it printed as JSON."""

    def run(*words: str, expect: int = 0) -> Any:
        capsys.readouterr()
        code = main(["models", *words, "-f", str(site.file), "--format", "json"])
        told = capsys.readouterr()
        assert code == expect, told
        return json.loads(told.out) if told.out else None

    return run


def row_of(body: Any, model: str) -> Any:
    return next(row for row in body["models"] if row["id"] == model)


def test_what_sbyml_needs_is_pulled_listed_and_removed(site: Site, sbctl: Sbctl) -> None:
    row = row_of(sbctl("list"), "tiny")
    assert (row["status"], row["selected_variant"], row["engine"], row["license"]) == (
        "not-pulled",
        "q4",
        "llama_cpp",
        "mit",
    )
    body = sbctl("pull")
    assert body["command"] == "models.pull"
    (pulled,) = body["artifacts"]
    assert (pulled["model"], pulled["variant"], pulled["was_present"]) == ("tiny", "q4", False)
    assert Path(pulled["snapshot_path"], "q4.gguf").read_bytes() == site.weights["q4"]
    assert pulled["snapshot_path"].startswith(str(site.root / "node" / "cache" / "models"))
    (again,) = sbctl("pull", "tiny", "--verify")["artifacts"]
    assert again["was_present"]
    assert again["verified"]["is_good"]
    row = row_of(sbctl("list"), "tiny")
    assert (row["status"], row["in_use"]) == ("cached", True)
    (error,) = sbctl("remove", "tiny", expect=4)["errors"]
    assert error["code"] == "artifact.configured"
    (gone,) = sbctl("remove", "tiny:q4", "--force")["artifacts"]
    assert gone["reclaimed_bytes"] == len(site.weights["q4"])
    assert sbctl("remove", "tiny")["artifacts"] == []


def test_damage_is_named_and_the_next_pull_repairs_it(site: Site, sbctl: Sbctl) -> None:
    (pulled,) = sbctl("pull", "tiny:q8")["artifacts"]
    weights = Path(pulled["snapshot_path"], "q8.gguf")
    weights.chmod(0o600)
    weights.write_bytes(b"x" * len(site.weights["q8"]))
    body = sbctl("show", "tiny", "--verify", expect=1)
    assert body["errors"][0]["code"] == "artifact.digest_mismatch"
    assert "q8.gguf" in body["errors"][0]["message"]
    assert sbctl("list")["caches"][0]["quarantined"]
    sbctl("pull", "tiny:q8")
    assert sbctl("show", "tiny", "--verify")["cached"]
    pruned = sbctl("prune", "--all")["caches"][0]
    assert len(pruned["quarantined"]) == 1
    assert sbctl("list")["caches"][0]["quarantined"] == []


def test_a_damaged_copy_is_found_and_fetched_again_by_one_pull(site: Site, sbctl: Sbctl) -> None:
    (pulled,) = sbctl("pull", "tiny:q8", "--pin")["artifacts"]
    weights = Path(pulled["snapshot_path"], "q8.gguf")
    status = weights.stat()
    weights.chmod(0o600)
    weights.write_bytes(b"x" * len(site.weights["q8"]))
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert sbctl("pull", "tiny:q8")["artifacts"][0]["was_present"], "a seal cannot see this"
    (found,) = sbctl("pull", "tiny:q8", "--verify")["artifacts"]
    assert len(found["quarantined"]) == 1
    assert Path(found["snapshot_path"], "q8.gguf").read_bytes() == site.weights["q8"]


@pytest.mark.parametrize(
    ("words", "expect", "code"),
    [
        (("pull", "tinny"), 3, "catalog.unknown_model"),
        (("pull", "tiny:q5"), 3, "catalog.unknown_variant"),
        (("pull", "tiny:q4", "--variant", "q8"), 64, "usage"),
        (("show", "tinny"), 3, "catalog.unknown_model"),
        (("remove", "tinny"), 3, "catalog.unknown_model"),
        (("list", "--host", "nobody"), 3, "host.unknown"),
        (("list", "--host", "local", "--cache-dir", "/x"), 64, "usage"),
        (("verify-lock",), 3, "models_lock.missing"),
    ],
)
def test_what_cannot_be_done_says_why(sbctl: Sbctl, words: tuple[str, ...], expect: int, code: str) -> None:
    body = sbctl(*words, expect=expect)
    told = body["errors"][0] if "errors" in body else body["error"]
    assert told["code"] == code


def test_offline_takes_what_is_there_and_fetches_nothing(site: Site, sbctl: Sbctl) -> None:
    catalog = json.loads((site.root / "models.yaml").read_text())
    catalog["models"]["tiny"]["variants"][0]["source"] = "https://weights.example/q4.gguf"
    (site.root / "models.yaml").write_text(json.dumps(catalog))
    assert sbctl("pull", "--offline", expect=1)["errors"][0]["code"] == "artifact.offline_missing"
    theirs = site.root / "home/.ollama/models/blobs" / f"sha256-{sha256_bytes(site.weights['q4'])}"
    theirs.parent.mkdir(parents=True)
    theirs.write_bytes(site.weights["q4"])
    assert row_of(sbctl("list"), "tiny")["status"] == "not-pulled, importable from ollama"
    (pulled,) = sbctl("pull", "--offline")["artifacts"]
    assert (pulled["imported_from"], pulled["downloaded_bytes"]) == (["ollama"], 0)


def test_a_lock_holds_sbyml_and_the_cache_to_what_was_locked(site: Site, sbctl: Sbctl) -> None:
    (locked,) = sbctl("lock")["models"]
    assert (locked["name"], locked["variant"], locked["engine"]) == ("tiny", "q4", "llama_cpp")
    assert (site.root / LOCK_NAME).exists()

    def status(expect: int) -> str:
        body = sbctl("verify-lock", expect=expect)
        assert body["drift"] == (expect == 2)
        return str(body["models"][0]["status"])

    assert status(2) == "missing"
    sbctl("pull")
    assert status(0) == "ok"
    site.weights["q4"] = tiny_gguf(note="another")
    site.write()
    assert status(2) == "digest_mismatch"
    assert main(["apply", "--locked", "--yes", "-f", str(site.file)]) == 4
    assert not (site.root / ".sbctl").exists(), "nothing was begun"


def test_a_directory_is_a_cache_of_its_own(site: Site, sbctl: Sbctl) -> None:
    elsewhere = site.root / "elsewhere"
    sbctl("pull", "tiny:q4", "--cache-dir", str(elsewhere))
    assert row_of(sbctl("list", "--cache-dir", str(elsewhere)), "tiny")["status"] == "cached"
    assert row_of(sbctl("list"), "tiny")["status"] == "not-pulled"
    assert sbctl("prune", "--dry-run", "--cache-dir", str(elsewhere))["caches"][0]["reclaimed_bytes"] == 0


@pytest.mark.parametrize("words", [("ps",), ("load", "chat"), ("drain", "chat", "--deadline", "5")])
def test_without_a_runtime_here_it_says_where_to_ask(
    site: Site, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert main(["models", *words, "-f", str(site.file)]) == 1
    assert "host.no_runtime" in capsys.readouterr().err
    assert main(["audit", "verify", "-f", str(site.file), "--host", "gpu-9"]) == 3
    assert "host.unknown" in capsys.readouterr().err


def test_a_runtime_that_was_started_by_hand_is_not_said_to_be_missing(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = site.root / "node" / "state" / "control.sock"
    socket.parent.mkdir(parents=True)
    socket.touch()
    assert main(["models", "ps", "-f", str(site.file)]) == 1
    said = capsys.readouterr().err
    assert "started by hand" in said
    assert str(socket) in said


@pytest.mark.parametrize("head", ["x", "1", "1:abc", "-1:" + "0" * 64, "9" * 40 + ":" + "0" * 64])
def test_a_head_is_a_number_and_a_digest(site: Site, capsys: pytest.CaptureFixture[str], head: str) -> None:
    assert main(["audit", "verify", "-f", str(site.file), "--head", head]) == 64
    assert "NUMBER:DIGEST" in capsys.readouterr().err


def test_a_password_s_hash_is_one_line_that_sbyml_takes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("correct horse\nsecond line\n"))
    assert main(["admin", "hash-password"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert scrypt_matches(line, b"correct horse")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert main(["admin", "hash-password"]) == 3

"""`catalog add|check|update` against a hub on loopback: what is pinned, what stays as it was written, what is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import ArtifactError, ConfigError, RefusedError, SbctlError
from sbctl.catalog.proposal import Asked
from sbctl.cli import cataloging
from sbctl.cli.main import main
from sbctl.config.catalog_file import read_catalog_file
from sbctl.config.diagnose import Report
from tests.simulators.fake_hub import FakeHub, hub
from tests.simulators.gguf_files import tiny_gguf

pytestmark = pytest.mark.flow

GGUF, LARGER = tiny_gguf(note="x" * 900), tiny_gguf(layers=2, note="y" * 900)
CARD = {
    "cardData": {"license": "apache-2.0"},
    "gguf": {"total": 8_190_000_000, "architecture": "qwen3", "context_length": 40960},
}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with hub() as started:
        monkeypatch.setenv("HF_ENDPOINT", started.url)
        yield started


def entry(path: Path, model: str, variant: str) -> Any:
    report = Report()
    document = read_catalog_file(report, path, None)
    assert document is not None, report.diagnostics
    return next(one for one in document.models[model].variants if one.id == variant)


def added(path: Path, *arguments: str, **asked: Any) -> bool:
    proposal, _gated = cataloging.proposed(arguments[0], arguments[1:], Asked(**asked))
    return cataloging.add(proposal, path)


def test_a_model_is_pinned_to_its_commit_and_digests(server: FakeHub, tmp_path: Path) -> None:
    commit = server.publish("Qwen/Qwen3-8B-GGUF", {"Qwen3-8B-Q4_K_M.gguf": GGUF, "README.md": b"x"}, **CARD)
    catalog = tmp_path / "catalog.yml"
    assert added(catalog, "hf:Qwen/Qwen3-8B-GGUF")
    variant = entry(catalog, "qwen3-8b", "q4_k_m")
    assert (variant.source, variant.revision) == ("hf:Qwen/Qwen3-8B-GGUF", commit)
    assert [(file.path, file.sha256, file.size_bytes) for file in variant.files] == [
        ("Qwen3-8B-Q4_K_M.gguf", hashlib.sha256(GGUF).hexdigest(), len(GGUF))
    ]
    assert not added(catalog, "hf:Qwen/Qwen3-8B-GGUF")


def test_small_files_are_fetched_to_learn_their_digests(server: FakeHub, tmp_path: Path) -> None:
    config = json.dumps({"max_position_embeddings": 4096}).encode()
    files = {"model.safetensors": GGUF, "config.json": config, "run.py": b"import os"}
    server.publish("Org/Small", files, cardData={"license": "mit"}, safetensors={"total": 135_000_000})
    catalog = tmp_path / "catalog.yml"
    added(catalog, "hf:Org/Small")
    variant = entry(catalog, "small", "bf16")
    digests = {file.path: file.sha256 for file in variant.files}
    assert digests == {name: hashlib.sha256(files[name]).hexdigest() for name in ("config.json", "model.safetensors")}


@pytest.mark.parametrize(
    ("files", "wanted", "facts", "code"),
    [
        ({"a-Q4_0.gguf": GGUF, "a-Q8_0.gguf": GGUF}, (), CARD, "catalog.choose_file"),
        ({"a-Q4_0.gguf": GGUF}, ("a-Q5_0.gguf",), CARD, "catalog.no_such_file"),
        ({"a-00001-of-00002.gguf": GGUF}, (), CARD, "catalog.incomplete_set"),
        ({"a-00000-of-00000.gguf": GGUF}, (), CARD, "catalog.incomplete_set"),
        ({"a-00000-of-00000.gguf": GGUF}, ("a-00000-of-00000.gguf",), CARD, "catalog.incomplete_set"),
        ({"a-00002-of-00001.gguf": GGUF, "a-00001-of-00001.gguf": GGUF}, ("a-00002*",), CARD, "catalog.incomplete_set"),
        ({"pytorch_model.bin": GGUF}, (), CARD, "catalog.nothing_servable"),
        ({"a.gguf": GGUF, "x.py": b"pass"}, ("*",), CARD, "catalog.code_refused"),
        ({"m.safetensors": GGUF, "config.json": b'{"auto_map": {}}'}, (), CARD, "catalog.code_refused"),
        ({"m.safetensors": GGUF, "config.json": b"{"}, (), CARD, "catalog.config_invalid"),
        ({"a.gguf": GGUF}, (), {"cardData": {"license": "mit"}}, "catalog.unknown_context"),
        ({"a.gguf": b"GGUF" * 300}, (), CARD, "artifact.header_damaged"),
        ({"a.gguf": b"PK" * 600}, (), CARD, "artifact.header_damaged"),
        ({"a.gguf": GGUF}, (), {"gguf": {"context_length": 5}}, "catalog.unknown_license"),
    ],
)
def test_what_cannot_be_pinned_says_what_to_do(
    server: FakeHub, files: dict[str, bytes], wanted: tuple[str, ...], facts: dict[str, Any], code: str
) -> None:
    server.publish("Org/Repo", files, **facts)
    with pytest.raises(SbctlError) as caught:
        cataloging.proposed("hf:Org/Repo", wanted, Asked())
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (b"[]", "hub.answer_invalid"),
        (b"{", "hub.answer_invalid"),
        (b'{"sha": "main", "siblings": []}', "hub.answer_invalid"),
        (
            json.dumps(
                {"sha": "a" * 40, "siblings": [{"rfilename": "a.gguf", "size": 1, "lfs": {"sha256": "x"}}]}
            ).encode(),
            "hub.answer_invalid",
        ),
    ],
)
def test_a_hub_that_answers_nonsense_is_named(
    server: FakeHub, monkeypatch: pytest.MonkeyPatch, told: bytes, code: str
) -> None:
    server.publish("Org/Repo", {"a.gguf": GGUF}, **CARD)
    monkeypatch.setattr("tests.simulators.fake_hub.json.dumps", lambda _value: told.decode())
    with pytest.raises(ArtifactError) as caught:
        cataloging.proposed("hf:Org/Repo", (), Asked())
    assert caught.value.code == code


def test_a_path_that_leads_out_is_not_a_file_of_the_repository(server: FakeHub) -> None:
    server.publish("Org/Repo", {"../../etc/cron.d/x.gguf": GGUF, "ok.gguf": GGUF}, **CARD)
    proposal, _gated = cataloging.proposed("hf:Org/Repo", (), Asked())
    assert [file["path"] for file in proposal.variant["files"]] == ["ok.gguf"]


def test_every_part_of_a_split_set_is_taken(server: FakeHub, tmp_path: Path) -> None:
    parts = {f"q/m-Q4_0-0000{number}-of-00003.gguf": tiny_gguf(note="p" * 900 + str(number)) for number in (1, 2, 3)}
    server.publish("Org/Big-GGUF", parts, **CARD)
    added(tmp_path / "c.yml", "hf:Org/Big-GGUF", "q/m-Q4_0-00002-of-00003.gguf")
    assert [file.path for file in entry(tmp_path / "c.yml", "big", "q4_0").files] == sorted(parts)


def test_a_gated_repository_needs_the_token_and_it_is_not_kept(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.publish("Org/Gated", {"a.gguf": GGUF}, gated="manual", **CARD)
    server.gated["Org/Gated"] = "hf_canary"
    with pytest.raises(ArtifactError, match=r"hub\.refused"):
        cataloging.proposed("hf:Org/Gated", (), Asked())
    monkeypatch.setenv("HF_TOKEN", "hf_canary")
    proposal, gated = cataloging.proposed("hf:Org/Gated", (), Asked())
    assert gated
    assert cataloging.add(proposal, tmp_path / "c.yml")
    assert "hf_canary" not in (tmp_path / "c.yml").read_text()


def test_check_tells_true_newer_and_false_apart(server: FakeHub, tmp_path: Path) -> None:
    catalog = tmp_path / "c.yml"
    for name in ("Same", "Moved", "Lost"):
        server.publish(f"Org/{name}", {"a-Q4_0.gguf": GGUF}, **CARD)
        added(catalog, f"hf:Org/{name}")
    server.publish("Org/Same", {"a-Q4_0.gguf": GGUF, "README.md": b"new"}, **CARD)
    server.publish("Org/Moved", {"a-Q4_0.gguf": LARGER}, **CARD)
    server.repositories.pop("Org/Lost")
    found = {one.model: one.verdict for one in cataloging.check(catalog, ())}
    assert found == {"same": "true", "moved": "newer", "lost": "false"}
    assert {one.model for one in cataloging.check(catalog, ["moved:q4_0"])} == {"moved"}
    assert main(["catalog", "check", "--catalog", str(catalog)]) == 3
    assert main(["catalog", "check", "moved", "--catalog", str(catalog)]) == 0


def test_a_changed_digest_at_the_pinned_commit_is_false(server: FakeHub, tmp_path: Path) -> None:
    catalog = tmp_path / "c.yml"
    commit = server.publish("Org/Evil", {"a-Q4_0.gguf": GGUF}, **CARD)
    added(catalog, "hf:Org/Evil")
    server.repositories["Org/Evil"].commits[commit].files = {"a-Q4_0.gguf": GGUF[:-1] + b"!"}
    (finding,) = cataloging.check(catalog, ())
    assert (finding.verdict, finding.detail) == ("false", "a-Q4_0.gguf has other bytes than the catalog says")


def test_update_changes_its_entry_and_keeps_every_comment(server: FakeHub, tmp_path: Path) -> None:
    catalog = tmp_path / "c.yml"
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    server.publish("Org/Two", {"b-Q4_0.gguf": GGUF}, **CARD)
    added(catalog, "hf:Org/One")
    added(catalog, "hf:Org/Two")
    text = catalog.read_text().replace("license: apache-2.0", "license: apache-2.0  # read by legal")
    text = text.replace("- path: a-Q4_0.gguf", "# the weights\n          - path: a-Q4_0.gguf")
    catalog.write_text(text)
    before = entry(catalog, "two", "q4_0")
    commit = server.publish("Org/One", {"a-Q4_0.gguf": LARGER}, **CARD)
    (done,) = cataloging.update(catalog, "one", "main")
    assert (done.after, done.bytes_before, done.bytes_after, done.changed) == (commit, len(GGUF), len(LARGER), True)
    assert entry(catalog, "one", "q4_0").files[0].sha256 == hashlib.sha256(LARGER).hexdigest()
    assert entry(catalog, "two", "q4_0") == before
    written = catalog.read_text()
    assert written.count("# read by legal") == 2
    assert "# the weights" in written
    assert not cataloging.update(catalog, "one:q4_0", "main")[0].changed
    assert catalog.read_text() == written


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda path: cataloging.check(path, ["nobody"]), "catalog.unknown_model"),
        (lambda path: cataloging.check(path, ["one:nothing"]), "catalog.unknown_variant"),
        (lambda path: cataloging.update(path, "one", "nowhere"), "hub.unknown"),
        (lambda path: added(path, "hf:Org/One", variant_id="a b"), "catalog.entry_invalid"),
        (lambda path: added(path, "hf:Org/One", model_id="a/b"), "catalog.entry_invalid"),
        (lambda path: cataloging.proposed("https://x/y", (), Asked()), "catalog.reference_invalid"),
        (lambda path: cataloging.check(path.parent / "none.yml", ()), "file.missing"),
    ],
)
def test_refusals_leave_the_catalog_as_it_was(
    server: FakeHub, tmp_path: Path, act: Callable[[Path], object], code: str
) -> None:
    catalog = tmp_path / "c.yml"
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    added(catalog, "hf:Org/One")
    before = catalog.read_bytes()
    with pytest.raises(SbctlError) as caught:
        act(catalog)
    assert caught.value.code == code
    assert catalog.read_bytes() == before


def test_another_model_under_the_same_id_is_refused(server: FakeHub, tmp_path: Path) -> None:
    catalog = tmp_path / "c.yml"
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    added(catalog, "hf:Org/One")
    server.publish("Org/One", {"a-Q4_0.gguf": LARGER}, **CARD)
    with pytest.raises(RefusedError, match=r"catalog\.variant_exists"):
        added(catalog, "hf:Org/One")
    assert added(catalog, "hf:Org/One", variant_id="later")


def test_a_catalog_with_errors_is_not_touched(server: FakeHub, tmp_path: Path) -> None:
    catalog = tmp_path / "c.yml"
    catalog.write_text("schema_version: 2\nmodels: {a: {parms: 1B}}\n")
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    with pytest.raises(ConfigError):
        added(catalog, "hf:Org/One")


def test_the_catalog_is_the_one_that_sb_yml_names(tmp_path: Path) -> None:
    file = tmp_path / "sb.yml"
    assert cataloging.catalog_path(None, file) == tmp_path / "catalog.yml"
    file.write_text("proxy: {model_host: {catalog_file: models/mine.yml}}\n")
    assert cataloging.catalog_path(None, file) == tmp_path / "models" / "mine.yml"
    assert cataloging.catalog_path(Path("x.yml"), file) == Path("x.yml")


def test_what_no_engine_of_this_version_serves_is_added_and_said_so(
    server: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = json.dumps({"max_position_embeddings": 4096}).encode()
    server.publish("Org/Tensors", {"model.safetensors": GGUF, "config.json": config}, cardData={"license": "mit"})
    server.publish("Org/Gguf", {"a-Q4_0.gguf": GGUF}, **CARD)
    for repository, told in (("Org/Tensors", True), ("Org/Gguf", False)):
        assert main(["catalog", "add", f"hf:{repository}", "--catalog", str(tmp_path / "c.yml")]) == 0
        assert ("needs GGUF files" in capsys.readouterr().err) is told


def test_who_adds_to_a_catalog_that_sb_yml_does_not_name_is_told(
    server: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    file = tmp_path / "sb.yml"
    command = ["catalog", "add", "hf:Org/One", "-f", str(file)]
    for text, told in (("proxy: {}\n", True), ("proxy: {model_host: {catalog_file: catalog.yml}}\n", False)):
        file.write_text(text)
        assert main(command) == 0
        assert ("catalog_file: catalog.yml" in capsys.readouterr().err) is told


@pytest.mark.parametrize(
    ("status", "verdict", "words"),
    [(401, "false", "no such repository, or it is private"), (403, "false", "to this caller"), (503, None, "503")],
)
def test_a_hub_that_does_not_answer_says_nothing_about_an_entry(
    server: FakeHub, tmp_path: Path, status: int, verdict: str | None, words: str
) -> None:
    server.publish("Org/One", {"a-Q4_0.gguf": GGUF}, **CARD)
    added(tmp_path / "c.yml", "hf:Org/One")
    server.status = status
    if verdict is None:
        with pytest.raises(ArtifactError, match=words) as caught:
            cataloging.check(tmp_path / "c.yml", ())
        assert caught.value.next_step
        return
    (finding,) = cataloging.check(tmp_path / "c.yml", ())
    assert finding.verdict == verdict
    assert words in finding.detail


def test_json_and_print(server: FakeHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server.publish("Org/L", {"a-Q4_0.gguf": GGUF}, **{**CARD, "cardData": {"license": "llama3.1"}})
    catalog = tmp_path / "c.yml"
    command = ["catalog", "add", "hf:Org/L", "--catalog", str(catalog)]
    assert main([*command, "--print", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["license"] == {
        "id": "llama3.1", "name": "Llama 3.1 Community License", "spdx": None, "commercial_use": "conditional",
    }  # fmt: skip
    assert not catalog.exists()
    assert main(command) == 0
    assert "accept_license: llama3.1" in capsys.readouterr().err


def test_the_header_is_read_where_the_weights_are(server: FakeHub, tmp_path: Path) -> None:
    weights = tiny_gguf(layers=3, note="n" * 900) + bytes(3 << 20)
    server.publish("Org/Shaped", {"a-Q4_0.gguf": weights}, **CARD)
    added(tmp_path / "c.yml", "hf:Org/Shaped")
    shape = entry(tmp_path / "c.yml", "shaped", "q4_0").shape
    assert (shape.architecture, shape.embedding, shape.layer_count) == ("llama", 8, 3)


def test_a_header_that_goes_on_is_fetched_longer(
    server: FakeHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sbctl.artifacts.remote_header._PREFIXES_BYTES", (100, 100_000))
    server.publish("Org/Long", {"a-Q4_0.gguf": GGUF}, **CARD)
    added(tmp_path / "c.yml", "hf:Org/Long")
    assert entry(tmp_path / "c.yml", "long", "q4_0").shape is not None

"""TLS on the API in sb.yml: everything that can be judged is judged before a host is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig, CompiledTls
from tests.simulators.public_ca import Issued, issue

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

BOTH = "https_bind_port: 8443\n  tls_cert_file: ./chain.pem\n  tls_key_file: ./key.pem"
ON_NODE = "https_bind_port: 8443\n  tls_cert_file: node-file:/etc/l/fullchain.pem\n  tls_key_file: node-file:/etc/l/privkey.pem"


def text(tls: str, *, hostname: str = "ai.example.com", origin: str = "", head: str = "") -> str:
    return f"""\
{head}proxy:
  {tls}
  model_host:
    deployments:
      chat: {{model: smollm2-135m-instruct, variant: q4_1}}
origins:
  {hostname}:
    {origin}
    action:
      type: ai_proxy
      providers: [{{name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}}]
"""


@pytest.fixture
def files(tmp_path: Path) -> Callable[[Issued], Issued]:
    def write(made: Issued) -> Issued:
        (tmp_path / "chain.pem").write_bytes(made.chain)
        (tmp_path / "key.pem").write_bytes(made.key)
        return made

    return write


def tls_of(config: CompiledConfig) -> CompiledTls:
    tls = config.hosts["local"].tls
    assert tls is not None
    return tls


def test_a_good_certificate_is_shown_and_its_key_is_a_reference(
    files: Callable[[Issued], Issued], load_text: Load
) -> None:
    made = files(issue("ai.example.com"))
    config = load_text(text(BOTH, origin="force_ssl: true"))
    tls = tls_of(config)
    assert tls.certificate is not None
    assert tls.certificate.names == ("ai.example.com",)
    assert (tls.certificate_reference, tls.key_reference, tls.node_files) == (
        "file:./chain.pem",
        "file:./key.pem",
        None,
    )
    assert config.hosts["local"].origins["ai.example.com"].force_ssl
    assert not config.notes
    assert made.key.decode().splitlines()[1] not in repr(config)


@pytest.mark.parametrize(
    ("key", "secrets", "environ", "reference"),
    [
        ("secret:k", {"k": "file:./key.pem"}, {}, "file:./key.pem"),
        ("env:TLS_KEY", {}, {"TLS_KEY": ""}, "env:TLS_KEY"),
        ("exec:pass show key", {}, {}, "exec:pass show key"),
    ],
)
def test_the_key_may_be_any_reference(
    files: Callable[[Issued], Issued],
    load_text: Load,
    key: str,
    secrets: Mapping[str, str],
    environ: Mapping[str, str],
    reference: str,
) -> None:
    made = files(issue("ai.example.com"))
    given = {name: made.key.decode() for name in environ}
    head = f"secrets: {{k: '{secrets['k']}'}}\n" if secrets else ""
    config = load_text(text(BOTH.replace("./key.pem", f"'{key}'"), head=head), given)
    assert tls_of(config).key_reference == reference


def test_files_that_somebody_keeps_on_the_host_are_not_read_here(load_text: Load) -> None:
    tls = tls_of(load_text(text(ON_NODE)))
    assert tls.node_files == ("/etc/l/fullchain.pem", "/etc/l/privkey.pem")
    assert tls.certificate is None


def test_another_certificate_is_another_configuration(files: Callable[[Issued], Issued], load_text: Load) -> None:
    files(issue("ai.example.com"))
    before = load_text(text(BOTH)).digest
    files(issue("ai.example.com"))
    assert load_text(text(BOTH)).digest != before


@pytest.mark.parametrize(
    ("tls", "code", "words"),
    [
        ("https_bind_port: 8443", "config.conflict", "https_bind_port goes with tls_cert_file and tls_key_file"),
        ("tls_key_file: ./key.pem", "config.conflict", "tls_key_file goes with"),
        ("https_bind_port: 8443\n  acme: {enabled: true}", "config.conflict", "https_bind_port goes with"),
        (BOTH.replace("8443", "8080"), "config.duplicate_port", "both 8080"),
        (BOTH + "\n  admin: {enabled: true, port: 8443}", "config.duplicate_port", "admin.port"),
        (BOTH.replace("./chain.pem", "node-file:/a.pem"), "config.conflict", "on the host both"),
        (ON_NODE.replace("/etc/l/fullchain.pem", "fullchain.pem"), "config.bad_value", "absolute"),
        (BOTH.replace("./key.pem", "secret:nope"), "config.unknown_secret", "nope"),
        (BOTH.replace("./chain.pem", "./nothing.pem"), "file.missing", "tls_cert_file"),
        (BOTH.replace("./chain.pem", "./key.pem"), "tls.certificate_invalid", "private key in it"),
        (BOTH.replace("./key.pem", "./chain.pem"), "tls.key_invalid", "tls_key_file"),
    ],
)
def test_what_is_written_wrong_is_refused_at_its_line(
    files: Callable[[Issued], Issued], findings_of: Findings, tls: str, code: str, words: str
) -> None:
    files(issue("ai.example.com"))
    found = findings_of(text(tls))
    assert any(each.code == code and words in each.message for each in found), found
    assert all(each.span is not None for each in found)


def test_a_key_in_sb_yml_itself_is_refused_and_not_repeated(findings_of: Findings) -> None:
    line = issue("ai.example.com").key.decode().splitlines()[1]
    found = findings_of(text(BOTH.replace("./key.pem", f"'-----BEGIN PRIVATE KEY-----{line}'")))
    assert [each.code for each in found] == ["config.bad_value"]
    assert line not in found[0].message


@pytest.mark.parametrize(
    ("names", "days_left", "origin", "code", "severity"),
    [
        (("other.example.com",), 60, "", "tls.name_missing", "error"),
        (("ai.example.com",), -1, "", "tls.expired", "error"),
        (("ai.example.com",), 10, "", "tls.ends_soon", "note"),
    ],
)
def test_names_and_dates(
    files: Callable[[Issued], Issued],
    load_text: Load,
    findings_of: Findings,
    names: tuple[str, ...],
    days_left: int,
    origin: str,
    code: str,
    severity: str,
) -> None:
    ends = datetime.now(UTC) + timedelta(days=days_left)
    files(issue(*names, begins=ends - timedelta(days=90), ends=ends))
    written = text(BOTH, origin=origin)
    found = findings_of(written) if severity == "error" else load_text(written).notes
    assert [each.code for each in found] == [code]
    assert found[0].span is not None


def test_a_second_origin_without_its_name_is_a_note_and_with_force_ssl_an_error(
    files: Callable[[Issued], Issued], load_text: Load, findings_of: Findings
) -> None:
    files(issue("ai.example.com"))
    second = "  localhost:\n    {}action: {{type: ai_proxy, providers: [{{name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}}]}}\n"
    notes = load_text(text(BOTH) + second.format("")).notes
    assert [note.code for note in notes] == ["tls.name_missing"]
    forced = findings_of(text(BOTH) + second.format("force_ssl: true\n    "))
    assert [each.code for each in forced] == ["tls.name_missing"]


def test_who_cannot_read_the_key_may_still_plan_and_is_told(
    files: Callable[[Issued], Issued], load_text: Load, tmp_path: Path
) -> None:
    files(issue("ai.example.com"))
    (tmp_path / "key.pem").unlink()
    assert [note.code for note in load_text(text(BOTH)).notes] == ["tls.key_not_read"]


def test_force_ssl_needs_https_unless_somebody_else_ends_tls(load_text: Load, findings_of: Findings) -> None:
    forced = text("http_bind_port: 8080", origin="force_ssl: true")
    assert [each.code for each in findings_of(forced)] == ["config.unenforced"]
    config = load_text('fleet: {accept_unenforced: ["origins.*.force_ssl"]}\n' + forced)
    assert not config.hosts["local"].origins["ai.example.com"].force_ssl


ADMIN = "admin: {{enabled: true, bind: 10.0.0.5, allow_ips: [10.0.0.0/8], tls: {{cert: {}, key: {}}}}}"


def test_an_admin_api_off_loopback_has_a_certificate_of_its_own_or_the_apis(
    files: Callable[[Issued], Issued], load_text: Load
) -> None:
    files(issue("admin.example.com"))
    alone = load_text(text(ADMIN.format("./chain.pem", "./key.pem")))
    tls = tls_of(alone)
    assert tls.certificate is not None
    assert (tls.certificate.names, tls.key_reference) == (("admin.example.com",), "file:./key.pem")
    assert not alone.notes, "it is not asked to be for the origins"
    files(issue("ai.example.com"))
    both = load_text(text(BOTH + "\n  " + ADMIN.format("file:./chain.pem", "./key.pem")))
    assert tls_of(both).certificate_reference == "file:./chain.pem"
    on_node = load_text(text(ADMIN.format("node-file:/etc/l/c.pem", "node-file:/etc/l/k.pem")))
    assert tls_of(on_node).node_files == ("/etc/l/c.pem", "/etc/l/k.pem")


@pytest.mark.parametrize(
    ("tls", "code", "words"),
    [
        (BOTH + "\n  " + ADMIN.format("./other.pem", "./key.pem"), "config.conflict", "admin.tls names other files"),
        (ADMIN.format("./chain.pem", "secret:nobody"), "config.unknown_secret", "nobody"),
        (ADMIN.format("node-file:etc/c.pem", "node-file:/k.pem"), "config.bad_value", "admin.tls.cert: a path"),
        (ADMIN.format("./chain.pem", "node-file:/k.pem"), "config.conflict", "on the host both"),
    ],
)
def test_what_an_admin_api_cannot_show_is_refused_at_its_place(
    files: Callable[[Issued], Issued], findings_of: Findings, tls: str, code: str, words: str
) -> None:
    files(issue("ai.example.com"))
    found = findings_of(text(tls))
    assert any(each.code == code and words in each.message for each in found), found

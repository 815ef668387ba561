"""`fleet.state`: where the truth is kept is said without credentials, over a safe way, and readable before the rest of the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic, InputError
from sbctl.config.including import read_config
from sbctl.config.state_block import state_settings
from sbctl.state.settings import EncryptionSettings, StateSettings
from sbctl.trust.sealing import Identity

Findings = Callable[..., tuple[Diagnostic, ...]]
ONE = Identity.generate().recipient


def settings(tmp_path: Path, text: str, **environ: str) -> StateSettings:
    file = tmp_path / "sb.yml"
    file.write_text(text)
    return state_settings(read_config(file), environ)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ("", StateSettings()),
        ("fleet: {}", StateSettings()),
        ("fleet: {state: {backend: local}}", StateSettings()),
        ("fleet: {state: {backend: http, address: 'https://s.example/x'}}", StateSettings("http", "https://s.example/x")),
        ("fleet: {state: {backend: http, address: 'http://127.0.0.1:1/x'}}", StateSettings("http", "http://127.0.0.1:1/x")),
        (
            ("secrets: {pw: 'file:pw.txt'}\nfleet: {state: {backend: http, address: 'https://${HOST}/x', username: u, "
            "password: 'secret:pw', lock_address: 'https://${HOST}/x/lock', lock_method: POST, unlock_method: DELETE}}"),
            StateSettings(
                "http", "https://s.example/x", "u", "file:pw.txt", lock_address="https://s.example/x/lock", lock_method="POST",
                unlock_method="DELETE",
            ),
        ),
        (
            "fleet: {state: {backend: postgres, address: 'postgresql:///db?host=/run/pg&port=5433', table: a.b}}",
            StateSettings("postgres", "postgresql:///db?host=/run/pg&port=5433", schema="a", table="b"),
        ),
        (
            (f"fleet: {{state: {{backend: http, address: 'https://s.example', encryption: {{recipients: [{ONE}], "
            "passphrase: 'env:P', identity: 'file:k'}}}"),
            StateSettings("http", "https://s.example", encryption=EncryptionSettings((ONE,), "env:P", "file:k")),
        ),
    ],
)  # fmt: skip
def test_it_says_where_the_state_is(tmp_path: Path, state: str, expected: StateSettings) -> None:
    assert settings(tmp_path, state, HOST="s.example") == expected


def test_the_rest_of_the_file_may_be_wrong(tmp_path: Path) -> None:
    text = "fleet: {hosts: 7, state: {backend: http, address: 'https://s.example'}}\nnonsense: true\n"
    assert settings(tmp_path, text).shared


def test_files_are_beside_sb_yml(tmp_path: Path) -> None:
    text = "fleet: {state: {backend: http, address: 'https://s.example', ca_file: ca.pem}}"
    assert settings(tmp_path, text).ca_file == str(tmp_path / "ca.pem")


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ("backend: local, address: 'https://s.example'", "no meaning for backend: local"),
        (f"encryption: {{recipients: [{ONE}]}}", "no meaning for backend: local"),
        ("backend: http", "needs an address"),
        ("backend: http, address: 'https://s.example', table: a.b", "no meaning for backend: http"),
        ("backend: postgres, address: 'postgresql:///x', lock_method: LOCK", "no meaning for backend: postgres"),
        ("backend: http, address: 'http://s.example'", "in clear"),
        (
            "backend: http, address: 'https://s.example', lock_address: 'http://s.example'",
            "lock_address: password and state",
        ),
        ("backend: http, address: 'https://u:p@s.example'", "no credentials"),
        ("backend: http, address: 'ftp://s.example'", "not a URL of http"),
        ("backend: http, address: 'https://[x'", "not a URL"),
        ("backend: postgres, address: 'postgresql://u:p@h/x'", "no credentials"),
        ("backend: postgres, address: 'postgresql://u@h/x'", "no credentials"),
        ("backend: postgres, address: 'postgresql:///x?password=p'", "no credentials"),
        ("backend: postgres, address: 'postgresql:///x?sslmode=disable'", "only host, port and dbname"),
        ("backend: postgres, address: 'postgresql://h:99999/x'", "not a URL"),
        ("backend: postgres, address: 'https://h/x'", "not a URL of postgresql"),
        ("backend: http, address: 'https://s.example', encryption: {}", "nobody could open"),
        ("backend: http, address: 'https://s.example', encryption: {recipients: [age1x]}", "a recipient, sbx1"),
        ("backend: http, address: 'https://s.example', password: hunter2", "a reference to a secret"),
        ("backend: http, address: 'https://s.example', lock_method: lock", "capital letters"),
        ("backend: postgres, address: 'postgresql:///x', table: 'a;drop'", "schema.table"),
        ("backend: s3", "local, http"),
        ("backend: http, address: 'https://s.example', addres: x", "addres"),
    ],
    # The recipient is another one in each worker, and workers must agree on names.
    ids=lambda text: text.replace(ONE, "RECIPIENT"),
)
def test_what_cannot_be_meant_is_an_error_with_its_line(
    tmp_path: Path, findings_of: Findings, minimal: str, state: str, says: str
) -> None:
    text = f"fleet: {{state: {{{state}}}}}\n{minimal}"
    found = findings_of(text)
    assert any(says in f"{each.message} {each.label}" for each in found), found
    assert all(each.span is not None and each.span.line == 1 for each in found)
    assert "hunter2" not in repr(found)
    with pytest.raises(ConfigError):
        settings(tmp_path, text)


def test_a_secret_that_is_not_there_is_named(tmp_path: Path) -> None:
    text = "fleet: {state: {backend: http, address: 'https://s.example', password: 'secret:pw'}}"
    with pytest.raises(InputError, match='no secret "pw"'):
        settings(tmp_path, text)


def test_an_unset_variable_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        settings(tmp_path, "fleet: {state: {backend: http, address: 'https://${NOWHERE}/'}}")
    assert refused.value.code == "config.unset_variable"

"""Secrets are resolved where they are, named by their reference, and never repeated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sbctl.base.errors import InputError
from sbctl.config.compiled import CompiledConfig
from sbctl.config.secrets import SecretResolver, SecretSources, secret_ref

Load = Callable[..., CompiledConfig]
CANARY = "canary-5f2c"


@pytest.fixture
def resolver(load_text: Load, minimal: str, tmp_path: Path) -> SecretResolver:
    (tmp_path / "pw.txt").write_text(CANARY + "\n")
    (tmp_path / "empty").write_text("\n")
    environ: Mapping[str, str] = {"PW": CANARY, "PATH": "/usr/bin:/bin"}
    text = "secrets: {pw: 'env:PW', host: 'node-file:/etc/pw'}\n" + minimal.replace(
        "proxy:\n", f"proxy:\n  admin: {{password: {CANARY}}}\n"
    )
    return SecretResolver(load_text(text, environ), environ)


@pytest.mark.parametrize(
    "reference",
    [
        "env:PW",
        "file:./pw.txt",
        "file:pw.txt",
        "secret:pw",
        "inline:/proxy/admin/password",
        f"exec:printf '%s\\n' {CANARY}",
        "exec:cat pw.txt",
        "exec:/bin/cat pw.txt",
    ],
)
def test_a_value_is_found(resolver: SecretResolver, reference: str) -> None:
    assert resolver.resolve(reference).reveal() == CANARY.encode()


@pytest.mark.parametrize(
    ("reference", "code"),
    [
        ("env:NOPE", "secret.unset"),
        ("file:nope.txt", "secret.unreadable"),
        ("file:.", "secret.unreadable"),
        ("file:empty", "secret.empty"),
        ("secret:nope", "secret.unknown"),
        ("secret:host", "secret.on_node"),
        ("node-file:/etc/pw", "secret.on_node"),
        ("inline:/nope", "secret.unknown"),
        ("plain", "secret.bad_reference"),
        ("exec:", "secret.command_failed"),
        ("exec:'open", "secret.bad_reference"),
        ("exec:no-such-program-here", "secret.command_failed"),
        ("exec:/no/such/program", "secret.command_failed"),
        ("exec:false", "secret.command_failed"),
        ("exec:true", "secret.empty"),
        ("exec:head -c 70000 /dev/zero", "secret.too_large"),
        (f"exec:sh -c 'echo {CANARY}; exit 3'", "secret.command_failed"),
    ],
)
def test_what_cannot_be_resolved_is_named(resolver: SecretResolver, reference: str, code: str) -> None:
    with pytest.raises(InputError) as caught:
        resolver.resolve(reference)
    assert caught.value.code == code
    assert CANARY not in caught.value.message


def test_a_command_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sbctl.config.secrets._EXEC_DEADLINE_S", 0.05)
    with pytest.raises(InputError, match="gave no answer"):
        SecretSources(tmp_path, {"PATH": "/usr/bin:/bin"}).read("exec:sleep 5")


def test_fingerprints_are_known_where_nothing_has_to_run(tmp_path: Path) -> None:
    sources = SecretSources(tmp_path, {"A": "x"})
    (tmp_path / "f").write_text("x")

    def keyed(value: bytes) -> str:
        return value.decode() * 16

    assert secret_ref("n", "env:A", sources, keyed).fingerprint == "x" * 16
    assert secret_ref("n", "file:f", sources, keyed).fingerprint == "x" * 16
    assert secret_ref("n", "env:A", sources, None).fingerprint is None
    assert secret_ref("n", "env:NOPE", sources, keyed).fingerprint is None
    assert secret_ref("n", "exec:touch ran", sources, keyed).fingerprint is None
    assert not (tmp_path / "ran").exists()

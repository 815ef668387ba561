"""Keys: what is read, what is refused, what is written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sbctl.base.errors import InputError, RefusedError
from sbctl.base.secret import Secret
from sbctl.trust.keys import SigningKey, load_key_file, parse_public_key, save_key_file


def test_a_saved_key_is_read_back_with_its_rights(tmp_path: Path) -> None:
    path = tmp_path / "keys" / "operator.key"
    key = SigningKey.generate()
    save_key_file(path, key)
    assert load_key_file(path).public_text == key.public_text
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_key_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "operator.key"
    save_key_file(path, SigningKey.generate())
    with pytest.raises(RefusedError, match="never overwritten"):
        save_key_file(path, SigningKey.generate())


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "operator.key"
    save_key_file(path, SigningKey.generate())
    os.chmod(path, mode)
    with pytest.raises(RefusedError) as caught:
        load_key_file(path)
    assert caught.value.code == "key.permissions"
    assert str(path) in (caught.value.next_step or "")


def test_a_key_behind_a_link_is_refused(tmp_path: Path) -> None:
    save_key_file(tmp_path / "real.key", SigningKey.generate())
    (tmp_path / "link.key").symlink_to("real.key")
    with pytest.raises(RefusedError):
        load_key_file(tmp_path / "link.key")


def test_a_passphrase_is_asked_for_by_name() -> None:
    key = SigningKey.generate()
    phrase = Secret(b"correct horse")
    assert SigningKey.from_pem(key.to_pem(phrase), phrase).public_text == key.public_text
    for pem, given in ((key.to_pem(phrase), None), (key.to_pem(), phrase)):
        with pytest.raises(InputError) as caught:
            SigningKey.from_pem(pem, given)
        assert caught.value.code == "key.passphrase"
    with pytest.raises(InputError, match="passphrase is wrong"):
        SigningKey.from_pem(key.to_pem(phrase), Secret(b"wrong"))


@pytest.mark.parametrize("pem", [b"", b"nonsense", b"-----BEGIN PRIVATE KEY-----\n-----END PRIVATE KEY-----\n"])
def test_what_is_not_a_key_is_named_as_that(pem: bytes) -> None:
    with pytest.raises(InputError) as caught:
        SigningKey.from_pem(Secret(pem))
    assert caught.value.code == "key.invalid"


def test_a_key_of_another_algorithm_is_refused() -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    pem = generate_private_key(SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with pytest.raises(InputError, match="not an Ed25519 key"):
        SigningKey.from_pem(Secret(pem))


@pytest.mark.parametrize("text", ["", "rsa:AAAA", "ed25519:", "ed25519:AAAA", "ed25519:%%%", "ed25519:" + "A" * 43])
def test_a_public_key_text_is_exact(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_public_key(text)
    assert caught.value.code == "key.invalid"


def test_a_public_key_round_trips() -> None:
    text = SigningKey.generate().public_text
    assert parse_public_key(text).text == text

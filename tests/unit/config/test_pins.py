"""Pins of host keys: from sb.yml, from the lock, and when the two disagree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.config.host_lock import HostLock, LockedKey, write_host_lock
from sbctl.config.load import load
from tests.simulators.ssh_keys import ecdsa_key, ed25519_key

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]
KEY, OTHER = ed25519_key("a"), ed25519_key("b")


def write(path: Path, *keys: LockedKey) -> None:
    lock = HostLock(path)
    for name in {key.name for key in keys}:
        lock = lock.pinned(name, [key for key in keys if key.name == name])
    write_host_lock(lock)


def fleet(pin: str = "", ssh: str = "", name: str = "gpu-a", address: str = "10.0.0.1") -> str:
    key = f", host_key: '{pin}'" if pin else ""
    return f"fleet:\n  ssh: {{{ssh}}}\n  hosts:\n    '{name}': {{address: '{address}'{key}}}\n"


def locked(key: object = KEY, name: str = "gpu-a", address: str = "10.0.0.1") -> LockedKey:
    return LockedKey(name, address, 22, key)  # type: ignore[arg-type]


def test_a_host_without_a_pin_takes_those_of_the_lock(load_text: Load, minimal: str, tmp_path: Path) -> None:
    write(tmp_path / "sb.hosts.lock", locked(), locked(ecdsa_key(1)))
    connection = load_text(fleet() + minimal).hosts["gpu-a"].connection
    assert set(connection.host_keys) == {KEY.text, ecdsa_key(1).text}


def test_each_host_of_a_range_has_a_line_of_its_own(load_text: Load, minimal: str, tmp_path: Path) -> None:
    write(tmp_path / "sb.hosts.lock", locked(KEY, "n1"), locked(OTHER, "n2"))
    hosts = load_text(fleet(name="n[1-2]", address="10.0.0.[1-2]") + minimal).hosts
    assert [host.connection.host_keys for host in hosts.values()] == [(KEY.text,), (OTHER.text,)]


def test_the_file_can_have_another_name_and_place(load_text: Load, minimal: str, tmp_path: Path) -> None:
    (tmp_path / "pins").mkdir()
    write(tmp_path / "pins" / "prod.lock", locked())
    config = load_text(fleet(ssh="host_keys: pins/prod.lock") + minimal)
    assert config.hosts["gpu-a"].connection.host_keys == (KEY.text,)


@pytest.mark.parametrize("pin", [KEY.fingerprint, KEY.text])
def test_a_pin_of_sb_yml_may_stand_in_the_lock_too(load_text: Load, minimal: str, tmp_path: Path, pin: str) -> None:
    write(tmp_path / "sb.hosts.lock", locked())
    assert load_text(fleet(pin) + minimal).hosts["gpu-a"].connection.host_keys == (pin,)


@pytest.mark.parametrize("pin", [OTHER.fingerprint, OTHER.text])
def test_E2_two_places_that_disagree_are_an_error_with_both(
    findings_of: Findings, minimal: str, tmp_path: Path, pin: str
) -> None:
    write(tmp_path / "sb.hosts.lock", locked())
    (found,) = findings_of(fleet(pin) + minimal)
    assert found.code == "config.host_key_conflict"
    assert found.span is not None
    assert found.span.line == 4
    notes = " ".join(found.notes)
    assert f"{tmp_path}/sb.hosts.lock:2: {KEY.fingerprint}" in notes
    assert OTHER.fingerprint in notes


def test_E1_a_host_without_any_pin_is_an_error_that_names_the_command(findings_of: Findings, minimal: str) -> None:
    (found,) = findings_of(fleet(name="n[1-2]", address="10.0.0.[1-2]") + minimal)
    assert found.code == "config.missing_host_key"
    assert "sbctl host trust 'n[1-2]'" in found.notes[0]


def test_who_lists_or_pins_hosts_needs_no_pins(minimal: str, tmp_path: Path) -> None:
    path = tmp_path / "sb.yml"
    path.write_text(fleet() + minimal)
    assert load(path, environ={}, require_pins=False).hosts["gpu-a"].connection.host_keys == ()


def test_what_is_wrong_with_the_lock_is_said_with_its_line(findings_of: Findings, minimal: str, tmp_path: Path) -> None:
    (tmp_path / "sb.hosts.lock").write_text("# sb.hosts.lock v1\nnonsense\n")
    (found,) = findings_of(fleet() + minimal)
    assert (found.code, str(found.span)) == ("lock.syntax", f"{tmp_path}/sb.hosts.lock:2:1")


def test_a_lock_that_is_no_file_is_said(findings_of: Findings, minimal: str, tmp_path: Path) -> None:
    (tmp_path / "sb.hosts.lock").mkdir()
    assert [each.code for each in findings_of(fleet() + minimal)] == ["file.not_regular"]


def test_a_line_that_nobody_uses_is_a_note(load_text: Load, minimal: str, tmp_path: Path) -> None:
    write(tmp_path / "sb.hosts.lock", locked(), locked(OTHER, "old"))
    notes = [each for each in load_text(fleet() + minimal).notes if each.code == "config.unused_pin"]
    assert ['"old"' in note.message for note in notes] == [True]


def test_another_pin_changes_the_digest_and_only_the_connection(load_text: Load, minimal: str, tmp_path: Path) -> None:
    write(tmp_path / "sb.hosts.lock", locked())
    before = load_text(fleet() + minimal)
    write(tmp_path / "sb.hosts.lock", locked(OTHER))
    after = load_text(fleet() + minimal)
    assert before.digest != after.digest
    assert before.hosts["gpu-a"].connection != after.hosts["gpu-a"].connection

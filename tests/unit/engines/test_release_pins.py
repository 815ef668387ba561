"""Which file makes an engine on a machine: decided before anything is fetched, by digests that are known."""

from __future__ import annotations

import pytest

from sbctl.base.errors import EngineError
from sbctl.engines.model import Acceleration
from sbctl.engines.release_pins import Machine, archive_pin, build_name, release_versions

LINUX = Machine("Linux", "x86_64", "glibc-2.36")


def mac(version: str, arch: str = "arm64") -> Machine:
    return Machine("Darwin", arch, os_version=version)


@pytest.mark.parametrize(
    ("version", "machine", "acceleration", "filename"),
    [
        (None, LINUX, "cpu", "llama-b9905-bin-ubuntu-x64.tar.gz"),
        ("9905", LINUX, "cpu", "llama-b9905-bin-ubuntu-x64.tar.gz"),
        ("b9905", LINUX, "vulkan", "llama-b9905-bin-ubuntu-vulkan-x64.tar.gz"),
        ("b9905", LINUX, "cuda", "llama.cpp-b9905.tar.gz"),
        (None, mac("26.1"), "metal", "llama-b9905-bin-macos-arm64.tar.gz"),
        (None, mac("15.6"), "metal", "llama-b9415-bin-macos-arm64.tar.gz"),
        ("b9905", mac("15.6"), "metal", "llama-b9905-bin-macos-arm64.tar.gz"),
        (None, mac("13.3", "x86_64"), "cpu", "llama-b9905-bin-macos-x64.tar.gz"),
    ],
)
def test_the_file_for_a_machine(
    version: str | None, machine: Machine, acceleration: Acceleration, filename: str
) -> None:
    pin = archive_pin(version, machine, acceleration)
    assert pin.filename == filename
    assert len(pin.sha256) == 64
    assert pin.url.startswith("https://")
    assert pin.is_source == (acceleration == "cuda")


@pytest.mark.parametrize(
    ("version", "machine", "acceleration", "code"),
    [
        ("b1", LINUX, "cpu", "engine.not_pinned"),
        ("latest", LINUX, "cpu", "engine.not_pinned"),
        ("b9415", LINUX, "cpu", "engine.not_pinned"),
        ("b9415", LINUX, "cuda", "engine.not_pinned"),
        ("b9905", Machine("Linux", "aarch64", "glibc-2.36"), "cpu", "engine.incompatible"),
        ("b9905", Machine("Linux", "aarch64", "glibc-2.36"), "cuda", "engine.incompatible"),
        ("b9905", Machine("Linux", "x86_64", "musl-1.2"), "cpu", "engine.incompatible"),
        (None, mac("13.0"), "metal", "engine.incompatible"),
        (None, mac("13.0", "x86_64"), "metal", "engine.incompatible"),
    ],
)
def test_what_has_no_file_is_refused_with_a_way_out(
    version: str | None, machine: Machine, acceleration: Acceleration, code: str
) -> None:
    with pytest.raises(EngineError) as caught:
        archive_pin(version, machine, acceleration)
    assert caught.value.code == code
    assert caught.value.next_step


def test_a_digest_of_the_user_s_own_stands_for_a_tag_without_a_pin() -> None:
    assert archive_pin("b11434", LINUX, sha256="a" * 64).sha256 == "a" * 64
    assert archive_pin("b11434", LINUX, "cuda", sha256="a" * 64).sha256 == "a" * 64
    assert "b9905" in release_versions()


def test_builds_for_two_devices_stand_beside_each_other() -> None:
    names = [build_name("9905", kind) for kind in ("cpu", "cuda", "vulkan")]
    assert names == ["b9905", "b9905+cuda", "b9905+vulkan"]

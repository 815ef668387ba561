"""A device keeps its number whatever its driver calls it, and what engines do not get is named with its reason."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from sbctl.base import fs
from sbctl.base.errors import HostError
from sbctl.node.devices import NvidiaDevices
from sbctl.runtime import host_devices
from sbctl.runtime.host_devices import WITHHELD, HostDevices, named_gpus


def gpu(name: str, **told: str | int) -> dict[str, str | int]:
    return {"uuid": f"GPU-{name}", "memory_total_bytes": 100, "name": "L4", **told}


def shown(devices: HostDevices) -> dict[int, tuple[str, str]]:
    return {one.number: (one.device_id, one.withheld) for one in devices.devices}


def test_a_number_never_comes_to_mean_another_device(tmp_path: Path) -> None:
    HostDevices.found(tmp_path, [gpu("a"), gpu("b"), gpu("c")])
    after = HostDevices.found(tmp_path, [gpu("c"), gpu("d"), gpu("b")])
    assert shown(after) == {1: ("GPU-b", ""), 2: ("GPU-c", ""), 3: ("GPU-d", "")}
    assert HostDevices.found(tmp_path, [gpu("a")]).by_number().keys() == {0}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"numbers": {"GPU-a": 7, "GPU-b": 7}}', '{"numbers": {"GPU-a": -1}}'])
def test_a_file_that_is_none_is_begun_anew(tmp_path: Path, text: str) -> None:
    (tmp_path / "devices.json").write_text(text)
    assert shown(HostDevices.found(tmp_path, [gpu("a")])) == {0: ("GPU-a", "")}


def test_a_full_disk_keeps_no_device_from_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise HostError("disk.full", "no space left", detail={"errno": errno.ENOSPC})

    monkeypatch.setattr(fs, "write_atomic", full)
    assert shown(HostDevices.found(tmp_path, [gpu("a")])) == {0: ("GPU-a", "")}


def test_what_engines_do_not_get_says_why(tmp_path: Path) -> None:
    seen = [gpu("a"), gpu("b"), gpu("c", fault="rows_not_remapped"), gpu("d", fault="needs_reset"), gpu("e")]
    found = HostDevices.found(tmp_path, [*seen, {"name": "mute"}], ("1", "GPU-e"))
    assert {number: why for number, (_, why) in shown(found).items()} == {
        0: "",
        1: "excluded_by_operator",
        2: "rows_not_remapped",
        3: "needs_reset",
        4: "excluded_by_operator",
        4095: "no_identity",
    }
    assert [one["uuid"] for one in found.usable] == ["GPU-a"]
    assert {one.withheld for one in found.devices} - {""} <= WITHHELD.keys()
    assert [one.get("withheld", "") for one in named_gpus(tmp_path, seen, ("1", "GPU-e"))] == [
        one.withheld for one in found.devices[:5]
    ]


def test_a_device_that_falls_off_its_bus_is_gone_and_comes_back_as_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = NvidiaDevices(gpus=(gpu("b"),))
    monkeypatch.setattr(host_devices, "nvidia_devices", lambda: driver)
    found = HostDevices.found(tmp_path, [gpu("a"), gpu("b")])
    lost = found.look()
    assert shown(lost) == {0: ("GPU-a", "gone"), 1: ("GPU-b", "")}
    driver = NvidiaDevices(problem="the NVIDIA driver cannot be used: version mismatch")
    assert lost.look() == lost, "a driver that says nothing takes nothing back"
    driver = NvidiaDevices(gpus=(gpu("b"), gpu("a"), gpu("new")))
    assert shown(lost.look()) == shown(found), "what came since waits for the next start"


def test_a_host_without_devices_asks_no_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(host_devices, "nvidia_devices", None)
    assert HostDevices.found(tmp_path, []).look().devices == ()
    assert not (tmp_path / "devices.json").exists()

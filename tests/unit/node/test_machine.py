"""What files of the kernel tell, on trees that stand in for /proc and /sys."""

from __future__ import annotations

import os
import pwd
import socket
from pathlib import Path

import pytest

from sbctl.node.machine import cgroup_version, filesystem_of, nvidia_driver, pci_gpus, port_holders


def write(root: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(root)


def test_devices_on_the_bus_tell_their_driver_name_and_memory(tmp_path: Path) -> None:
    sys = write(
        tmp_path / "sys",
        {
            "bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "bus/pci/devices/0000:01:00.0/class": "0x030200\n",
            "bus/pci/devices/0000:02:00.0/vendor": "0x1002\n",
            "bus/pci/devices/0000:02:00.0/class": "0x030000\n",
            "bus/pci/devices/0000:02:00.0/mem_info_vram_total": "17163091968\n",
            "bus/pci/devices/0000:03:00.0/vendor": "0x10de\n",
            "bus/pci/devices/0000:03:00.0/class": "0x040300\n",
            "module/nvidia/version": "580.65.06\n",
            "drivers/nvidia/x": "",
        },
    )
    (tmp_path / "sys/bus/pci/devices/0000:01:00.0/driver").symlink_to(tmp_path / "sys/drivers/nvidia")
    proc = write(
        tmp_path / "proc",
        {"driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H200\nGPU UUID: \t GPU-1\nIRQ: 7\n"},
    )
    assert pci_gpus(proc, sys) == [
        {"vendor": "nvidia", "bus": "0000:01:00.0", "driver": "nvidia", "name": "NVIDIA H200", "uuid": "GPU-1"},
        {"vendor": "amd", "bus": "0000:02:00.0", "driver": "", "memory_total_bytes": 17163091968},
    ]
    assert nvidia_driver(proc, sys) == "580.65.06"
    empty = str(tmp_path / "nothing")
    assert (pci_gpus(empty, empty), nvidia_driver(empty, empty), cgroup_version(empty)) == ([], "", "")


def test_a_driver_without_a_module_file_tells_its_version_in_proc(tmp_path: Path) -> None:
    text = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n"
    assert nvidia_driver(write(tmp_path, {"driver/nvidia/version": text}), str(tmp_path / "none")) == "550.54.14"


@pytest.mark.parametrize(
    ("file", "version"),
    [("cgroup.controllers", "v2"), ("unified/cgroup.controllers", "hybrid"), ("memory/tasks", "v1")],
)
def test_control_groups_tell_their_version(tmp_path: Path, file: str, version: str) -> None:
    assert cgroup_version(write(tmp_path, {f"fs/cgroup/{file}": ""})) == version


def test_the_mount_that_holds_a_path_tells_its_filesystem(tmp_path: Path) -> None:
    place = str(tmp_path).replace(" ", "\\040")
    mounts = (
        "1 0 0:1 / / rw - ext4 /dev/a rw\n"
        f"2 1 0:2 / {place} rw - nfs4 server:/x rw\n"
        f"3 1 0:3 / {place}/other rw - xfs /dev/b rw\nnonsense\n"
    )
    proc = write(tmp_path / "p", {"self/mountinfo": mounts})
    assert filesystem_of(tmp_path / "models" / "not yet made", proc) == "nfs4"
    assert filesystem_of(tmp_path / "otherwise", proc) == "nfs4"
    assert filesystem_of(tmp_path, str(tmp_path / "none")) == ""


def test_who_listens_is_told_with_address_and_program() -> None:
    with socket.socket() as listening, socket.socket(socket.AF_INET6) as six:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        port = listening.getsockname()[1]
        six.bind(("::1", 0))
        six.listen()
        (four,) = port_holders([port])
        assert (four["port"], four["address"]) == (port, "127.0.0.1")
        assert four["program"]
        assert four["user"] == pwd.getpwuid(os.getuid()).pw_name
        assert port_holders([six.getsockname()[1]])[0]["address"] == "::1"
    assert port_holders([]) == []


@pytest.mark.parametrize(
    ("cgroup", "unit"),
    [
        ("0::/system.slice/nginx.service\n", "nginx.service"),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", "session-3.scope"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/web.service\n", ""),
        ("0::/\n", ""),
    ],
)
def test_the_unit_of_who_listens_is_the_systems(tmp_path: Path, cgroup: str, unit: str) -> None:
    row = "   0: 0100007F:1F90 00000000:0000 0A 0:0 0:0 0 {uid} 0 {inode} 1"
    (tmp_path / "net").mkdir()
    (tmp_path / "net/tcp").write_text("head\n" + row.format(uid=4242424, inode=77) + "\n")
    (tmp_path / "9/fd").mkdir(parents=True)
    (tmp_path / "9/fd/3").symlink_to("socket:[77]")
    (tmp_path / "9/comm").write_text("web\n")
    (tmp_path / "9/cmdline").write_text("/opt/web/bin/web\0serve\0")
    (tmp_path / "9/cgroup").write_text(cgroup)
    told = {"port": 8080, "address": "127.0.0.1", "user": "4242424", "pid": 9, "program": "web"}
    told |= {"started_as": "/opt/web/bin/web", "unit": unit}
    assert port_holders([8080], proc=str(tmp_path)) == [told]

"""Assignments and engine starts that name devices which are not theirs to name: refused by name, on the worker itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.node.cluster_documents import AssignedDeployment, AssignedReplica
from sbctl.runtime.cluster.assigned_devices import refused_devices
from sbctl.runtime.cluster.assigned_parts import assigned_as
from sbctl.runtime.host_devices import HostDevices
from sbctl.trust.bundle import EnginePolicy
from tests.simulators.cluster_bundles import host_member

CUDA = EnginePolicy(engine="llama_cpp", launch="binary", version="b9905", acceleration="cuda")
SEEN = [{"uuid": f"GPU-{name}", "memory_total_bytes": 100} for name in "abc"]


def part(*devices: tuple[int, ...], phase: str = "start") -> AssignedDeployment:
    return AssignedDeployment(
        generation=1,
        phase=phase,  # type: ignore[arg-type]
        variant="q4_k_m",
        artifact_digest="a" * 64,
        member_digest="b" * 64,
        replicas=tuple(AssignedReplica(slot=slot, devices=each) for slot, each in enumerate(devices)),
    )


@pytest.mark.parametrize(
    ("devices", "span", "policy", "code", "says"),
    [
        pytest.param((7,), None, CUDA, "unknown_device", "device 7, and this host has no such device", id="none there"),
        pytest.param((1,), None, CUDA, "withheld_device", "device 1 (GPU-b)", id="excluded by the operator"),
        pytest.param((0, 1), None, CUDA, "withheld_device", "excluded_devices", id="one of two excluded"),
        pytest.param((0,), 2, CUDA, "wrong_devices", "spans 2", id="fewer than it spans"),
        pytest.param((0, 2), 1, CUDA, "wrong_devices", "spans 1", id="more than it spans"),
        pytest.param((0, 0), None, CUDA, "wrong_devices", "each once", id="one device twice"),
        pytest.param((0,), None, host_member().engine, "wrong_devices", "on the processor", id="none to be used"),
        pytest.param((0, 2), 2, CUDA, None, "", id="as it spans"),
        pytest.param((0,), None, CUDA, None, "", id="as many as its memory needs"),
        pytest.param((), None, CUDA, None, "", id="nothing said: the host chooses"),
    ],
)
def test_a_device_is_refused_by_name(
    tmp_path: Path, devices: tuple[int, ...], span: int | None, policy: EnginePolicy, code: str | None, says: str
) -> None:
    here = HostDevices.found(tmp_path, SEEN, ("GPU-b",))
    member = host_member(engine=policy, tensor_parallel=span)
    found = refused_devices({"q": (part((), devices),)}, {"q": member}, here)
    if code is None:
        assert found == {}
        return
    assert found["q"].code == f"assignment.{code}"
    assert says in found["q"].message
    assert found["q"].message.startswith("replica 1 of q is assigned")
    assert found["q"].next_step


def test_what_is_only_kept_is_judged_by_nobody_and_stays_where_it_lies(tmp_path: Path) -> None:
    here = HostDevices.found(tmp_path, SEEN)
    kept = (part((9,), phase="retain"),)
    assert refused_devices({"q": kept}, {"q": host_member(engine=CUDA)}, here) == {}
    assert assigned_as(kept, here).devices == ()
    assert assigned_as((part((2,), (0, 1)),), here).devices == (("GPU-c",), ("GPU-a", "GPU-b"))

"""Doctor's rules over what hosts told, and what of them stops an apply."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.clock import rfc3339
from sbctl.base.errors import ExitCode, RefusedError
from sbctl.base.limits import GIB, MIB
from sbctl.cli.blockers import refuse_unfit
from sbctl.cli.fitness import (
    clock_check,
    device_checks,
    filesystem_checks,
    need_checks,
    program_disk_check,
    system_checks,
)
from sbctl.cli.planning import Planned
from sbctl.cli.port_plan import Holders, with_ports
from sbctl.cli.ports import port_checks
from sbctl.config.compiled import CompiledConfig, CompiledHost
from sbctl.config.load import load
from sbctl.node.snapshot import (
    ArtifactState,
    DiskState,
    HostFacts,
    NodePathsState,
    NodeSnapshot,
    PortHolder,
    RuntimeState,
)
from sbctl.plan.build import build_plan
from sbctl.plan.document import plan_document
from sbctl.plan.inputs import PlanInputs
from sbctl.plan.policy import plan_exit_code
from sbctl.views.host_views import Check

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
NVIDIA = {
    "vendor": "nvidia",
    "bus": "0000:01:00.0",
    "driver": "nvidia",
    "name": "H200",
    "memory_total_bytes": 140 * GIB,
}


def config(tmp_path: Path, *, engines: str = "{}") -> CompiledConfig:
    file = tmp_path / "sb.yml"
    file.write_text(
        f"proxy: {{model_host: {{engines: {engines}, deployments: {{chat: {{model: qwen3-8b}}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: l, provider_type: managed_model, deployment: chat}]}}}\n"
    )
    return load(file, environ={}, keyed=None)


def host(tmp_path: Path, **given: str) -> CompiledHost:
    return config(tmp_path, **given).hosts["local"]


def told(*, disk: dict[str, Any] | None = None, runtime: dict[str, Any] | None = None, **facts: Any) -> NodeSnapshot:
    paths = NodePathsState(etc="/e", state="/s", cache="/c", opt="/o", staging="/s/staging")
    given = {"memory_total_bytes": 32 * GIB, "os_id": "debian", "init": "systemd_system", **facts}
    return NodeSnapshot(
        bootstrapped=False,
        host=HostFacts(**given),
        paths=paths,
        disk=DiskState(**{"cache_free_bytes": 50 * GIB, "opt_free_bytes": 50 * GIB, **(disk or {})}),
        runtime=RuntimeState(**(runtime or {})),
    )


@pytest.mark.parametrize(
    ("apart_s", "window_s", "verdict"),
    [(0, 0, "pass"), (59, 0, "pass"), (120, 0, "warn"), (-120, 0, "warn"), (400, 5, "fail"), (-400, 5, "fail"), (-90, 60, "pass")],
)  # fmt: skip
def test_clocks_apart_are_told_but_not_the_time_that_asking_took(apart_s: int, window_s: float, verdict: str) -> None:
    facts = HostFacts(now=rfc3339(NOW + timedelta(seconds=apart_s)))
    (check,) = clock_check("h", facts, NOW, window_s)
    assert check.verdict == verdict
    assert verdict == "pass" or "timedatectl" in check.next_step
    assert list(clock_check("h", HostFacts(now="whenever"), NOW, 0)) == []


def test_what_an_interrupted_download_has_of_the_disk_is_not_asked_for_again(tmp_path: Path) -> None:
    wanted = host(tmp_path)
    facts = wanted.deployments["chat"].artifact

    def disk(taken: int) -> Check:
        begun = ArtifactState(artifact=facts.artifact, state="partial", size_bytes=0, taken_bytes=taken)
        seen = told(disk={"cache_free_bytes": GIB}).model_copy(update={"artifacts": (begun,)})
        return next(check for check in need_checks(wanted, seen) if check.name == "disk for weights")

    assert disk(0).verdict == "fail"
    reserved = disk(facts.total_bytes - GIB // 2)
    assert reserved.verdict == "pass"
    assert "have their place on the disk already" in reserved.detail
    assert disk(9 * facts.total_bytes).verdict == "pass", "blocks are a little more than bytes"


@pytest.mark.parametrize(
    ("kinds", "failed"),
    [
        ({"cache_filesystem": "ext4", "state_filesystem": "xfs"}, set()),
        ({"cache_filesystem": "nfs4", "state_filesystem": "ext4"}, {"filesystem of weights"}),
        (
            {"state_filesystem": "cifs", "opt_filesystem": "fuse.sshfs"},
            {"filesystem of state", "filesystem of programs"},
        ),
        ({"cache_filesystem": "fuse.fuse-overlayfs"}, set()),
        ({}, set()),
    ],
)
def test_a_filesystem_over_a_network_is_a_blocker(kinds: dict[str, str], failed: set[str]) -> None:
    checks = list(filesystem_checks("h", told(disk=kinds)))
    assert {check.name for check in checks if check.verdict == "fail"} == failed
    assert all(check.next_step for check in checks if check.verdict == "fail")


@pytest.mark.parametrize(
    ("engines", "verdict"),
    [
        ("{}", "fail"),
        ("{llama_cpp: {launch: binary, path: /usr/bin/llama-server}}", "fail"),
        ("{llama_cpp: {launch: binary, acceleration: cuda}}", "pass"),
    ],
)
def test_memory_of_devices_counts_for_an_engine_that_is_built_for_them(
    tmp_path: Path, engines: str, verdict: str
) -> None:
    small = {"memory_total_bytes": 4 * GIB, "gpus": (NVIDIA,)}
    (fit, *_) = need_checks(host(tmp_path, engines=engines), told(**small))
    assert fit.verdict == verdict


@pytest.mark.parametrize(
    ("disk", "runtime", "verdicts"),
    [
        ({"opt_free_bytes": 100 * MIB}, {}, ["fail"]),
        ({"opt_free_bytes": GIB}, {}, ["pass"]),
        ({"opt_free_bytes": None}, {}, []),
        ({"opt_free_bytes": 150 * MIB}, {"current_version": "0.1.0"}, ["pass"]),
    ],
)
def test_programs_need_room_only_where_they_are_not_yet(
    tmp_path: Path, disk: dict[str, Any], runtime: dict[str, Any], verdicts: list[str]
) -> None:
    checks = program_disk_check(host(tmp_path), told(disk=disk, runtime=runtime))
    assert [check.verdict for check in checks] == verdicts


@pytest.mark.parametrize(
    ("facts", "verdict", "said"),
    [
        ({"gpu_problem": "the NVIDIA driver cannot be used: mismatch"}, "warn", "mismatch"),
        ({"gpus": ({**NVIDIA, "driver": ""},)}, "warn", "apt-get install linux-headers-amd64 nvidia-driver"),
        ({"gpus": ({**NVIDIA, "driver": ""},), "os_id": "ubuntu"}, "warn", "ubuntu-drivers install"),
        ({"gpus": (NVIDIA,), "nvidia_driver": "580.65", "cuda": "13.0"}, "pass", "NVIDIA 580.65, CUDA 13.0"),
    ],
)
def test_a_driver_is_named_or_how_to_get_one(facts: dict[str, Any], verdict: str, said: str) -> None:
    checks = {check.name: check for check in device_checks("h", told(**facts).host)}
    assert checks["gpu driver"].verdict == verdict
    assert said in f"{checks['gpu driver'].detail} {checks['gpu driver'].next_step}"


def test_no_device_and_old_control_groups_are_told() -> None:
    (gpu,) = device_checks("h", told().host)
    assert (gpu.name, gpu.verdict) == ("gpu", "skip")
    verdicts = {check.name: check.verdict for check in system_checks("h", told(cgroup="hybrid").host)}
    assert verdicts == {"control groups": "warn", "container runtime": "skip"}
    assert [check.verdict for check in system_checks("h", told(cgroup="v1", init="none").host)] == ["skip"]


@pytest.mark.parametrize(
    ("holders", "verdict", "said"),
    [
        ((), "pass", "is free"),
        ((PortHolder(port=8080, address="127.0.0.1", pid=7, program="nginx"),), "fail", "nginx (pid 7)"),
        (
            (PortHolder(port=8080, address="::", pid=7, program="nginx", user="www", unit="nginx.service"),),
            "fail",
            "nginx (pid 7, nginx.service, user www); systemctl stop nginx.service",
        ),
        ((PortHolder(port=8080, address="0.0.0.0"),), "fail", "a process of another user"),
        ((PortHolder(port=8080, address="0.0.0.0", user="www"),), "fail", "a process of user www, which only root"),
        ((PortHolder(port=8080, address="10.0.0.1"),), "pass", "is free"),
        ((PortHolder(port=8081, address="0.0.0.0"),), "pass", "is free"),
    ],
)
def test_a_port_that_others_hold_is_told_with_its_holder(
    tmp_path: Path, holders: tuple[PortHolder, ...], verdict: str, said: str
) -> None:
    (check,) = port_checks(host(tmp_path), None, told(), holders)
    assert check.verdict == verdict
    assert said in f"{check.detail}; {check.next_step}"
    assert list(port_checks(host(tmp_path), None, told(runtime={"running": True}), holders)) == []


def planned(
    tmp_path: Path, snapshot: NodeSnapshot, *changes: tuple[str, str], holders: Holders | None = None
) -> Planned:
    """A plan of which only what the rules read is there."""
    rows = [
        SimpleNamespace(host="local", action=action, address=SimpleNamespace(kind=kind)) for kind, action in changes
    ]
    return cast(
        "Planned",
        SimpleNamespace(
            config=config(tmp_path),
            plan=SimpleNamespace(changes=rows, hosts={"local": None}, placement=None, unfit=()),
            inputs=SimpleNamespace(snapshots={"local": snapshot}, now=NOW),
            holders=holders or {},
            observation=SimpleNamespace(seconds=1.0, snapshots={"local": snapshot}),
        ),
    )


TIGHT = told(memory_total_bytes=4 * GIB, disk={"cache_free_bytes": MIB, "opt_free_bytes": MIB})


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ((("runtime", "create"),), {"disk for programs"}),
        ((("artifact", "create"),), {"disk for weights"}),
        ((("deployment", "update"), ("bundle", "update")), {"fit chat"}),
        ((("runtime", "no-op"), ("artifact", "delete")), set()),
    ],
)
def test_apply_is_stopped_by_what_it_would_make_and_by_nothing_else(
    tmp_path: Path, changes: tuple[tuple[str, str], ...], named: set[str]
) -> None:
    if not named:
        refuse_unfit(planned(tmp_path, TIGHT, *changes))
        return
    with pytest.raises(RefusedError) as caught:
        refuse_unfit(planned(tmp_path, TIGHT, *changes))
    assert caught.value.code == "doctor.blocked"
    assert {
        name for name in ("disk for programs", "disk for weights", "fit chat") if name in caught.value.message
    } == named
    assert "--accept-blockers" in str(caught.value.next_step)


NGINX = PortHolder(port=8080, address="0.0.0.0", pid=7, program="nginx", user="root", unit="nginx.service")
UNIT = {"unit_path": "/etc/systemd/system/sbctl-runtime.service"}
SERVES = {**UNIT, "running": True, "healthy": True, "pid": 9, "http_url": "http://127.0.0.1:8080"}


def ours_at(path: str) -> PortHolder:
    return PortHolder(port=8080, address="127.0.0.1", pid=12, program="python", user="root", started_as=path)


@pytest.mark.parametrize(
    ("runtime", "holder", "taken"),
    [
        ({}, NGINX, True),
        (SERVES, PortHolder(port=8080, address="127.0.0.1", pid=9, program="sbctl-runtime"), False),
        (SERVES, PortHolder(port=8080, address="127.0.0.1", user="sbctl"), False),
        ({**SERVES, "http_url": "http://127.0.0.1:8079"}, NGINX, True),
        ({**SERVES, "http_url": "http://0.0.0.0:8080"}, PortHolder(port=8080, address="0.0.0.0", pid=1), False),
        ({**SERVES, "http_url": None}, NGINX, False),
        (UNIT, PortHolder(port=8080, address="127.0.0.1", pid=1, program="systemd", unit="init.scope"), False),
        (UNIT, PortHolder(port=8080, address="127.0.0.1", user="root"), False),
        (UNIT, NGINX, True),
        ({}, PortHolder(port=8080, address="127.0.0.1", user="root"), True),
        ({}, ours_at("/o/0.1.0/bin/python"), False),
        ({}, ours_at("/other/bin/python"), True),
    ],
)
def test_a_plan_and_an_apply_know_whether_a_port_is_somebody_else_s(
    tmp_path: Path, runtime: dict[str, Any], holder: PortHolder, taken: bool
) -> None:
    seen, holders = told(runtime=runtime), {"local": (holder,)}
    made = config(tmp_path)
    plan = with_ports(build_plan(PlanInputs.against((), (), made, NOW), {}), made, {"local": seen}, holders)
    assert bool(plan.taken) == taken
    assert plan_exit_code(plan) == (ExitCode.REFUSED if taken else ExitCode.DONE)
    listed = plan_document(plan)["refusals"]
    assert [row["code"] for row in listed] == ["doctor.blocked"] * taken
    found = planned(tmp_path, seen, ("runtime", "update"), holders=holders)
    if not taken:
        refuse_unfit(found)
        return
    assert "127.0.0.1:8080 is held by" in listed[0]["message"]
    with pytest.raises(RefusedError) as caught:
        refuse_unfit(found)
    assert "choose another port" in str(caught.value.next_step)


def test_what_nobody_told_blocks_nothing(tmp_path: Path) -> None:
    silent = NodeSnapshot(bootstrapped=False)
    everything = (("host", "create"), ("runtime", "create"), ("artifact", "create"))
    refuse_unfit(planned(tmp_path, silent, *everything))

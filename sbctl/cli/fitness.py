"""Whether hosts are fit for what sb.yml asks of them: rules over what they told, pure. `doctor` shows all findings; `apply` begins nothing
while one of them is a blocker on a host that it would change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Final

from sbctl.artifacts.model import ArtifactFacts
from sbctl.base.display import format_bytes
from sbctl.base.limits import CLOCK_SKEW_LEEWAY_S, GIB, MIB
from sbctl.cli.memory_needs import needs_of, usable_bytes
from sbctl.cli.public_certificates import certificate_notes, certificate_problems
from sbctl.config.compiled import CompiledHost
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from sbctl.node.snapshot import HostFacts, NodeSnapshot
from sbctl.trust.identity import CLOCK_SKEW_S
from sbctl.views.host_views import Check, Verdict

__all__ = [
    "budget_checks",
    "cache_bytes",
    "certificate_checks",
    "clock_check",
    "device_checks",
    "filesystem_checks",
    "need_checks",
    "program_disk_check",
    "system_checks",
    "usable_bytes",
]

_RUNTIME_DISK_BYTES: Final = 200 * MIB
"""Of one version of the runtime, with the wheels it is made from."""
_ENGINE_DISK_BYTES: Final = 120 * MIB
_NETWORK: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "beegfs", "ceph", "davfs", "gfs2", "glusterfs", "gpfs", "lustre", "ocfs2"}
)  # fmt: skip
_LOCAL_FUSE: Final = frozenset({"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.mergerfs"})
_TOGETHER: Final = "unset warm of one, lower its max_context or max_concurrency, set kv_quant: int8, or move it to another host (required_labels)"
_BUILT_FOR: Final = "builds for devices use them (engines.llama_cpp with launch: binary and acceleration), the wheel computes on the CPU"
_DRIVER_COMMANDS: Final = {
    "debian": "enable contrib and non-free, then: apt-get install linux-headers-amd64 nvidia-driver firmware-misc-nonfree; reboot",
    "ubuntu": "apt-get install ubuntu-drivers-common, then: ubuntu-drivers install; reboot",
}


def need_checks(host: CompiledHost, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Each deployment of a host against its memory, all of them together, and the downloads against the disk."""
    needs = needs_of(host, snapshot)
    for need in needs.deployments:
        verdict: Verdict = "fail" if need.short_bytes else "pass"
        yield Check(
            f"fit {need.deployment.id}", verdict, need.said, need.remedy() if need.short_bytes else "", host.name
        )
    if len(needs.deployments) > 1:
        together: Verdict = "fail" if needs.short_bytes else "pass"
        yield Check("fit together", together, needs.said, _TOGETHER, host.name)
    present = {artifact.artifact for artifact in snapshot.artifacts if artifact.state == "ready"}
    needed = {facts.artifact: facts for one in host.deployments.values() for facts in one.artifacts}
    missing = {artifact: facts for artifact, facts in needed.items() if artifact not in present}
    free = snapshot.disk.cache_free_bytes
    if missing and free is not None:
        taken = {artifact.artifact: artifact.taken_bytes for artifact in snapshot.artifacts}
        yield _disk(host.name, missing.values(), taken, free)


def cache_bytes(snapshot: NodeSnapshot) -> int:
    """What the models of a host's cache have of its disk."""
    return sum(one.taken_bytes if one.state == "partial" else one.size_bytes for one in snapshot.artifacts)


def budget_checks(host: CompiledHost, snapshot: NodeSnapshot) -> Iterator[Check]:
    """The cache's budget against what deployments need, which nothing takes from them, and against the disk."""
    budget_gib, free = host.model_host.cache.budget_gib, snapshot.disk.cache_free_bytes
    if budget_gib is None:
        return
    budget, held = int(budget_gib * GIB), cache_bytes(snapshot)
    configured = {facts.artifact: facts for one in host.deployments.values() for facts in one.artifacts}
    needed = sum(facts.total_bytes for facts in configured.values())
    if needed > budget:
        said = f"{format_bytes(budget)}, and the deployments need {format_bytes(needed)}, which stays whatever the budget says"
        yield Check(
            "cache budget", "warn", said, "raise proxy.model_host.cache.budget_gib, or serve fewer models", host.name
        )
    elif free is not None and budget > held + free:
        said = f"{format_bytes(budget)}, and the disk has room for {format_bytes(held + free)}"
        remedy = "lower proxy.model_host.cache.budget_gib, or set cache.directory to a larger disk: a pull would find it full first"
        yield Check("cache budget", "warn", said, remedy, host.name)
    else:
        yield Check("cache budget", "pass", f"{format_bytes(budget)}, {format_bytes(held)} of it taken", host=host.name)


def _disk(host: str, missing: Iterable[ArtifactFacts], taken: Mapping[str, int], free: int) -> Check:
    """What a download that was interrupted has of the disk already is not asked of it once more."""
    wanted = list(missing)
    has = sum(min(facts.total_bytes, taken.get(facts.artifact, 0)) for facts in wanted)
    total = sum(facts.total_bytes for facts in wanted)
    begun = f", {format_bytes(has)} of it have their place on the disk already" if has else ""
    return Check(
        "disk for weights",
        "pass" if total - has < free else "fail",
        f"{format_bytes(total)} to fetch{begun}, {format_bytes(free)} free",
        "free space, or set proxy.model_host.cache.directory to a larger disk",
        host,
    )


def program_disk_check(host: CompiledHost, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Room for the runtime and the engines that are not there yet; nothing where nothing is to be installed, or nobody knows."""
    need = 0 if snapshot.runtime.current_version else _RUNTIME_DISK_BYTES
    installed = {(one.engine, one.version) for one in snapshot.engines if one.ours}
    wanted = {
        (one.engine, one.engine_policy.version or LLAMA_CPP_WHEEL_DEFAULT)
        for one in host.deployments.values()
        if one.engine_policy.launch == "wheel"
    }
    need += _ENGINE_DISK_BYTES * len(wanted - installed)
    free = snapshot.disk.opt_free_bytes
    if need and free is not None:
        place = "" if snapshot.paths is None else f" below {snapshot.paths.opt}"
        yield Check(
            "disk for programs",
            "pass" if need < free else "fail",
            f"runtime and engines need {format_bytes(need)}, {format_bytes(free)} free{place}",
            "free space on this filesystem",
            host.name,
        )


def clock_check(name: str, facts: HostFacts, now: datetime, window_s: float) -> Iterator[Check]:
    """The host's clock against the operator's. The host told its time within `window_s` seconds before `now`."""
    try:
        there = datetime.fromisoformat(facts.now)
    except ValueError:
        return
    if there.tzinfo is None:
        return
    apart_s = (there - now).total_seconds()
    # It told whole seconds, and some time ago.
    off_s = max(0.0, apart_s, -apart_s - window_s - 1.0)
    verdict: Verdict = "fail" if off_s > CLOCK_SKEW_S else "warn" if off_s > CLOCK_SKEW_LEEWAY_S else "pass"
    which = "ahead of" if apart_s > 0 else "behind"
    said = f"{off_s:.0f} s {which} the operator's clock" if verdict != "pass" else "agrees with the operator's clock"
    remedy = (
        "set it: timedatectl set-ntp true (Debian, Ubuntu: apt-get install systemd-timesyncd); or set the operator's"
    )
    yield Check("clock", verdict, said, remedy, name)


def filesystem_checks(name: str, snapshot: NodeSnapshot) -> Iterator[Check]:
    """Locks and durable renames are not what they say over a network, and weights are read page by page."""
    disk, paths = snapshot.disk, snapshot.paths
    places = {
        "weights": (disk.cache_filesystem, paths.cache if paths is not None else ""),
        "state": (disk.state_filesystem, paths.state if paths is not None else ""),
        "programs": (disk.opt_filesystem, paths.opt if paths is not None else ""),
    }
    remote = {what: place for what, place in places.items() if _is_network(place[0])}
    for what, (kind, path) in remote.items():
        remedy = (
            "set proxy.model_host.cache.directory to a local disk" if what == "weights" else "mount a local disk there"
        )
        yield Check(f"filesystem of {what}", "fail", f"{path} is on {kind}, a filesystem over a network", remedy, name)
    kinds = sorted({kind for kind, _path in places.values() if kind})
    if not remote and kinds:
        yield Check("filesystems", "pass", f"local ({', '.join(kinds)})", host=name)


def _is_network(kind: str) -> bool:
    return kind in _NETWORK or (kind.startswith("fuse.") and kind not in _LOCAL_FUSE)


def system_checks(name: str, facts: HostFacts) -> Iterator[Check]:
    """Control groups, and what sbctl never installs."""
    if facts.init == "systemd_system" and facts.cgroup:
        yield Check(
            "control groups",
            "pass" if facts.cgroup == "v2" else "warn",
            facts.cgroup,
            "limits of engines need v2: add systemd.unified_cgroup_hierarchy=1 to the kernel's command line, then reboot",
            name,
        )
    yield Check(
        "container runtime",
        "skip",
        "not needed: engines run as processes; sbctl never installs one (Debian, Ubuntu: apt-get install podman)",
        host=name,
    )


def device_checks(name: str, facts: HostFacts) -> Iterator[Check]:
    """Devices and the driver they need."""
    if facts.gpu_problem is not None:
        remedy = "repair the driver (often a reboot after its update)"
        yield Check("gpu driver", "warn", facts.gpu_problem, remedy, name)
    elif any(gpu.get("vendor") == "nvidia" and not gpu.get("driver") for gpu in facts.gpus):
        commands = _DRIVER_COMMANDS.get(facts.os_id, "install the NVIDIA driver of your distribution; reboot")
        said = "an NVIDIA device is there and no driver has it; sbctl never installs drivers"
        yield Check("gpu driver", "warn", said, commands, name)
    elif facts.nvidia_driver:
        cuda = f", CUDA {facts.cuda}" if facts.cuda else ""
        yield Check("gpu driver", "pass", f"NVIDIA {facts.nvidia_driver}{cuda}", host=name)
    yield Check(
        "gpu",
        "pass" if facts.gpus else "skip",
        f"{', '.join(_device(gpu) for gpu in facts.gpus)}; {_BUILT_FOR}"
        if facts.gpus
        else "none found; engines compute on the CPU",
        host=name,
    )


def _device(gpu: Mapping[str, str | int]) -> str:
    name = str(gpu.get("name") or gpu.get("vendor") or "device")
    memory = gpu.get("memory_total_bytes")
    return f"{name} ({format_bytes(memory)})" if isinstance(memory, int) else name


def certificate_checks(name: str, snapshot: NodeSnapshot, now: datetime) -> Iterator[Check]:
    """The certificate that callers of the API see, where a runtime shows one."""
    tls = snapshot.runtime.tls
    if tls is None or not snapshot.runtime.running:
        return
    problems, notes = tuple(certificate_problems(tls, now)), tuple(certificate_notes(tls, now))
    for said in problems:
        yield Check("certificate", "fail", said, "sbctl plan shows it", name)
    for said in notes:
        yield Check("certificate", "warn", said, host=name)
    if not problems and not notes:
        yield Check("certificate", "pass", f"{tls.subject}, until {(tls.not_after or '')[:10]}", host=name)

"""`host exec` and `host facts`: what hosts say, each line under its host's name. All of it is foreign text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.display import display_safe, format_bytes, plural
from sbctl.base.errors import ExitCode, SbctlError, worst_exit
from sbctl.node.snapshot import NodeSnapshot
from sbctl.views.layout import safe
from sbctl.views.tables import Cell, render_fields

__all__ = [
    "NO_SUCH_PROGRAM", "Executed", "complaint_lines", "exec_body", "exec_exit_code", "exec_summary", "facts_body", "facts_text", "output_lines",
]  # fmt: skip

NO_SUCH_PROGRAM: Final = 127
"""How a login shell ends that finds no program of the name."""
_LINE_MAX_CHARS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Executed:
    """How a command ended on one host. `exit_code` is None where it did not run to its end, and `error` says why."""

    name: str
    exit_code: int | None = None
    stdout: str = ""
    stderr: str = ""
    error: SbctlError | None = None

    @property
    def status(self) -> Literal["done", "failed", "unreachable", "error"]:
        if self.error is not None:
            return "unreachable" if self.error.exit_code is ExitCode.UNREACHABLE else "error"
        return "done" if self.exit_code == 0 else "failed"


def exec_exit_code(results: Sequence[Executed]) -> ExitCode:
    """1 when the command failed anywhere, 7 when a host could not be reached."""
    codes = {
        "done": ExitCode.DONE,
        "failed": ExitCode.FAILED,
        "unreachable": ExitCode.UNREACHABLE,
        "error": ExitCode.FAILED,
    }
    return worst_exit(codes[each.status] for each in results)


def output_lines(result: Executed, width: int) -> str:
    """What the command printed, for stdout; empty when nothing."""
    return _labelled(result.name, result.stdout, width)


def complaint_lines(result: Executed, width: int) -> str:
    """What it complained and how it failed, for stderr."""
    text = _labelled(result.name, result.stderr, width)
    if result.error is not None:
        then = f". {result.error.next_step}" if result.error.next_step else ""
        text += _labelled(result.name, f"{result.error.code}: {result.error.message}{then}", width)
    elif result.exit_code:
        text += _labelled(result.name, f"exit {result.exit_code}", width)
    return text


def _labelled(name: str, text: str, width: int) -> str:
    label = safe(name).ljust(width)
    return "".join(f"{label} | {display_safe(line, max_chars=_LINE_MAX_CHARS)}\n" for line in _lines(text))


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def exec_summary(results: Sequence[Executed]) -> str:
    """`3 hosts: 2 done, 1 failed (gpu-b: exit 3)`."""
    counted = []
    for status in ("done", "failed", "error", "unreachable"):
        found = [each for each in results if each.status == status]
        if found:
            which = ", ".join(
                f"{each.name}: exit {each.exit_code}" if status == "failed" else each.name for each in found[:8]
            )
            more = ", …" if len(found) > 8 else ""
            counted.append(f"{len(found)} {status}" + (f" ({which}{more})" if status != "done" else ""))
    return f"{plural(len(results), 'host')}: {', '.join(counted)}"


def exec_body(argv: Sequence[str], results: Sequence[Executed]) -> dict[str, Any]:
    """As JSON. What hosts printed is there as text; bytes that are none are replaced."""
    return {
        "argv": list(argv),
        "hosts": [
            {
                "name": each.name,
                "status": each.status,
                "exit_code": each.exit_code,
                "stdout": each.stdout,
                "stderr": each.stderr,
                "error": None if each.error is None else each.error.to_wire(),
            }
            for each in results
        ],
    }


def facts_text(
    snapshots: Mapping[str, NodeSnapshot], unreachable: Mapping[str, SbctlError], width: int
) -> RenderableType:
    """A block of facts a host."""
    blocks: list[RenderableType] = [
        render_fields(_facts(snapshot), width=width, title=f"{name}") for name, snapshot in snapshots.items()
    ]
    for name, error in unreachable.items():
        then = f". {error.next_step}" if error.next_step else ""
        blocks.append(Text(f"{safe(name)}: {safe(error.message)}{safe(then)}\n", style="bold red"))
    return Group(*blocks)


def _facts(snapshot: NodeSnapshot) -> list[tuple[str, Cell]]:
    host, runtime, disk = snapshot.host, snapshot.runtime, snapshot.disk
    gpus = ", ".join(str(gpu.get("name", "GPU")) for gpu in host.gpus)
    free = "" if disk.cache_free_bytes is None else format_bytes(disk.cache_free_bytes)
    memory = f"{format_bytes(host.memory_total_bytes)}, {format_bytes(host.memory_available_bytes)} available"
    health = "healthy" if runtime.healthy else "running, not healthy" if runtime.running else "not running"
    return [
        ("hostname", host.hostname),
        ("system", " ".join(part for part in (host.os_id, host.os_version, host.arch, host.libc) if part)),
        ("kernel", host.kernel),
        ("CPUs", host.cpu_count),
        ("memory", memory),
        ("devices", gpus),
        ("free for weights", free),
        ("supervisor", host.init),
        ("Python", ", ".join(f"{python.version} ({python.path})" for python in host.pythons[:3])),
        ("clock", host.now),
        ("managed by", None if snapshot.marker is None else f"{snapshot.marker.lineage} as {snapshot.marker.host}"),
        ("runtime", f"{runtime.current_version}, {health}" if runtime.current_version else None),
        ("engines", ", ".join(f"{engine.engine} {engine.version}" for engine in snapshot.engines)),
        ("weights", ", ".join(f"{each.artifact[:12]} {each.state}" for each in snapshot.artifacts)),
        ("bundle", None if snapshot.bundle is None else f"revision {snapshot.bundle.revision}"),
    ]


def facts_body(snapshots: Mapping[str, NodeSnapshot], unreachable: Mapping[str, SbctlError]) -> dict[str, Any]:
    """The whole snapshots, as JSON."""
    return {
        "hosts": {name: snapshot.model_dump(mode="json") for name, snapshot in snapshots.items()},
        "unreachable": {name: error.to_wire() for name, error in unreachable.items()},
    }

"""`host trust`: the question with the fingerprint in it, and how it ended for each host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from rich.console import Group, RenderableType
from rich.text import Text

from sbctl.base.errors import ExitCode, worst_exit
from sbctl.base.host_keys import HostKey
from sbctl.config.known_hosts import LineNote
from sbctl.views.layout import safe
from sbctl.views.tables import Cell, Column, render_rows

__all__ = ["Question", "Status", "Trust", "TrustOutcome", "question_text", "trust_body", "trust_text"]

Status = Literal[
    "pinned", "unchanged", "in_sb_yml", "declined", "unreachable", "unknown", "refused", "unnamed", "removed"
]
_EXIT: Mapping[str, ExitCode] = {
    "declined": ExitCode.REFUSED,
    "refused": ExitCode.REFUSED,
    "unreachable": ExitCode.UNREACHABLE,
    "unknown": ExitCode.FAILED,
}


@dataclass(frozen=True, slots=True)
class Question:
    """What somebody is asked: pin this key for this host?"""

    name: str
    address: str
    port: int
    key: HostKey
    source: str
    """`shown by the host`, or the file and line."""
    previous: tuple[str, ...] = ()
    """Fingerprints that were pinned before; any means that the key changed."""
    previous_place: str = ""
    shared_with: tuple[str, ...] = ()
    """Other hosts that have this very key."""


@dataclass(frozen=True, slots=True)
class Trust:
    """How it ended for one host or jump."""

    name: str
    address: str
    port: int
    status: Status
    key: HostKey | None = None
    previous: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class TrustOutcome:
    """Of all, in the order in which they were asked."""

    lock: Path
    hosts: tuple[Trust, ...]
    lines: tuple[LineNote, ...] = ()
    """Of the known_hosts file: what was left out."""

    @property
    def exit_code(self) -> ExitCode:
        return worst_exit(_EXIT.get(host.status, ExitCode.DONE) for host in self.hosts)


_WORDS: Final = {
    "pinned": "pinned",
    "unchanged": "pinned already",
    "in_sb_yml": "pinned in sb.yml",
    "declined": "NOT PINNED",
    "refused": "REFUSED",
    "unknown": "NOT KNOWN",
    "unreachable": "UNREACHABLE",
    "unnamed": "not in sb.yml",
    "removed": "removed",
}
_STYLES: Final = {
    "pinned": "green",
    "pinned already": "green",
    "NOT PINNED": "yellow",
    "REFUSED": "bold red",
    "NOT KNOWN": "yellow",
    "UNREACHABLE": "bold red",
}
_LINES_SHOWN: Final = 20


def question_text(question: Question) -> RenderableType:
    """What stands above the yes or no."""
    parts = [
        Text(f"\n{safe(question.name)} at {safe(question.address)} port {question.port}", style="bold"),
        Text(f"  {question.key.algorithm} {question.key.fingerprint}  ({safe(question.source)})"),
    ]
    if question.previous:
        before = ", ".join(map(safe, question.previous))
        parts.append(
            Text(f"  THE KEY CHANGED. Pinned before: {before} ({safe(question.previous_place)})", style="bold red")
        )
        parts.append(
            Text(
                "  Only a host that was reinstalled on purpose has a new key; else somebody is in between.",
                style="bold red",
            )
        )
    if question.shared_with:
        names = ", ".join(map(safe, question.shared_with[:5]))
        parts.append(Text(f"  {names} has the same key: copies of one image can pass for each other", style="yellow"))
    file = f"/etc/ssh/ssh_host_{_FILES.get(question.key.algorithm, 'ecdsa')}_key.pub"
    parts.append(Text(f"  compare it on the host's console: ssh-keygen -lf {file}", style="dim"))
    return Group(*parts)


_FILES: Final = {"ssh-ed25519": "ed25519", "ssh-rsa": "rsa"}


def trust_text(outcome: TrustOutcome) -> RenderableType:
    """One line a host; what went wrong and what was left out under them."""
    rows: list[list[Cell]] = [
        [
            host.name,
            host.key.algorithm if host.key else None,
            host.key.fingerprint if host.key else None,
            _WORDS[host.status],
        ]
        for host in outcome.hosts
    ]
    table = render_rows(
        ["name", "algorithm", "fingerprint", Column("now", style_by=_STYLES)], rows, empty="there is nothing to pin"
    )
    parts: list[RenderableType] = [table]
    parts += [Text(f"{safe(host.name)}: {safe(host.problem)}") for host in outcome.hosts if host.problem]
    parts += [Text(f"line {note.line}: {safe(note.sentence)}", style="dim") for note in outcome.lines[:_LINES_SHOWN]]
    if len(outcome.lines) > _LINES_SHOWN:
        parts.append(Text(f"… and {len(outcome.lines) - _LINES_SHOWN} lines more that were left out", style="dim"))
    if any(host.status == "pinned" for host in outcome.hosts):
        parts.append(Text(f"commit {safe(outcome.lock)}: plan and apply connect to nothing else"))
    return Group(*parts)


def trust_body(outcome: TrustOutcome) -> dict[str, Any]:
    """The same as JSON."""
    return {
        "lock": str(outcome.lock),
        "hosts": [
            {
                "name": host.name,
                "address": host.address,
                "port": host.port,
                "status": host.status,
                "algorithm": host.key.algorithm if host.key else None,
                "fingerprint": host.key.fingerprint if host.key else None,
                "previous": list(host.previous),
                "changed": bool(host.previous) and host.status != "in_sb_yml",
                "problem": host.problem or None,
            }
            for host in outcome.hosts
        ],
        "left_out": [{"line": note.line, "reason": note.sentence} for note in outcome.lines],
    }

"""`cluster confirm-lost|retry|evacuate|restore`: what an operator asks of a cluster that runs, beside its bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sbctl.base.errors import ExitCode
from sbctl.cli.options import File, Format, OutputFormat, Yes

if TYPE_CHECKING:
    from sbctl.cli.cluster_acting import Acted
    from sbctl.node.cluster_actions import ActionName

__all__ = ["register"]

Node = Annotated[str, typer.Argument(metavar="NODE", help="The host, as sb.yml calls it.")]
Reason = Annotated[str, typer.Option("--reason", help="For whoever reads the status and the audit.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this module."""
    app.command()(evacuate)
    app.command()(restore)
    app.command(name="confirm-lost")(confirm_lost)
    app.command()(retry)


def evacuate(
    node: Node,
    reason: Reason = "",
    deadline: Annotated[
        float,
        typer.Option(
            "--deadline",
            min=0,
            max=86_400,
            metavar="SECONDS",
            help="How long to wait until nothing runs on it. 0: not.",
        ),
    ] = 600.0,
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Empty a worker without an outage: it gets nothing new, and serves what it runs until that is ready elsewhere. Holds until
    `cluster restore`."""
    from sbctl.cli.cluster_acting import evacuated
    from sbctl.views.console import note

    acted = _asked("evacuate", node, reason, file, format, wait_s=deadline)
    if acted.left is not None:
        evacuated(node, acted.left, deadline)
        note(f"nothing runs on {node}; it gets replicas again by: sbctl cluster restore {node}")
    return ExitCode.DONE


def restore(
    node: Node,
    reason: Reason = "",
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Take an evacuation back: the worker gets replicas again, as one that just joined."""
    _asked("restore", node, reason, file, format)
    return ExitCode.DONE


def confirm_lost(
    node: Node,
    reason: Reason = "",
    file: File = Path("sb.yml"),
    yes: Yes = False,
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Say that a silent node is gone for good: what it ran is placed elsewhere now, also while placement holds back since many are silent.
    Over when the node is heard again."""
    from sbctl.cli.fleet_setup import require_yes

    require_yes(
        f"What {node} ran is started elsewhere now. If {node} is only cut off, it goes on computing for whoever reaches it. "
        "Is it gone for good? (yes/no) ",
        assume_yes=yes,
    )
    _asked("confirm_lost", node, reason, file, format)
    return ExitCode.DONE


def retry(
    deployment: Annotated[str, typer.Argument(metavar="DEPLOYMENT", help="The deployment, as sb.yml calls it.")],
    reason: Reason = "",
    file: File = Path("sb.yml"),
    format: Format = OutputFormat.TEXT,  # noqa: A002
) -> int:
    """Begin a rollout that failed, or was not ready in time, once more: with a deadline of its own, and without waiting for the next try."""
    _asked("retry", deployment, reason, file, format)
    return ExitCode.DONE


def _asked(
    action: ActionName,
    subject: str,
    reason: str,
    file: Path,
    format: OutputFormat,  # noqa: A002
    *,
    wait_s: float = 0.0,
) -> Acted:
    """Ask for it, and show what became of it."""
    from sbctl.cli.cluster_acting import act
    from sbctl.cli.workspace import Workspace
    from sbctl.views.cluster_action_views import acted_body, acted_text
    from sbctl.views.console import note, print_json

    acted = act(
        Workspace(file),
        action,
        subject,
        reason=reason,
        wait_s=wait_s,
        taken=lambda answer: note(acted_text(answer)),
        told=note,
    )
    if format is OutputFormat.JSON:
        print_json(f"cluster.{acted.answer.action.replace('_', '-')}", acted_body(acted.host, acted.answer, acted.left))
    return acted

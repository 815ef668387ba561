"""Where a plan leads a cluster, for the terminal: a line a deployment, a line a replica that moves; every worker's reasons when asked for."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from sbctl.base.display import format_bytes, plural
from sbctl.plan.document import NodeStandingDocument, PlacedDeploymentDocument, PlacementPart
from sbctl.views.layout import joined, safe, sentence
from sbctl.views.places import device_words, place_words

__all__ = ["placement_text"]

_CHANGES_MAX = 20


def placement_text(placement: PlacementPart, *, width: int, explain: bool = False) -> Text:
    """Empty for a cluster without deployments."""
    text = Text()
    if not placement.deployments and not placement.changes:
        return text
    workers = plural(placement.workers, "worker")
    text.append_text(
        sentence(f"placement in {safe(placement.cluster_id)}, {workers}", indent=0, width=width, style="bold")
    )
    for one in placement.deployments:
        style = "bold red" if one.unplaced else ""
        text.append_text(sentence(_words(one), indent=2, width=width, style=style))
        for row in one.nodes if explain else ():
            text.append_text(sentence(_row(row, one), indent=6, width=width))
    for said in _moves(placement):
        text.append_text(sentence(said, indent=2, width=width, first="→ "))
    return text


def _words(one: PlacedDeploymentDocument) -> str:
    """`chat: 2 of 2 on gpu-1, gpu-3; 1.2 GiB a replica`; of one on devices also what each of them must hold."""
    listed = ", ".join(place_words((assigned.node, assigned.devices) for assigned in one.assignments))
    where = f" on {listed}" if listed else ""
    need = f"{format_bytes(one.memory_bytes)} a replica" if one.memory_bytes else ""
    if need and one.devices:
        on = f"each of {one.devices} devices" if one.devices > 1 else "a device"
        need += f", {format_bytes(one.device_bytes)} on {on}"
    missing = f"no place for {one.unplaced}" if one.unplaced else ""
    head = f"{safe(one.deployment)}: {one.replicas - one.unplaced} of {one.replicas}{where}"
    return joined((head, need, missing), "; ")


def _row(row: NodeStandingDocument, one: PlacedDeploymentDocument) -> str:
    """What an operator wants to know of one worker: `gpu-2 refused: needs 9.0 GiB of main memory, has 4.0 GiB free: 5.0 GiB short`"""
    name = safe(row.node)
    if row.standing == "refused":
        return f"{name} refused: {safe(row.message)}"
    here = [assigned.devices for assigned in one.assignments if assigned.node == row.node]
    devices = device_words(here) if row.standing == "placed" else ""
    facts = [f"on {devices}"] if devices else []
    facts += [f"score {row.score:.3f}"] if row.score else []
    facts += ["has the weights"] if row.has_weights else []
    facts += [", ".join(map(safe, row.domains))] if row.domains else []
    slots = f" {', '.join(map(str, row.slots))}" if row.slots else ""
    word = {
        "placed": "gets replica" if len(row.slots) == 1 else "gets replicas",
        "held": "keeps, until the new is ready, replica",
        "possible": "could take one",
    }[row.standing]
    more = f"; no more: {safe(row.message)}" if row.message else ""
    return f"{name} {word}{slots}{': ' + joined(facts, ', ') if facts else ''}{more}"


def _moves(placement: PlacementPart) -> Iterator[str]:
    for one in placement.changes[:_CHANGES_MAX]:
        yield safe(one.message)
    left = len(placement.changes) - _CHANGES_MAX
    if left > 0:
        yield f"{left} more in --format json"
    if placement.deferred_moves:
        yield f"{plural(placement.deferred_moves, 'move')} to newcomers follow later, a few at a time"

"""Where replicas run, in a few words: `gpu-1 ×2 (devices 0+1, 2+3), gpu-3 (device 0)`; devices of one replica are joined by +."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sbctl.base.display import display_safe

__all__ = ["device_words", "place_words"]


def device_words(groups: Iterable[Sequence[int]]) -> str:
    """`device 0`, `devices 0+1`, `devices 0, 3`; empty for replicas on processors."""
    said = ["+".join(map(str, group)) for group in groups if group]
    several = len(said) > 1 or any("+" in one for one in said)
    return f"device{'s' if several else ''} {', '.join(said)}" if said else ""


def place_words(replicas: Iterable[tuple[str, Sequence[int]]]) -> list[str]:
    """By node, in the order of their names. Each replica is a node and its devices."""
    by_node: dict[str, list[Sequence[int]]] = {}
    for node, devices in replicas:
        by_node.setdefault(node, []).append(devices)
    return [_of_node(node, sorted(groups, key=tuple)) for node, groups in sorted(by_node.items())]


def _of_node(node: str, groups: Sequence[Sequence[int]]) -> str:
    count = f" ×{len(groups)}" if len(groups) > 1 else ""
    devices = device_words(groups)
    return f"{display_safe(node)}{count}{f' ({devices})' if devices else ''}"

"""The one list of doors: everywhere that bytes of somebody else come in and are read as a format."""

from __future__ import annotations

from typing import Final

from tests.fuzz.cluster_doors import CLUSTER_DOORS
from tests.fuzz.door import Door
from tests.fuzz.file_doors import FILE_DOORS
from tests.fuzz.wire_doors import WIRE_DOORS

__all__ = ["DOORS", "WANTED"]

DOORS: Final[dict[str, Door]] = {door.name: door for door in (*FILE_DOORS, *WIRE_DOORS, *CLUSTER_DOORS)}

WANTED: Final[dict[str, tuple[str, ...]]] = {
    "GGUF header": ("gguf header",),
    "safetensors header": ("safetensors header",),
    "pickle scan": ("pickle scan",),
    "archives": ("engine archive", "python archive", "pack"),
    "sb.yml": ("sb.yml",),
    "catalog": ("catalog",),
    "lockfiles": ("models lockfile", "hosts lockfile"),
    "bundle envelope": ("bundle envelope", "bundle payload", "signer set"),
    "node messages": ("node frames", "node messages", "bootstrap answer", "host lease"),
    "admin bodies": ("admin bodies",),
    "control socket": ("control socket",),
    "HTTP requests": ("request head", "request chunks", "request body", "request form", "gateway connection"),
    "engine answers": ("engine answer",),
    "external provider answers": ("external provider answer",),
    "launcher": ("launcher request",),
    "hub": ("hub answer",),
    "enrollment": ("enrollment",),
    "saved plans and state": ("saved plan", "plan document", "state document"),
    "files on a host": ("runtime settings", "snapshot manifest", "activation journal"),
    "what nodes sign": (
        "signed document",
        "peer certificate",
        "node snapshot",
        "assignment",
        "placement plan",
        "cluster lease",
        "dispatch",
    ),
    "cluster state": ("cluster bundle", "revocation list", "boot epoch"),
    "SSH files": ("ssh config", "known hosts"),
}
"""What must have a fuzzer, in the words of who asks for it, and which doors that is."""

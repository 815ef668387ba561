"""Our own wheel, made from the files we run from: the same bytes from a checkout, an editable install or an installed distribution.

Deterministic by construction: sorted members, one date, one mode, stored without compression (compressors differ between machines).
It starts `sbctl-runtime` only and names no dependencies: on a node the locked wheels beside it are the whole environment.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sbctl import __version__

__all__ = ["build_own_wheel", "own_wheel_members", "own_wheel_name"]

_DATA_KINDS: Final = ("schemas", "templates", "requirements")
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)
_STEM: Final = f"sbctl_fleet-{__version__}"

_METADATA: Final = f"""\
Metadata-Version: 2.3
Name: sbctl-fleet
Version: {__version__}
Summary: The node side of sbctl.
Requires-Python: >=3.11
"""
_WHEEL: Final = """\
Wheel-Version: 1.0
Generator: sbctl
Root-Is-Purelib: true
Tag: py3-none-any
"""
_ENTRY_POINTS: Final = """\
[console_scripts]
sbctl-runtime = sbctl.runtime.main:main
"""


def own_wheel_name() -> str:
    return f"{_STEM}-py3-none-any.whl"


def own_wheel_members(package: Path, providers_package: Path) -> Mapping[str, bytes]:
    """Member name → content, from the directories of the two import packages. Data stands in `sbctl/_data`, or beside them in a checkout."""
    members = dict(_tree(package, "sbctl"))
    members.update(_tree(providers_package, "providers"))
    if not (package / "_data").is_dir():
        for kind in _DATA_KINDS:
            members.update(_tree(package.parent / kind, f"sbctl/_data/{kind}"))
    info = f"{_STEM}.dist-info"
    members[f"{info}/METADATA"] = _METADATA.encode()
    members[f"{info}/WHEEL"] = _WHEEL.encode()
    members[f"{info}/entry_points.txt"] = _ENTRY_POINTS.encode()
    return members


def build_own_wheel(members: Mapping[str, bytes] | None = None) -> bytes:
    """The wheel's bytes; `members` default to the files that this process was imported from."""
    if members is None:
        members = own_wheel_members(_package("sbctl"), _package("providers"))
    record = f"{_STEM}.dist-info/RECORD"
    lines = [f"{name},sha256={_urlsafe(content)},{len(content)}" for name, content in sorted(members.items())]
    listed = {**members, record: ("\n".join(lines) + f"\n{record},,\n").encode()}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, content in sorted(listed.items()):
            member = zipfile.ZipInfo(name, _EPOCH)
            member.create_system = 3
            member.external_attr = 0o100644 << 16
            archive.writestr(member, content)
    return buffer.getvalue()


def _package(name: str) -> Path:
    """Where an import package stands, without importing it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _urlsafe(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode("ascii").rstrip("=")


def _tree(directory: Path, prefix: str) -> Iterator[tuple[str, bytes]]:
    for path in sorted(directory.rglob("*")):
        parts = path.relative_to(directory).parts
        if "__pycache__" in parts or path.suffix == ".pyc" or any(part.startswith(".") for part in parts):
            continue
        if path.is_file():
            yield f"{prefix}/{'/'.join(parts)}", path.read_bytes()

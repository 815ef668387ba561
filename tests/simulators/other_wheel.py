"""Our own wheel, and our own `sbctl`, as another release of it would be: another version, and members edited on purpose."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from sbctl import __version__
from sbctl.remote import own_wheel

__all__ = ["BROKEN_SERVE", "other_release", "other_wheel"]

ROOT = Path(__file__).resolve().parents[2]

BROKEN_SERVE = {
    "sbctl/runtime/daemon.py": '\n\ndef run_serve(argv: list[str]) -> int:\n    raise SystemExit("broken on purpose")\n'
}
"""It installs, its modules import, and it does not serve."""


def other_wheel(version: str, appended: Mapping[str, str] | None = None) -> tuple[str, bytes]:
    """File name and bytes; `appended`: member → text at its end."""
    members = {}
    for name, content in own_wheel.own_wheel_members(ROOT / "sbctl", ROOT / "providers").items():
        other = name.replace(f"sbctl_fleet-{__version__}.dist-info", f"sbctl_fleet-{version}.dist-info")
        if other.endswith("METADATA") or name in ("sbctl/__init__.py", "providers/__init__.py"):
            members[other] = content.replace(__version__.encode(), version.encode())
        else:
            members[other] = content + (appended or {}).get(name, "").encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own_wheel, "_STEM", f"sbctl_fleet-{version}")
        return f"sbctl_fleet-{version}-py3-none-any.whl", own_wheel.build_own_wheel(members)


def other_release(directory: Path, version: str, appended: Mapping[str, str] | None = None) -> dict[str, str]:
    """That release of sbctl, unpacked below `directory`; what must be in the environment of `sbctl` for it to be that release."""
    _, wheel = other_wheel(version, appended)
    root = directory / version
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        archive.extractall(root)
    return {"PYTHONPATH": str(root)}

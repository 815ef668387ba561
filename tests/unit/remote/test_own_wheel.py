"""Our wheel has the same bytes from a checkout and from what it installs, and pip's own rules hold for it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import zipfile
from pathlib import Path

from packaging.utils import parse_wheel_filename

from sbctl import __version__
from sbctl.remote.own_wheel import build_own_wheel, own_wheel_members, own_wheel_name

CHECKOUT = Path(__file__).parents[3]


def _unpacked(content: bytes, directory: Path) -> Path:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            target = directory / member.filename
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(member))
    return directory


def _built(root: Path) -> bytes:
    return build_own_wheel(own_wheel_members(root / "sbctl", root / "providers"))


def test_checkout_and_installed_distribution_give_the_same_bytes(tmp_path: Path) -> None:
    from_checkout = _built(CHECKOUT)
    installed = _unpacked(from_checkout, tmp_path)
    (installed / "sbctl/__pycache__").mkdir()
    (installed / "sbctl/__pycache__/x.pyc").touch()
    assert _built(installed) == from_checkout


def test_what_this_process_runs_from_is_what_is_delivered() -> None:
    assert build_own_wheel() == _built(CHECKOUT)


def test_the_wheel_is_complete() -> None:
    assert parse_wheel_filename(own_wheel_name())[:2] == (
        "sbctl-fleet",
        parse_wheel_filename(f"x-{__version__}-py3-none-any.whl")[1],
    )
    with zipfile.ZipFile(io.BytesIO(build_own_wheel())) as archive:
        names = set(archive.namelist())
        info = f"sbctl_fleet-{__version__}.dist-info"
        assert {
            "sbctl/runtime/main.py",
            "sbctl/py.typed",
            "sbctl/_data/requirements/runtime.txt",
            "providers/__init__.py",
        } <= names
        assert not [name for name in names if name.endswith(".pyc") or "__pycache__" in name or "/." in name]
        assert b"sbctl-runtime = sbctl.runtime.main:main" in archive.read(f"{info}/entry_points.txt")
        recorded = {row[0]: row[1] for row in csv.reader(archive.read(f"{info}/RECORD").decode().splitlines())}
        assert set(recorded) == names
        for name in names - {f"{info}/RECORD"}:
            digest = base64.urlsafe_b64encode(hashlib.sha256(archive.read(name)).digest()).decode().rstrip("=")
            assert recorded[name] == f"sha256={digest}"

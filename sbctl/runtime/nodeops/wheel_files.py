"""A pinned wheel on its host: what the operator's machine sent, or fetched here from the package index."""

from __future__ import annotations

from pathlib import Path
from typing import Final, NamedTuple

from sbctl.artifacts.download import fetch_file
from sbctl.artifacts.fetcher import Fetcher
from sbctl.artifacts.model import Delivery
from sbctl.artifacts.pypi import resolve
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import HostError
from sbctl.node.messages import WheelFile
from sbctl.runtime.egress import host_fetch_settings
from sbctl.runtime.nodeops.context import NodeContext, run_cancellable
from sbctl.runtime.nodeops.snapshot import stored_config

__all__ = ["SEND_AGAIN", "WheelOrigin", "bring_wheel"]

SEND_AGAIN: Final = "run sbctl apply again, which sends it"


class WheelOrigin(NamedTuple):
    """Which release a wheel belongs to, and who brings it."""

    project: str
    version: str
    delivery: Delivery


def bring_wheel(context: NodeContext, origin: WheelOrigin, wheel: WheelFile, staged: Path) -> Path:
    """It stands in `staged` under its own name then, with the digest that it must have.

    Raises HostError `put.missing`, `put.digest_mismatch`, ArtifactError of the fetch, SbctlError `disk.*`.
    """
    target = staged / wheel.filename
    blob = context.paths.blobs / wheel.sha256
    if origin.delivery == "pull":
        run_cancellable(context, _fetch(context, origin, wheel, target))
        return target
    if not blob.is_file():
        raise HostError(
            "put.missing",
            f"{wheel.filename} was not sent to this host",
            place=str(blob),
            next_step=SEND_AGAIN,
            retryable=True,
        )
    # Read in the directory of ours: what was put lies where another account could replace it.
    fs.link_or_copy(blob, target)
    if sha256_file(target) != wheel.sha256:
        raise HostError(
            "put.digest_mismatch",
            "the wheel has other bytes than its name says",
            place=str(blob),
            next_step=SEND_AGAIN,
        )
    return target


async def _fetch(context: NodeContext, origin: WheelOrigin, wheel: WheelFile, target: Path) -> None:
    config, _ = stored_config(context.paths)
    async with Fetcher(host_fetch_settings(config, context.paths, context.environ)) as fetcher:
        file = await resolve(
            origin.project, origin.version, fetcher=fetcher, filename=wheel.filename, content_is_pinned=True
        )
        await fetch_file(
            [file.url],
            target,
            sha256=wheel.sha256,
            size_bytes=file.size_bytes,
            progress=lambda done, total: context.report(done, total, wheel.filename),
            fetcher=fetcher,
        )

"""How this host fetches: `egress` of its configuration, with the secrets that an apply left beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

from sbctl.artifacts.egress import Egress, EgressSecret
from sbctl.artifacts.egress_settings import fetch_settings
from sbctl.artifacts.fetch_policy import FetchSettings
from sbctl.base.errors import InputError
from sbctl.base.fs import read_bounded
from sbctl.base.limits import KIB
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths

__all__ = ["host_fetch_settings"]

_SECRET_MAX_BYTES: Final = 64 * KIB


def host_fetch_settings(config: RuntimeConfig | None, paths: NodePaths, environ: Mapping[str, str]) -> FetchSettings:
    """`config` None: no apply has been here yet. Raises InputError `egress.*`, `artifact.setting_invalid`."""
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    directory = Path(credentials) if credentials else paths.secrets

    def secret(name: EgressSecret) -> Secret:
        try:
            return Secret(read_bounded(directory / name, max_bytes=_SECRET_MAX_BYTES).strip())
        except InputError as error:
            raise InputError(
                "egress.secret_missing",
                f"the secret {name} is not on this host: {error.message}",
                place=str(directory / name),
                next_step="run sbctl apply: it sends the secrets of egress again",
            ) from error

    return fetch_settings(Egress() if config is None else config.egress, environ, secret)

"""How this host reaches the outside: `egress` of its configuration, with the secrets that an apply left beside it."""

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

__all__ = ["egress_settings", "host_fetch_settings", "provider_key"]

_SECRET_MAX_BYTES: Final = 64 * KIB


def provider_key(paths: NodePaths, environ: Mapping[str, str], name: str) -> Secret:
    """The key of an external provider. Raises InputError `egress.secret_missing`."""
    return _sent_secret(paths.secrets, environ, name)


def _sent_secret(secrets: Path, environ: Mapping[str, str], name: str) -> Secret:
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    path = (Path(credentials) if credentials else secrets) / name
    try:
        return Secret(read_bounded(path, max_bytes=_SECRET_MAX_BYTES).strip())
    except InputError as error:
        raise InputError(
            "egress.secret_missing",
            f"the secret {name} is not on this host: {error.message}",
            place=str(path),
            next_step="run sbctl apply: it sends the host's secrets again",
        ) from error


def host_fetch_settings(config: RuntimeConfig | None, paths: NodePaths, environ: Mapping[str, str]) -> FetchSettings:
    """`config` None: no apply has been here yet. Raises InputError `egress.*`, `artifact.setting_invalid`."""
    return egress_settings(Egress() if config is None else config.egress, paths.secrets, environ)


def egress_settings(egress: Egress, secrets: Path, environ: Mapping[str, str]) -> FetchSettings:
    """The same, with the directory of the host's secrets."""

    def secret(name: EgressSecret) -> Secret:
        return _sent_secret(secrets, environ, name)

    return fetch_settings(egress, environ, secret)

"""What the daemon reads once at start: its configuration, whom it trusts, the admin password.

    <etc>/runtime.json              RuntimeConfig, written by the node interface
    <etc>/trust.json                the signed signer set; missing before the first apply
    <etc>/secrets/admin_password    0600

A daemon started by hand reads `{"runtime": RuntimeConfig, "content": BundleContent}` from the file it was given instead: that file is
its desired state, so it takes no bundle.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json, sha256_bytes
from sbctl.base.errors import InputError, SbctlError
from sbctl.base.fs import ensure_directory, read_bounded, write_atomic
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.trust.bundle import BundleContent, TrustSet
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.verifier import parse_trust, trust_digest

__all__ = ["Settings", "admin_password", "load_settings", "load_trust", "prepare_directories"]

_FILE_MAX_BYTES = 4 * BUNDLE_MAX_BYTES
_PASSWORD_MAX_BYTES = 1024


class _HandWritten(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    runtime: RuntimeConfig
    content: BundleContent | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """`config_sha256` is of the file's bytes, as plans compare it; `content` is set only when started by hand."""

    paths: NodePaths
    config: RuntimeConfig
    config_sha256: str
    started_by_hand: bool
    content: BundleContent | None
    file: Path | None = None
    """Which file a daemon was started with by hand."""

    @property
    def cache_directory(self) -> Path:
        return Path(self.config.cache_directory) if self.config.cache_directory else self.paths.models


def _problem(path: Path, error: ValidationError) -> InputError:
    first = error.errors(include_input=False, include_url=False)[0]
    where = ".".join(str(part) for part in first["loc"]) or "the top"
    return InputError(
        "runtime.config_invalid",
        f"{where}: {first['msg']}",
        place=str(path),
        next_step="correct it; what sbctl apply wrote is written anew by sbctl apply",
    )


def load_settings(paths: NodePaths, by_hand: Path | None) -> Settings:
    """Raises InputError `file.*`, `json.*`, `runtime.config_invalid`."""
    path = by_hand or paths.runtime_config
    data = read_bounded(path, max_bytes=_FILE_MAX_BYTES)
    try:
        document = strict_json.loads(data, max_bytes=_FILE_MAX_BYTES)
    except InputError as error:
        raise InputError(
            error.code, error.message, place=str(path), next_step="correct the file, or write it anew"
        ) from None
    try:
        if by_hand is None:
            config = RuntimeConfig.model_validate_json(json.dumps(document))
            return Settings(paths, config, sha256_bytes(data), started_by_hand=False, content=None)
        written = _HandWritten.model_validate_json(json.dumps(document))
    except ValidationError as error:
        raise _problem(path, error) from None
    digest = sha256_bytes(canonical_json(written.runtime.model_dump(mode="json")))
    return Settings(paths, written.runtime, digest, started_by_hand=True, content=written.content, file=path)


def load_trust(paths: NodePaths) -> tuple[TrustSet | None, str | None]:
    """The signer set and its digest; None twice when there is none yet.

    Its signature was checked when it was written (a later set is signed by a member of the former, which is gone by now).
    Raises InputError when the file is there but damaged: a node that cannot tell whom it trusts accepts nothing.
    """
    try:
        data = read_bounded(paths.trust, max_bytes=_FILE_MAX_BYTES)
    except InputError as error:
        if error.code == "file.missing":
            return None, None
        raise
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            "trust.invalid",
            "the signer set is not UTF-8",
            place=str(paths.trust),
            next_step="sbctl apply writes it anew",
        ) from None
    _type, payload, _keyids = unverified_payload(text, max_bytes=BUNDLE_MAX_BYTES)
    trust = parse_trust(payload)
    return trust, trust_digest(trust)


def admin_password(paths: NodePaths, environ: Mapping[str, str]) -> Secret:
    """The admin API's password: the credential that systemd handed over, else the file, made and stored when there is none.

    Raises SbctlError `disk.*`, InputError `file.*`.
    """
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    path = (Path(credentials) if credentials else paths.secrets) / "admin_password"
    try:
        value = read_bounded(path, max_bytes=_PASSWORD_MAX_BYTES).strip()
    except InputError as error:
        if error.code != "file.missing":
            raise
        value = b""
    if not value:
        path = paths.secrets / "admin_password"
        value = secrets.token_urlsafe(24).encode()
        ensure_directory(paths.secrets)
        write_atomic(path, value)
    return Secret(value)


def prepare_directories(paths: NodePaths, directories: tuple[Path, ...]) -> None:
    """Make the directories the daemon writes in, 0700. Raises SbctlError naming one that others may write to."""
    for directory in (paths.state, *directories):
        ensure_directory(directory)
        if directory.stat().st_mode & 0o022:
            raise SbctlError(
                "runtime.unsafe_directory",
                "others may write to this directory",
                place=str(directory),
                next_step="chmod go-w it, after looking who changed it",
            )

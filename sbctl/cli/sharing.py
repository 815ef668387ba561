"""The shared state of a workspace: which place sb.yml names, what this checkout remembers of it, and with which secrets it is opened.

This machine's own key for encrypted states is `SBCTL_STATE_IDENTITY` (the text), `SBCTL_STATE_IDENTITY_FILE`, or `<config dir>/sbctl/keys/state.key`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from platformdirs import user_config_dir

from sbctl.apply.cancellation import Cancellation
from sbctl.base.errors import RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.config.secrets import SecretSources
from sbctl.config.state_block import state_settings
from sbctl.state.settings import EncryptionSettings, StateSettings
from sbctl.state.sharing import read_seen
from sbctl.trust.keys import read_private_file
from sbctl.trust.sealing import Identity
from sbctl.views.console import note

if TYPE_CHECKING:
    from sbctl.cli.workspace import Workspace
    from sbctl.state_backends.port import Backend
    from sbctl.state_backends.session import SharedSession
    from sbctl.state_backends.vault import Vault

__all__ = [
    "backend_of",
    "declared_settings",
    "default_identity_path",
    "own_identity",
    "session_of",
    "shared_session",
    "stop_when_lost",
    "vault_of",
]


def default_identity_path() -> Path:
    return Path(user_config_dir("sbctl")) / "keys" / "state.key"


def own_identity(environ: Mapping[str, str]) -> Identity | None:
    """This machine's key for encrypted states; None when there is none. Raises what reading a damaged or open one raises."""
    if text := environ.get("SBCTL_STATE_IDENTITY"):
        return Identity.parse(Secret(text.encode()))
    if named := environ.get("SBCTL_STATE_IDENTITY_FILE"):
        return Identity.parse(read_private_file(Path(named), "key of encrypted states"))
    path = default_identity_path()
    return Identity.parse(read_private_file(path, "key of encrypted states")) if path.exists() else None


def declared_settings(workspace: Workspace) -> StateSettings:
    """What sb.yml says; where it says nothing that can be read, what this checkout remembers, or that its state is local.

    Raises RefusedError `state.not_migrated` when sb.yml takes a shared state for a local one; what reading sb.yml raises where nothing else
    says where the state is.
    """
    seen = read_seen(workspace.store.paths)
    if not workspace.file.exists():
        return seen.settings if seen is not None else StateSettings()
    try:
        settings = state_settings(workspace.document, workspace.environ)
    except SbctlError:
        if seen is not None:
            return seen.settings
        if workspace.store.exists():
            return StateSettings()
        raise
    if seen is not None and seen.changes > 0 and not settings.shared:
        raise RefusedError(
            "state.not_migrated",
            f"the state of this fleet is shared at {seen.place}, and sb.yml says local",
            place=str(workspace.file),
            next_step="put fleet.state back, or bring the state here: sbctl state migrate",
        )
    return settings


def shared_session(workspace: Workspace) -> SharedSession | None:
    """None where the state is local. Raises as `declared_settings`, InputError `secret.*`."""
    settings = declared_settings(workspace)
    return session_of(workspace, settings) if settings.shared else None


def session_of(
    workspace: Workspace, settings: StateSettings, *, former: EncryptionSettings | None = None, lenient: bool = False
) -> SharedSession:
    """A session with the place that `settings` name. `former` and `lenient` as in `Vault`."""
    from sbctl.state_backends.session import SharedSession

    return SharedSession(
        workspace.store,
        settings,
        backend=backend_of(workspace, settings),
        vault=vault_of(workspace, settings.encryption, former=former, lenient=lenient),
        clock=workspace.clock,
        note=note,
    )


def _resolver(workspace: Workspace) -> Callable[[str], Secret]:
    return SecretSources(workspace.directory, workspace.environ).read


def backend_of(workspace: Workspace, settings: StateSettings) -> Backend:
    """Raises InputError `secret.*`, `state.ca_file`."""
    password = None if settings.password is None else _resolver(workspace)(settings.password)
    if settings.backend == "http":
        from sbctl.state_backends.http import HttpBackend

        return HttpBackend(settings, password, workspace.clock)
    from sbctl.state_backends.postgres import PostgresBackend

    return PostgresBackend(settings, password)


def vault_of(
    workspace: Workspace,
    encryption: EncryptionSettings | None,
    *,
    former: EncryptionSettings | None = None,
    lenient: bool = False,
) -> Vault:
    from sbctl.state_backends.vault import Vault

    identity = own_identity(workspace.environ) if encryption is not None or lenient else None
    return Vault(encryption, _resolver(workspace), identity=identity, former=former, lenient=lenient)


@contextlib.contextmanager
def stop_when_lost(workspace: Workspace, cancel: Cancellation) -> Iterator[None]:
    """While a run goes on: a lost lock stops it, and a signal has what is recorded so far written at once."""
    session = workspace.sharing
    if session is None:
        yield
        return
    session.on_lost = cancel.request
    unlisten = cancel.listen(session.wake)
    try:
        yield
    finally:
        unlisten()
        session.on_lost = None

"""`state migrate` and `state rekey`: the shared state at another place, or under other keys."""

from __future__ import annotations

import contextlib
import socket

from sbctl.base import strict_json
from sbctl.base.errors import InputError, RefusedError
from sbctl.base.limits import STATE_DOCUMENT_MAX_BYTES
from sbctl.base.naming import naming
from sbctl.cli.fleet_setup import held_state
from sbctl.cli.sharing import declared_settings, session_of, vault_of
from sbctl.cli.workspace import Workspace
from sbctl.config.state_block import state_settings
from sbctl.state.document import dump_document
from sbctl.state.operator import lock_info, run_info
from sbctl.state.settings import EncryptionSettings, StateSettings
from sbctl.state.shared_document import FORMAT, parse_shared
from sbctl.state.sharing import forget_seen, read_seen
from sbctl.trust.sealing import is_sealed

__all__ = ["migrate", "push", "rekey"]


def migrate(workspace: Workspace, *, lock_timeout_s: float) -> str:
    """Bring the state to the place that sb.yml names, from where this checkout knows it to be; returns the new place.

    Both are locked. The copy is read back before anything is switched; the source stays whole, marked as moved. Killed in between, the same
    command goes on. Raises InputError `migrate.nowhere`, RefusedError `state.occupied`, StateError `state.not_verified`.
    """
    new = state_settings(workspace.document, workspace.environ)
    seen = read_seen(workspace.store.paths)
    old = seen.settings if seen is not None and seen.changes > 0 else StateSettings()
    if old.place == new.place and old.backend == new.backend:
        raise InputError(
            "migrate.nowhere",
            f"the state is kept at {new.place} already, as sb.yml says",
            next_step="change fleet.state in sb.yml first, then migrate"
            if seen is not None
            else "change fleet.state in sb.yml first; another checkout than this one knows where a shared state was",
        )
    if not workspace.store.exists():
        raise InputError(
            "migrate.nothing", "there is no state here to bring anywhere", next_step="sbctl apply begins one"
        )
    info = lock_info("sbctl state migrate", workspace.environ, workspace.clock)
    here = f"{socket.gethostname()}:{workspace.store.paths.directory}"
    with contextlib.ExitStack() as stack:
        stack.enter_context(workspace.store.lock(info, lock_timeout_s))
        source = session_of(workspace, old) if old.shared else None
        if source is not None:
            stack.enter_context(source.writing(info, lock_timeout_s))
        if new.shared:
            session_of(workspace, new).install(info, lock_timeout_s)
        if source is not None:
            source.mark_moved(new.place if new.shared else here)
        if not new.shared:
            forget_seen(workspace.store.paths)
    return new.place if new.shared else here


def rekey(
    workspace: Workspace, *, old_passphrase: str | None, old_identity: str | None, plain: bool, lock_timeout_s: float
) -> StateSettings:
    """Write the shared document anew, for whom sb.yml names now. Raises RefusedError `rekey.plain`, `sealed.no_key`, `seal.*`."""
    settings = declared_settings(workspace)
    if not settings.shared:
        raise InputError(
            "rekey.local",
            "the state is local; what is encrypted is the shared document",
            next_step="name a backend in fleet.state; the disk of this machine has its own means",
        )
    if (settings.encryption is None) != plain:
        raise RefusedError(
            "rekey.plain",
            "sb.yml asks for no encryption, so everybody with access to the server could read the state"
            if settings.encryption is None
            else "sb.yml asks for encryption, and --plain for none",
            next_step="add fleet.state.encryption, or say --plain"
            if settings.encryption is None
            else "leave out --plain",
        )
    former = EncryptionSettings(passphrase=old_passphrase, identity=old_identity)
    workspace.__dict__["sharing"] = session_of(workspace, settings, former=former, lenient=True)
    with held_state(workspace, "sbctl state rekey", lock_timeout_s):
        workspace.require_state()
        workspace.store.touch(above=0)
    return settings


def push(workspace: Workspace, data: bytes, *, place: str, force: bool, lock_timeout_s: float) -> int:
    """Take a document in: `state.v1`, or a shared one (an errored run of another checkout), sealed or not. Returns the serial.

    `place` is where it came from, for messages.
    """
    with naming(place, next_step="give what sbctl state pull printed, or a backup.json or errored.json of .sbctl"):
        raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
    if is_sealed(raw):
        vault = workspace.sharing.vault if workspace.sharing is not None else vault_of(workspace, None, lenient=True)
        data = vault.open_any(data, place=place)
        raw = strict_json.loads(data, max_bytes=STATE_DOCUMENT_MAX_BYTES)
    info = run_info("state push", workspace.environ, workspace.directory)
    with held_state(workspace, "sbctl state push", lock_timeout_s, overrule=force):
        if not (isinstance(raw, dict) and raw.get("format") == FORMAT):
            return workspace.store.import_document(data, place=place, force=force, info=info)
        shared = parse_shared(data, place=place)
        if workspace.sharing is not None and workspace.sharing.accept(shared):
            return shared.serial
        inner = dump_document(shared.raw["state"])
        return workspace.store.import_document(inner, place=place, force=force, info=info)

"""What the first apply (or the first saved plan) of a fleet makes: a signing key, a lineage, the recorded signer set."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from sbctl.base.errors import LockedError, RefusedError
from sbctl.cli.login_secrets import has_terminal
from sbctl.cli.signing import KEY_NOT_MADE_YET, Signer, default_key_path, make_key, require_member
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.state.operator import lock_info
from sbctl.views.console import ask_yes, note

__all__ = ["ensure_signer", "ensure_state", "held_state", "interactive", "not_confirmed", "require_yes"]


def interactive() -> bool:
    """Whether a question can be asked and answered: never under CI, where a terminal has nobody at it."""
    return has_terminal(os.environ)


@contextlib.contextmanager
def held_state(workspace: Workspace, command: str, timeout_s: float, *, overrule: bool = False) -> Iterator[None]:
    """Be the only writer of the state, here and where it is shared; says so before it waits. `overrule` as in `SharedSession.writing`.

    Raises LockedError `state.locked` after `timeout_s` seconds; what bringing the two in step raises; at the end `state.not_shared`.
    """
    info = lock_info(command, workspace.environ, workspace.clock)
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(workspace.store.lock(info, 0.0))
        except LockedError as error:
            if timeout_s <= 0:
                raise
            note(f"{error.message}; waiting up to {timeout_s:g} s")
            stack.enter_context(workspace.store.lock(info, timeout_s))
        workspace.forget()
        if workspace.sharing is not None:
            stack.enter_context(workspace.sharing.writing(info, timeout_s, overrule=overrule))
            workspace.forget()
        yield


def ensure_signer(workspace: Workspace, config: CompiledConfig | None, *, assume_yes: bool) -> Signer:
    """The operator's key under its listed name; made when the fleet is new and that is allowed.

    Raises RefusedError `key.none`, `key.not_listed`.
    """
    signers = dict(config.signers or {}) if config is not None else dict(workspace.require_state().signers)
    key = workspace.signing_key
    if key is None:
        recorded = workspace.state is not None and bool(workspace.state.signers)
        declared = sorted(signers) if recorded or KEY_NOT_MADE_YET not in signers.values() else ()
        key = make_key(workspace.environ, declared=declared, interactive=interactive(), assume_yes=assume_yes)
        workspace.__dict__["signing_key"] = key
        note(
            f"made a signing key: {default_key_path()} (keep a copy; bundles and plans of this fleet are signed with it)"
        )
        note(f"to list it in sb.yml: fleet: {{trust: {{signers: {{{workspace.operator_name}: {key.public_text!r}}}}}}}")
    signers = {name: key.public_text if text == KEY_NOT_MADE_YET else text for name, text in signers.items()}
    return require_member(key, signers)


def ensure_state(workspace: Workspace, fleet_name: str) -> None:
    """Create the state of a new fleet. The caller holds the lock."""
    if workspace.state is None:
        workspace.store.create(fleet_name)
        workspace.forget()


def require_yes(question: str, *, assume_yes: bool) -> None:
    """Ask on the terminal. Raises RefusedError `apply.not_confirmed` for anything but yes, and where nobody can answer."""
    if not assume_yes and not (interactive() and ask_yes(question)):
        raise not_confirmed()


def not_confirmed() -> RefusedError:
    """Why nothing was begun: the answer was not yes, or there was nobody to ask."""
    if interactive():
        return RefusedError(
            "apply.not_confirmed",
            "the answer was not yes, so nothing was changed",
            next_step="answer yes, or pass --yes",
        )
    return RefusedError(
        "apply.not_confirmed",
        "there is no terminal to ask at, and --yes was not given, so nothing was changed",
        next_step="pass --yes, or run it on a terminal (and not with CI set) and answer yes",
    )

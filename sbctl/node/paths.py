"""Where our files live on a node. Standard library only and Python 3.8: the bootstrap carries this module to hosts that have nothing else.

SBCTL_NODE_PREFIX=P   P/etc                     P/state               P/cache           P/opt            (tests, trials: nothing outside P)
root, the service     /etc/sbctl                /var/lib/sbctl        /var/cache/sbctl  /opt/sbctl
a user                ~/.config/sbctl-runtime   ~/.local/state/sbctl  ~/.cache/sbctl    ~/.local/share/sbctl      (XDG_* honoured)
"""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

__all__ = ["OWNER_LOCK", "PREFIX_VARIABLE", "SERVICE_VARIABLE", "STANDALONE_RECORD", "NodePaths", "node_paths"]

PREFIX_VARIABLE = "SBCTL_NODE_PREFIX"

SERVICE_VARIABLE = "SBCTL_NODE_SERVICE"
"""Set, by our own unit, for the runtime that runs as the account `sbctl`: its files are the system's, not a user's."""

OWNER_LOCK = "owner.lock"
"""`<prefix>/owner.lock`, where there is one: held by the process whose end ends the runtime below that prefix."""


STANDALONE_RECORD = ".sbctl-python"
"""In the directory of a standalone Python that is unpacked whole: the digest of its archive."""


@dataclass(frozen=True)
class NodePaths:
    """The directories of one node, and the names of the files in them. Nothing here touches the disk."""

    etc: Path
    state: Path
    cache: Path
    opt: Path

    @property
    def staging(self) -> Path:
        """What `put` leaves, until a method has used it."""
        return self.state / "staging"

    @property
    def blobs(self) -> Path:
        """`<staging>/blobs/<sha256>`: complete and verified when the name has no suffix."""
        return self.staging / "blobs"

    @property
    def install_lock(self) -> Path:
        """Held by whoever installs programs here; what lies half-made while nobody holds it was left by a crash."""
        return self.state / "install.lock"

    @property
    def marker(self) -> Path:
        return self.etc / "marker.json"

    @property
    def runtime_config(self) -> Path:
        return self.etc / "runtime.json"

    @property
    def trust(self) -> Path:
        return self.etc / "trust.json"

    @property
    def secrets(self) -> Path:
        return self.etc / "secrets"

    @property
    def database(self) -> Path:
        return self.state / "runtime.db"

    @property
    def bundle(self) -> Path:
        return self.state / "bundle.json"

    @property
    def control_socket(self) -> Path:
        return self.state / "control.sock"

    @property
    def engine_records(self) -> Path:
        return self.state / "engines"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def engine_logs(self) -> Path:
        """What engines print that are children of the runtime."""
        return self.logs / "engines"

    @property
    def models(self) -> Path:
        """The model cache, unless the runtime's configuration names another directory."""
        return self.cache / "models"

    @property
    def engines(self) -> Path:
        return self.opt / "engines"

    @property
    def pythons(self) -> Path:
        """Standalone Pythons that the operator sent, each below the first 12 digits of its archive's digest."""
        return self.opt / "python"

    @property
    def current(self) -> Path:
        """A symbolic link to the version in use."""
        return self.opt / "current"

    @property
    def proven(self) -> Path:
        """A symbolic link to the version that was healthy last: what ends an activation that nobody ended runs from there."""
        return self.opt / "proven"

    @property
    def activation(self) -> Path:
        """What a running activation replaces: copies, and the journal that says where they belong."""
        return self.etc / "activation"

    @property
    def activation_journal(self) -> Path:
        return self.activation / "journal.json"

    @property
    def activation_lock(self) -> Path:
        """Held by whoever changes what runs here."""
        return self.etc / "activation.lock"

    def version(self, version: str) -> Path:
        """Where a version of the runtime is installed."""
        return self.opt / version


def node_paths(uid: int, env: Mapping[str, str]) -> NodePaths:
    """The paths for a user id and an environment; `HOME` missing from it is looked up in the user database.

    Relative values of XDG variables are ignored, as their specification asks. Raises ValueError when a user has no home or the prefix is relative.
    """
    prefix = env.get(PREFIX_VARIABLE, "")
    if prefix:
        base = Path(prefix)
        if not base.is_absolute():
            raise ValueError(PREFIX_VARIABLE + " is not an absolute path")
        return NodePaths(base / "etc", base / "state", base / "cache", base / "opt")
    if uid == 0 or env.get(SERVICE_VARIABLE):
        return NodePaths(Path("/etc/sbctl"), Path("/var/lib/sbctl"), Path("/var/cache/sbctl"), Path("/opt/sbctl"))
    home = _home(uid, env)
    return NodePaths(
        _xdg(env, "XDG_CONFIG_HOME", home / ".config") / "sbctl-runtime",
        _xdg(env, "XDG_STATE_HOME", home / ".local" / "state") / "sbctl",
        _xdg(env, "XDG_CACHE_HOME", home / ".cache") / "sbctl",
        _xdg(env, "XDG_DATA_HOME", home / ".local" / "share") / "sbctl",
    )


def _home(uid: int, env: Mapping[str, str]) -> Path:
    home = env.get("HOME", "")
    if not os.path.isabs(home):
        try:
            home = pwd.getpwuid(uid).pw_dir
        except KeyError:
            home = ""
    if not os.path.isabs(home):
        raise ValueError("the user has no home directory")
    return Path(home)


def _xdg(env: Mapping[str, str], name: str, default: Path) -> Path:
    value = env.get(name, "")
    return Path(value) if os.path.isabs(value) else default

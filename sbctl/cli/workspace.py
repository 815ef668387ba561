"""What a command works on: one sb.yml, the state beside it, the environment, the clock."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.errors import InputError
from sbctl.base.secret import Secret, keyed_fingerprint
from sbctl.cli.login_secrets import LoginSecrets
from sbctl.cli.signing import KEY_NOT_MADE_YET, find_key
from sbctl.config.compiled import CompiledConfig, OwnPki
from sbctl.config.document import Document
from sbctl.config.including import read_config
from sbctl.config.load import load_document
from sbctl.state.model import StateView
from sbctl.state.store import StateStore
from sbctl.trust.keys import SigningKey

if TYPE_CHECKING:
    from sbctl.pack.reader import Pack
    from sbctl.state_backends.session import SharedSession

__all__ = ["Workspace"]


@dataclass
class Workspace:
    """Lazily read, then fixed: two questions in one command get one answer. `forget` is the only way to a newer reading."""

    file: Path
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    clock: Clock = SYSTEM_CLOCK
    pack: Pack | None = None
    """Where wheels, engines and weights come from in a closed site; nothing is fetched then."""
    offline: bool = False
    """For comparisons of files: a shared state is not asked."""

    @cached_property
    def store(self) -> StateStore:
        return StateStore(self.directory / ".sbctl", self.clock)

    @property
    def directory(self) -> Path:
        return self.file.resolve().parent

    @cached_property
    def sharing(self) -> SharedSession | None:
        """How this checkout stays in step with the shared state; None where the state is local. Raises as `sharing.shared_session`."""
        if self.offline:
            return None
        from sbctl.cli.sharing import shared_session

        return shared_session(self)

    @cached_property
    def state(self) -> StateView | None:
        """The recorded truth, fetched first where it is shared; None only where nothing was ever recorded."""
        if self.sharing is not None:
            self.sharing.refresh()
        return self.store.read() if self.store.exists() else None

    def forget(self) -> None:
        """Read state and configuration anew at the next question."""
        for name in ("state", "lineage", "document", "loaded", "config"):
            self.__dict__.pop(name, None)

    def require_state(self) -> StateView:
        """Raises InputError `state.none` where nothing was ever applied."""
        if self.state is None:
            raise InputError(
                "state.none",
                "nothing was applied from here yet: there is no state",
                place=str(self.directory / ".sbctl"),
                next_step="sbctl apply",
            )
        return self.state

    @cached_property
    def lineage(self) -> str:
        """The fleet's UUID: recorded, or a fresh one that `apply` will record."""
        return self.state.lineage if self.state is not None else str(uuid.uuid4())

    @cached_property
    def login_secrets(self) -> LoginSecrets:
        """What logins ask for; `prepared` asks a person before any host is."""
        return LoginSecrets(self.directory, self.environ)

    @cached_property
    def signing_key(self) -> SigningKey | None:
        return find_key(self.environ)

    def keyed(self, value: bytes) -> str:
        """The fingerprint under which plans know a secret. A new fleet has no key yet, so every secret of it is new."""
        key = self.state.fingerprint_key if self.state is not None else b"new fleet"
        return keyed_fingerprint(key, Secret(value))

    @cached_property
    def document(self) -> Document:
        """sb.yml as it is written, with what it includes. Raises InputError `file.*`."""
        return read_config(self.file)

    @cached_property
    def loaded(self) -> CompiledConfig:
        """sb.yml, merged and checked; nothing of the state is in it but the key of secret fingerprints. Raises ConfigError."""
        return self._load(self.keyed)

    def checked(self) -> CompiledConfig:
        """The same without any state, so without fingerprints of secrets. Raises ConfigError."""
        return self._with_pythons(self._load(None))

    def _load(self, keyed: Callable[[bytes], str] | None) -> CompiledConfig:
        try:
            return load_document(self.document, environ=self.environ, keyed=keyed)
        except InputError as error:
            if error.code == "file.missing" and error.place == str(self.file):
                error.next_step = "sbctl init writes a starter; -f names another file"
            raise

    @cached_property
    def config(self) -> CompiledConfig:
        """`loaded` with lineage and signers filled in; with a pack, no host fetches anything itself."""
        config = self._with_pythons(self.with_authority(self.with_signers(self.loaded)))
        return config if self.pack is None else config.pushed()

    def _with_pythons(self, config: CompiledConfig) -> CompiledConfig:
        """Each standalone Python that is sent to hosts, read and judged. Two files are compared without them. Raises InputError `python.*`."""
        if self.offline or all(host.standalone is None for host in config.hosts.values()):
            return config
        from sbctl.cli.pythons import local_archive, with_pythons
        from sbctl.cli.services import operator_cache
        from sbctl.pack.supplies import PackSupplies

        cache = operator_cache()
        source = local_archive if self.pack is None else PackSupplies(self.pack, cache, self.file).python_archive
        return with_pythons(config, cache, source)

    def with_signers(self, loaded: CompiledConfig) -> CompiledConfig:
        """Declared signers win over recorded ones; a changed set starts the next key epoch."""
        recorded = dict(self.state.signers) if self.state is not None else {}
        recorded_epoch = self.state.key_epoch if self.state is not None else 0
        signers = dict(loaded.signers) if loaded.signers is not None else recorded
        if not signers:
            key = self.signing_key
            signers = {self.operator_name: key.public_text if key is not None else KEY_NOT_MADE_YET}
        changed = bool(recorded) and signers != recorded
        return replace(loaded, lineage=self.lineage, signers=signers, key_epoch=recorded_epoch + int(changed))

    def with_authority(self, loaded: CompiledConfig) -> CompiledConfig:
        """What the authority's directory says now, and how far a CA rollover came by what the state remembers of each host. Two files are
        compared without it.

        Raises InputError `authority.*`, `identity.server_name`, `identity.cluster_id`; RefusedError `authority.permissions`.
        """
        if loaded.identity is None:
            return loaded
        if loaded.identity.own is not None:
            return self._with_own_pki(loaded, loaded.identity.own)
        from sbctl.trust.authority import Authority
        from sbctl.trust.authority_facts import AuthorityFacts

        if self.offline:
            return replace(loaded, authority=AuthorityFacts.unread(loaded.identity.server_name))
        facts = Authority.open(Path(loaded.identity.directory)).facts(self.held_identities())
        if loaded.identity.server_name not in (None, facts.server_name):
            raise InputError(
                "identity.server_name",
                f'fleet.identity.server_name is "{loaded.identity.server_name}", and the authority issues for "{facts.server_name}"',
                place=str(self.file),
                next_step="leave the field out, or write the authority's",
            )
        self._refuse_other_cluster(loaded, facts.cluster_id)
        return replace(loaded, authority=facts)

    def _with_own_pki(self, loaded: CompiledConfig, pki: OwnPki) -> CompiledConfig:
        from sbctl.cli.own_pki import with_own_identities
        from sbctl.config.secrets import SecretResolver

        resolver = SecretResolver(loaded, self.environ)
        found = with_own_identities(loaded, pki, resolve=resolver.resolve, now=self.clock.now(), offline=self.offline)
        if not self.offline:
            for identity in (found.own_identities or {}).values():
                self._refuse_other_cluster(loaded, identity.cluster_id)
        return found

    def _refuse_other_cluster(self, loaded: CompiledConfig, issued: str) -> None:
        """Nodes with identities of another cluster than theirs would believe nobody, each in a message of its own."""
        if loaded.cluster is None or loaded.cluster.cluster_id == issued:
            return
        raise InputError(
            "identity.cluster_id",
            f'proxy.cluster.cluster_id is "{loaded.cluster.cluster_id}", and the identities of its hosts are for "{issued}"',
            place=str(self.file),
            next_step=f"write cluster_id: {issued}, or name identities of {loaded.cluster.cluster_id} in fleet.identity "
            "(sbctl cluster init, in another directory)",
        )

    def held_identities(self) -> list[Mapping[str, Any]]:
        """Of each host that has an identity: the CAs it trusts and the one that issued, as recorded."""
        resources = self.state.resources.items() if self.state is not None else ()
        return [recorded.record for address, recorded in resources if address.kind == "certificate" and recorded.record]

    @property
    def operator_name(self) -> str:
        """The name of the first signer of a fleet that declares none."""
        name = self.environ.get("SBCTL_OPERATOR") or self.environ.get("USER") or "operator"
        return (
            "".join(char if (char.isalnum() and char.isascii()) or char in "._-" else "-" for char in name)[:64]
            or "operator"
        )

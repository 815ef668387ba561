"""Who we are to an sshd: exactly the key that sb.yml names, from a file or from the agent, with a certificate where there is one.

No other key is ever tried: neither the default files nor whatever else the agent holds, since each failed key counts towards a lock-out.
Several keys of the agent with one comment are offered one by one.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import paramiko

from sbctl.base.connection import Jump
from sbctl.base.display import display_safe
from sbctl.base.errors import UnreachableError
from sbctl.remote.secrets import SecretSource, no_secrets, passphrase_question

__all__ = ["Keyring", "Login"]

_AGENT_KEYS_MAX: Final = 4


@dataclass(frozen=True, slots=True)
class Login:
    """The keys to offer, in order, and how errors name them."""

    name: str
    keys: tuple[paramiko.PKey, ...]
    has_certificate: bool = False


class Keyring:
    """The keys of one run. A key file is read, and its passphrase asked for, once. Threads: any."""

    def __init__(self, secrets: SecretSource = no_secrets) -> None:
        self.secrets = secrets
        self._keys: dict[tuple[str, str, str], paramiko.PKey] = {}
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def login(self, hop: Jump, place: str) -> Iterator[Login]:
        """Raises UnreachableError `ssh.identity_*`, `ssh.passphrase_*`, `ssh.certificate_unusable`, `ssh.agent_*`, InputError `secret.*`."""
        if hop.agent_key:
            with _agent_login(hop, place) as found:
                yield found
            return
        if not hop.identity_file:
            raise UnreachableError(
                "ssh.identity_missing",
                "no key is named for this host, and no other way to log in is tried",
                place=place,
                next_step="set fleet.ssh.identity_file or fleet.ssh.agent_key (or the host's own) in sb.yml",
            )
        name = hop.identity_file + (f" and {hop.certificate_file}" if hop.certificate_file else "")
        yield Login(name, (self._from_file(hop),), bool(hop.certificate_file))

    def _from_file(self, hop: Jump) -> paramiko.PKey:
        wanted = (hop.identity_file, hop.certificate_file, hop.passphrase)
        with self._lock:
            if wanted not in self._keys:
                key = self._read(hop)
                if hop.certificate_file:
                    _certify(key, hop.certificate_file)
                self._keys[wanted] = key
            return self._keys[wanted]

    def _read(self, hop: Jump) -> paramiko.PKey:
        path = Path(hop.identity_file).expanduser()
        passphrase = None
        if hop.passphrase:
            passphrase = self.secrets(hop.passphrase, passphrase_question(hop.identity_file)).reveal()
        try:
            key = _load(path, passphrase)
        except FileNotFoundError:
            what = "does not exist"
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
        except (paramiko.PasswordRequiredException, TypeError):
            raise UnreachableError(
                "ssh.passphrase_needed",
                "the key file is encrypted, and no passphrase is named for it",
                place=str(path),
                next_step="set ssh.passphrase to a reference (env:, file:, exec:, secret:) or prompt, or use ssh.agent_key",
            ) from None
        except (paramiko.SSHException, ValueError, IndexError):
            if passphrase is not None:
                raise UnreachableError(
                    "ssh.passphrase_wrong",
                    "the passphrase does not open the key file, or it is no private key",
                    place=str(path),
                    next_step="check what ssh.passphrase names, with: ssh-keygen -y -f FILE",
                ) from None
            what = "is not a private key that can be used"
        else:
            # A certificate that only happens to lie beside the key is not what sb.yml names.
            key.public_blob = None
            return key
        raise UnreachableError(
            "ssh.identity_unusable", f"the key file {what}", place=str(path), next_step="name an OpenSSH private key"
        )


def _load(path: Path, passphrase: bytes | None) -> paramiko.PKey:
    try:
        # Bytes, whatever the library's annotation says.
        return paramiko.PKey.from_path(path, cast("Any", passphrase))
    except TypeError:
        if passphrase is None:
            raise
    # It is not encrypted: there is nothing to open.
    return paramiko.PKey.from_path(path)


def _certify(key: paramiko.PKey, certificate_file: str) -> None:
    path = Path(certificate_file).expanduser()
    try:
        key.load_certificate(str(path))
        return
    except FileNotFoundError:
        what = "does not exist"
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except (paramiko.SSHException, ValueError, IndexError):
        what = "is not a certificate of this key"
    raise UnreachableError(
        "ssh.certificate_unusable",
        f"the certificate file {what}",
        place=str(path),
        next_step="ssh-keygen -Lf shows what a certificate is for",
    )


@contextlib.contextmanager
def _agent_login(hop: Jump, place: str) -> Iterator[Login]:
    try:
        agent = paramiko.Agent()
    except (paramiko.SSHException, OSError) as error:
        raise _no_agent(place) from error
    try:
        there = agent.get_keys()
        if not there:
            raise _no_agent(place)
        keys = [key for key in there if hop.agent_key in (key.fingerprint, key.comment)][:_AGENT_KEYS_MAX]
        if not keys:
            names = ", ".join(f"{key.fingerprint} {key.comment}" for key in there[:8])
            raise UnreachableError(
                "ssh.agent_key_missing",
                f'the SSH agent has no key "{display_safe(hop.agent_key, max_chars=80)}"; it has {display_safe(names, max_chars=800)}',
                place=place,
                next_step="ssh-add the key, or name one of these in ssh.agent_key",
            )
        if hop.certificate_file:
            for key in keys:
                _certify(key, hop.certificate_file)
        yield Login(f"the agent's key {hop.agent_key}", tuple(keys), bool(hop.certificate_file))
    finally:
        agent.close()


def _no_agent(place: str) -> UnreachableError:
    return UnreachableError(
        "ssh.agent_unavailable",
        "the SSH agent does not answer, or holds no key",
        place=place,
        next_step="start it and add the key (eval $(ssh-agent); ssh-add FILE); SSH_AUTH_SOCK must name its socket",
    )

"""Where the API's public certificate lies on a host.

    <etc>/secrets/tls_api.pem   chain and private key in one file, so that they are replaced together; 0600, of whoever owns the secrets.
                                Under the system's systemd that is root, and the runtime gets it as a credential at its start

Files that somebody else keeps (`tls_cert_file`, `tls_key_file` of the configuration) are copied there when they are whole and belong together,
so that a start never depends on them. A half-written renewal is none: the former pair stays.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import HostError, InputError
from sbctl.base.fs import ensure_directory, read_bounded, write_atomic
from sbctl.base.secret import Secret
from sbctl.node.messages import RuntimeConfig
from sbctl.node.paths import NodePaths
from sbctl.trust.public_certificate import PUBLIC_CHAIN_MAX_BYTES, check_pair

__all__ = [
    "PAIR_NAME",
    "NodeFiles",
    "installed_fingerprint",
    "joined",
    "node_files_of",
    "pair_path",
    "read_pair",
    "write_pair",
]

PAIR_NAME: Final = "tls_api.pem"
_KEY_MAX_BYTES: Final = 64 * 1024
_PAIR_MAX_BYTES: Final = PUBLIC_CHAIN_MAX_BYTES + _KEY_MAX_BYTES + 1


def pair_path(paths: NodePaths) -> Path:
    return paths.secrets / PAIR_NAME


def joined(chain: bytes, key: Secret) -> Secret:
    """As the file has them."""
    return Secret(chain.rstrip() + b"\n" + key.reveal().strip() + b"\n")


def read_pair(paths: NodePaths, environ: Mapping[str, str]) -> Secret:
    """The credential that systemd handed over, else the file. Raises InputError `file.*`."""
    credentials = environ.get("CREDENTIALS_DIRECTORY")
    path = Path(credentials) / PAIR_NAME if credentials else pair_path(paths)
    return Secret(read_bounded(path, max_bytes=_PAIR_MAX_BYTES))


def write_pair(paths: NodePaths, pair: Secret) -> bool:
    """Durably, both at once; False when it stood there already. Raises SbctlError `disk.*`."""
    path = pair_path(paths)
    try:
        if Secret(read_bounded(path, max_bytes=_PAIR_MAX_BYTES)) == pair:
            return False
    except InputError as error:
        if error.code != "file.missing":
            raise
    ensure_directory(paths.secrets, mode=0o700)
    write_atomic(path, pair.reveal(), mode=0o600)
    return True


def installed_fingerprint(paths: NodePaths) -> str | None:
    """SHA-256 of the installed certificate, hex; None when there is none, `unreadable` for a file that holds none."""
    try:
        text = read_bounded(pair_path(paths), max_bytes=_PAIR_MAX_BYTES).decode("ascii", "replace")
    except InputError as error:
        return None if error.code == "file.missing" else "unreadable"
    end = "-----END CERTIFICATE-----"
    try:
        return sha256_bytes(ssl.PEM_cert_to_DER_cert(text[: text.index(end) + len(end)]))
    except ValueError:
        return "unreadable"


class NodeFiles:
    """Chain and key that somebody else keeps on this host."""

    def __init__(self, chain: Path, key: Path) -> None:
        self.chain = chain
        self.key = key

    def stamp(self) -> tuple[Any, ...]:
        """Differs once either was written or replaced, also behind a link."""
        return tuple(_stamp(path) for path in (self.chain, self.key))

    def read(self) -> Secret:
        """Both, as one. Raises HostError `tls.files_unreadable`, `tls.files_refused` naming the file."""
        place, parts = self.chain, []
        try:
            for place in (self.chain, self.key):
                parts.append(read_bounded(place, max_bytes=_KEY_MAX_BYTES))
        except InputError as error:
            raise HostError(
                "tls.files_unreadable",
                f"the certificate's files on this host cannot be read: {error.message}",
                place=str(place),
                next_step="look whether who keeps them (certbot) has run here, and whether sb.yml names the right paths",
            ) from None
        chain, key = parts[0], Secret(parts[1])
        try:
            check_pair(chain, key)
        except InputError as error:
            raise HostError(
                "tls.files_refused",
                f"the certificate's files on this host cannot be used: {error.message}",
                place=str(self.chain),
                next_step=error.next_step,
            ) from None
        return joined(chain, key)


def node_files_of(config: RuntimeConfig) -> NodeFiles | None:
    """None where the certificate is sent, and without TLS."""
    if not config.has_tls or config.tls_cert_file is None or config.tls_key_file is None:
        return None
    return NodeFiles(Path(config.tls_cert_file), Path(config.tls_key_file))


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_ctime_ns, status.st_size)

"""`sbctl-runtime identity DIR`: take the directory that `sbctl cluster enroll` made into use as this node's identity.

The directory is copied, verified and fenced like one that an apply brings; a running runtime takes it up at once. Done again it changes nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.node.paths import node_paths
from sbctl.node.records import EventKind
from sbctl.runtime.arguments import Arguments
from sbctl.runtime.event_log import record_event
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.nodeops.identity_switch import take_identity

__all__ = ["run_identity"]


def run_identity(argv: list[str]) -> int:
    """0 when this identity is in use. Raises what `take_identity` and reading the directory raise."""
    parser = Arguments(prog="sbctl-runtime identity")
    parser.add_argument("directory", type=Path, metavar="DIR", help="what sbctl cluster enroll --out made")
    directory = parser.parse_args(argv).directory.absolute()
    os.umask(0o077)
    paths = node_paths(os.getuid(), os.environ)
    files = IdentityFiles(paths)
    taken = take_identity(paths, files.read(directory), files.key(directory), SYSTEM_CLOCK.now())
    claims, certificate = taken.identity.claims, taken.identity.certificate
    if taken.changed and paths.state.is_dir():
        said = f"epoch {claims.identity_epoch}, until {rfc3339(certificate.not_after)}, {certificate.fingerprint}"
        record_event(paths.database, SYSTEM_CLOCK, EventKind.CERTIFICATE_INSTALLED, said)
    sys.stdout.write(
        f"{'in use' if taken.changed else 'in use already'}: {claims.node_id} of cluster {claims.cluster_id}, "
        f"epoch {claims.identity_epoch}, until {rfc3339(certificate.not_after)}\n"
    )
    return 0

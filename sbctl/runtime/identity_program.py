"""`sbctl-runtime identity DIR`: take the directory that `sbctl cluster enroll` made into use as this node's identity. `sbctl-runtime renew`:
ask for the next one when it is due.

The directory is copied, verified and fenced like one that an apply brings; a running runtime takes it up at once. Done again it changes nothing.
As root under systemd a timer renews from then on; elsewhere whoever runs this host has to call `renew` (cron), every few minutes.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from sbctl.base.clock import SYSTEM_CLOCK, rfc3339
from sbctl.node.paths import NodePaths, node_paths
from sbctl.node.records import EventKind
from sbctl.runtime.arguments import Arguments
from sbctl.runtime.event_log import record_event
from sbctl.runtime.identity_files import IdentityFiles
from sbctl.runtime.identity_renewal import due_at, install_source, renew
from sbctl.runtime.nodeops.identity_switch import take_identity
from sbctl.runtime.nodeops.side_units import RENEWAL_UNITS, install_units, render, system_of_root

__all__ = ["run_identity", "run_renew"]


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
    source = install_source(paths, directory)
    if source is not None:
        by_timer = _renew_by_timer(paths)
        how = "a timer renews it" if by_timer else "call sbctl-runtime renew every few minutes, or it ends then"
        sys.stdout.write(f"renewed at {source.host}:{source.port} from {rfc3339(due_at(certificate))} on: {how}\n")
    return 0


def _renew_by_timer(paths: NodePaths) -> bool:
    systemd = system_of_root(os.getuid(), os.environ)
    if systemd is None:
        return False
    values = {"python": sys.executable, "etc": paths.etc, "state": paths.state}
    install_units(systemd, render(RENEWAL_UNITS, values))
    systemd.must("enable", "--now", RENEWAL_UNITS[0])
    return True


def run_renew(argv: list[str]) -> int:
    """0 when the identity is renewed, or need not be yet. Raises what `renew` raises."""
    parser = Arguments(prog="sbctl-runtime renew")
    parser.add_argument(
        "--now", action="store_true", help="ask at once, also before it is due or while a failure is waited out"
    )
    at_once = parser.parse_args(argv).now
    os.umask(0o077)
    done = renew(node_paths(os.getuid(), os.environ), SYSTEM_CLOCK, at_once=at_once)
    following = "next try" if done.outcome == "waiting" else "renewed from"
    sys.stdout.write(
        f"{done.outcome}: {done.node_id}, until {rfc3339(done.until)}, {following} {rfc3339(done.attempt)}\n"
    )
    return 0

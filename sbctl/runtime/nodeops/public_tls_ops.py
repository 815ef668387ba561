"""`runtime.certificate`: the API's public certificate, installed with its private key as one file, and handed to a runtime that serves TLS.

The key goes from standard input to a 0600 file and over the control socket to the runtime: never to an argument, a log or a status.
"""

from __future__ import annotations

from typing import Any, Final

from sbctl.base import fs
from sbctl.base.errors import InputError
from sbctl.base.flock import exclusive
from sbctl.node.identity_messages import RuntimeCertificate
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.control_client import ControlClient
from sbctl.runtime.nodeops.runtime_ops import refuse_other_lineage
from sbctl.runtime.nodeops.snapshot import activated_as, host_facts
from sbctl.runtime.nodeops.tls_handover import hand_over
from sbctl.runtime.public_tls_files import joined, write_pair
from sbctl.trust.public_certificate import check_pair

__all__ = ["install_public_certificate"]

_KEY: Final = "tls_key"
_LOCK_DEADLINE_S: Final = 240.0


def install_public_certificate(context: NodeContext, params: RuntimeCertificate) -> dict[str, Any]:
    """Raises RefusedError `host.other_lineage`, InputError `tls.*`, LockedError `host.locked`, what a running runtime says, SbctlError `disk.*`."""
    facts = host_facts(context)
    refuse_other_lineage(facts, params.lineage)
    paths = context.paths
    key = context.secrets.get(_KEY)
    if key is None:
        raise InputError("node.invalid_params", "the private key did not come with the certificate")
    chain = params.chain.encode("ascii", "replace")
    certificate = check_pair(chain, key)
    untimely = certificate.time_problem(context.clock.now())
    if untimely is not None:
        raise untimely
    fs.ensure_directory(paths.etc, mode=0o755)
    with exclusive(paths.activation_lock, deadline_s=_LOCK_DEADLINE_S, check=context.cancellation.check):
        write_pair(paths, joined(chain, key))
        used = hand_over(paths, ControlClient(paths.control_socket))
    return {"fingerprint": certificate.fingerprint, "used": used, **activated_as(context, facts)}

"""`cluster token` and `cluster enroll`: words of a command line into tokens and requests.

A token comes in by file, by the environment or on stdin, never as an argument, which every user of the machine can read.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TextIO

from pydantic import ValidationError
from yarl import URL

from sbctl.base import fs
from sbctl.base.clock import Clock
from sbctl.base.errors import InputError, RefusedError, SbctlError, UsageError
from sbctl.base.limits import JOIN_TOKEN_MAX_CHARS
from sbctl.trust.certificates import PEM_MAX_BYTES
from sbctl.trust.enrolled_directory import EnrolledDirectory
from sbctl.trust.enrollment_client import Server, request_identity
from sbctl.trust.enrollment_messages import EnrollmentRequest
from sbctl.trust.identity import Grant, is_server_name
from sbctl.trust.join_token import JoinToken
from sbctl.trust.node_identity import NodeIdentity

__all__ = ["enroll", "grant_of", "refuse_token_in_arguments", "server_of"]

_VARIABLES: Final = ("SBCTL_CLUSTER_TOKEN", "SBPROXY_CLUSTER_TOKEN")
_FINAL: Final = frozenset({"enroll.denied", "enroll.request_refused"})


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The identity that a server gave, and where it stands."""

    directory: Path
    identity: NodeIdentity


def refuse_token_in_arguments() -> NoReturn:
    raise UsageError(
        "enroll.token_in_arguments",
        "a token given as an argument is read by every user of this machine (ps, /proc) and kept by the shell's history",
        next_step="this token is known now: sbctl cluster token revoke ID, make another, and give it in SBCTL_CLUSTER_TOKEN, "
        "by --token-file, or on stdin",
    )


def grant_of(node_id: str, roles: Sequence[str], labels: Sequence[str]) -> Grant:
    """Raises UsageError naming the word."""
    found: dict[str, str] = {}
    for written in labels:
        key, equals, value = written.partition("=")
        if not equals or key in found:
            raise UsageError(
                "usage", f'"{written}" is no label, or its key is given twice', next_step="--label KEY=VALUE"
            )
        found[key] = value
    try:
        document = {"node_id": node_id, "roles": list(dict.fromkeys(roles)), "labels": found}
        return Grant.model_validate_json(json.dumps(document))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UsageError(
            "usage",
            f"no host can be this: {where}: {first['msg']}",
            next_step="names, roles and labels are written as in sb.yml: --role worker --label zone=a",
        ) from None


def server_of(url: str, server_name: str) -> Server:
    """Of the URL only the address counts: path, query and fragment give way to the enrollment's own. Raises InputError
    `enroll.https_required`, UsageError."""
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL("")
    if parsed.scheme != "https":
        raise InputError(
            "enroll.https_required",
            "an enrollment needs an https:// address: without TLS the token is everybody's on the way",
            next_step="--url https://HOST:PORT, as sbctl-runtime authority listens",
        )
    if not parsed.host or parsed.user is not None or parsed.password is not None:
        raise UsageError("usage", "the address is not https://HOST:PORT", next_step="--url https://HOST:PORT")
    if not is_server_name(server_name):
        raise UsageError("usage", f'--server-name "{server_name}" is no domain name', next_step="as in sbproxy-mesh")
    return Server(parsed.host, parsed.port or 443, server_name)


def enroll(
    server: Server,
    grant: Grant,
    out: Path,
    *,
    token_file: Path | None,
    ca_file: Path | None,
    clock: Clock,
    environ: Mapping[str, str] = os.environ,
    stdin: TextIO | None = None,
) -> Enrolled:
    """The whole of it: token, key, authority, directory. Raises what each of them raises."""
    token = JoinToken.parse(_token(token_file, environ, sys.stdin if stdin is None else stdin))
    known_ca = None if ca_file is None else fs.read_bounded(ca_file, max_bytes=PEM_MAX_BYTES).decode("utf-8", "replace")
    directory = EnrolledDirectory(out)
    asked = EnrollmentRequest(token.text().reveal().decode(), grant, directory.request(grant.node_id))
    try:
        got = asyncio.run(request_identity(server, token, asked, known_ca=known_ca, now=clock.now))
    except SbctlError as error:
        if error.code in _FINAL:
            directory.abandon()
        raise
    return Enrolled(out, directory.finish(got, grant, clock.now()))


def _token(file: Path | None, environ: Mapping[str, str], stdin: TextIO) -> str:
    """The file (`-` for stdin), else the variable, else what is piped in."""
    given = [environ[name] for name in _VARIABLES if environ.get(name)]
    if file is not None and str(file) != "-":
        text = fs.read_bounded(file, max_bytes=2 * JOIN_TOKEN_MAX_CHARS).decode("utf-8", "replace")
    elif file is None and given:
        if len(set(given)) > 1:
            raise UsageError(
                "usage", f"{' and '.join(_VARIABLES)} hold different tokens", next_step="unset one of them"
            )
        text = given[0]
    elif stdin.isatty():
        raise RefusedError(
            "enroll.no_token",
            "there is no join token",
            next_step=f"give it in {_VARIABLES[0]}, by --token-file FILE, or on stdin; sbctl cluster token create makes one",
        )
    else:
        text = stdin.read(2 * JOIN_TOKEN_MAX_CHARS)
    return text.strip()

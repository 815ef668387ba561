"""One host for one run: bootstrap commands while it has no runtime, the node interface once it has one.

    snapshot   facts by the bootstrap; where a runtime is installed and current, everything else by its node interface
    take_lease by a process of its own on the host, which a host without a runtime runs too
    call       `host.mark`, `host.unmark` and `runtime.install` always by the bootstrap: a host is claimed before it has a runtime and
               given up after; all others by the node interface of the version installed last in this run, else of the current one,
               else of one that an interrupted run installed
    put        upload beside the final name, going on where it was cut, verified on the host, then renamed there

A mutating call whose answer is lost raises `host.outcome_unknown`; nothing is ever sent twice by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sbctl.base.clock import Clock
from sbctl.base.connection import Connection
from sbctl.base.errors import HostError, SbctlError
from sbctl.base.file_slice import ByteSource
from sbctl.base.fs import disk_error
from sbctl.base.secret import Secret
from sbctl.node.lease import LeaseClaim
from sbctl.node.messages import PARAMS, Method
from sbctl.node.snapshot import NodeSnapshot, PortHolder, PythonFact, is_new_enough
from sbctl.remote.answers import read_answer
from sbctl.remote.bootstrap import FACTS
from sbctl.remote.channel import NodeChannel, NodeMissing
from sbctl.remote.host_lease import HostLease, open_lease
from sbctl.remote.secrets import SecretSource, no_secrets
from sbctl.remote.transport import ChannelBroken, Progress, Transport, no_progress

if TYPE_CHECKING:
    from sbctl.remote.ssh_links import SshLinks

__all__ = ["HostSession", "open_session"]

_BY_BOOTSTRAP: Final = {Method.HOST_MARK: "mark", Method.HOST_UNMARK: "unmark", Method.RUNTIME_INSTALL: "install"}
_READS: Final = frozenset((Method.LOGS_READ, Method.EVENTS_READ, Method.ARTIFACT_LIST, Method.CLUSTER_STATUS))
"""Whose lost answer is only a lost connection."""
_SYSTEM_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_PUT_ATTEMPTS: Final = 2


@dataclass(frozen=True, slots=True)
class _Facts:
    """What the bootstrap told: a snapshot without a runtime's part, and the environment to start a node process in."""

    snapshot: NodeSnapshot
    environment: Mapping[str, str]
    has_pythons: bool
    """Whether the host looked for its interpreters."""


class HostSession:
    """A `NodeSession` over any transport. Threads: one user at a time."""

    def __init__(self, host: str, transport: Transport, clock: Clock, *, python: str | None = None) -> None:
        """`python` is an interpreter the operator named for this host, looked at besides the usual places."""
        self.host = host
        self._transport = transport
        self._clock = clock
        self._extra_pythons = (python,) if python else ()
        self._facts: _Facts | None = None
        self._pythons: tuple[PythonFact, ...] = ()
        self._installed_version: str | None = None
        self._node: NodeChannel | None = None
        self._lease: HostLease | None = None

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        """Everything the host tells. Raises UnreachableError; HostError when the answer makes no sense."""
        deadline = self._clock.monotonic_s() + deadline_s
        for attempt in range(2):
            if self._node is None:
                self._facts = None
            try:
                node = self._open_node(deadline)
            except NodeMissing:
                return self._gather(deadline, pythons=True).snapshot
            except HostError as error:
                if error.code != "node.start_failed":
                    raise
                # Damaged programs are a host to install anew, not one that is out of reach.
                return self._gather(deadline, pythons=True).snapshot
            try:
                answer = node.request(Method.SNAPSHOT, {}, {}, deadline_s=self._left(deadline), progress=no_progress)
            except ChannelBroken as broken:
                self._node = None
                if broken.sent or attempt:
                    raise broken.cause from broken
            else:
                found = read_answer(NodeSnapshot, {**answer, "bootstrapped": True}, self.host)
                self._pythons = found.host.pythons
                return found
        raise AssertionError("two attempts end in an answer or an error")

    def port_holders(self, ports: Sequence[int], deadline_s: float) -> tuple[PortHolder, ...]:
        """Who listens on these TCP ports of the host. Raises as `snapshot`."""
        asked = {"extra_pythons": [], "pythons_if_installed": False, "ports": list(ports)}
        raw = self._transport.bootstrap(FACTS, asked, python=None, deadline_s=deadline_s)
        return read_answer(NodeSnapshot, {**raw, "bootstrapped": False}, self.host).host.ports

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        """Run one method of `sbctl.node.messages`, as `NodeSession` promises. Raises ValueError for parameters the method does not have."""
        wanted = Method(method)
        checked = self._checked(wanted, params)
        deadline = self._clock.monotonic_s() + deadline_s
        command = _BY_BOOTSTRAP.get(wanted)
        if command is not None:
            return self._call_bootstrap(wanted, command, checked, deadline)
        result = self._call_node(wanted, checked, secrets, deadline, progress)
        if wanted is Method.RUNTIME_REMOVE:
            self._drop_node()
            self._installed_version = None
        return result

    def put(self, sha256: str, source: ByteSource, *, deadline_s: float, progress: Progress) -> None:
        """Leave the bytes of `source` as blob `sha256` on the host. A transfer that arrived damaged is sent once more, from its start."""
        deadline = self._clock.monotonic_s() + deadline_s
        try:
            size = source.stat().st_size
        except OSError as error:
            raise disk_error(error, str(source)) from error
        blob = {"sha256": sha256, "size_bytes": size}
        for attempt in range(_PUT_ATTEMPTS):
            begun = self._blob("blob_begin", blob, deadline)
            if begun.get("complete") is True:
                progress(size, size)
                return
            self._transport.upload(source, str(begun["part"]), deadline_s=self._left(deadline), progress=progress)
            try:
                self._blob("blob_finish", blob, deadline)
            except HostError as error:
                if error.code != "put.digest_mismatch" or attempt + 1 == _PUT_ATTEMPTS:
                    raise
            else:
                return

    def take_lease(self, claim: LeaseClaim, *, wait_s: float, deadline_s: float, cancelled: Callable[[], bool]) -> None:
        """Hold the host's lease until `close`, as `NodeSession` promises."""
        if self._lease is not None:
            if self._lease.held:
                return
            self._lease.close()
            self._lease = None
        deadline = self._clock.monotonic_s() + deadline_s
        facts, python = self._gather(deadline), self._python(deadline)
        environment = facts.environment
        lease = open_lease(self._transport, python, environment, self._clock, place=self.host, deadline_s=deadline_s)
        try:
            lease.take(claim, wait_s=wait_s, deadline_s=deadline_s, cancelled=cancelled)
        except BaseException:
            lease.close()
            raise
        self._lease = lease

    def close(self) -> None:
        """Give the lease back, end the node process and the connection. Never raises."""
        if self._lease is not None:
            self._lease.close()
            self._lease = None
        self._drop_node()
        self._transport.close()

    def _left(self, deadline: float) -> float:
        return max(0.0, deadline - self._clock.monotonic_s())

    def _checked(self, method: Method, params: Mapping[str, Any]) -> dict[str, Any]:
        model = PARAMS.get(method)
        if model is None:
            if params:
                raise ValueError(f"{method} takes no parameters")
            return {}
        checked: dict[str, Any] = model.model_validate_json(json.dumps(dict(params))).model_dump(mode="json")
        return checked

    def _gather(self, deadline: float, *, pythons: bool = False) -> _Facts:
        """With `pythons` the host's interpreters are told for sure; without, only where no runtime is installed that tells them anyway."""
        if self._facts is None or (pythons and not self._facts.has_pythons):
            asked = {"extra_pythons": list(self._extra_pythons), "pythons_if_installed": pythons}
            raw = self._transport.bootstrap(FACTS, asked, python=None, deadline_s=self._left(deadline))
            told = read_answer(NodeSnapshot, {**raw, "bootstrapped": False}, self.host)
            self._facts = _Facts(told, _environment(raw), pythons or not told.runtime.installed_versions)
        return self._facts

    def _bootstrap(self, command: str, params: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
        """Raises what the transport raises."""
        python = params.get("python") or self._python(deadline)
        return self._transport.bootstrap(command, params, python=str(python), deadline_s=self._left(deadline))

    def _blob(self, command: str, blob: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
        """Either may be asked again, so a lost answer is only a lost connection."""
        try:
            return self._bootstrap(command, blob, deadline)
        except ChannelBroken as broken:
            raise broken.cause from broken

    def _python(self, deadline: float) -> str:
        pythons = self._pythons or self._gather(deadline, pythons=True).snapshot.host.pythons
        if not pythons:
            raise HostError(
                "host.no_python",
                "the host has no Python 3.8 or newer",
                place=self.host,
                next_step="install one (Debian, Ubuntu: apt-get install python3); the runtime needs 3.11, or one that is sent: fleet.runtime.python",
            )
        # The oldest that is new enough for the runtime, as an installation chooses it: one interpreter then serves all commands.
        fit = [python for python in pythons if is_new_enough(python.version)]
        return fit[-1].path if fit else pythons[0].path

    def _call_bootstrap(
        self, method: Method, command: str, params: Mapping[str, Any], deadline: float
    ) -> Mapping[str, Any]:
        try:
            result = self._bootstrap(command, {**params, "deadline_s": self._left(deadline)}, deadline)
        except ChannelBroken as broken:
            raise (self._outcome_unknown(method, broken.cause) if broken.sent else broken.cause) from broken
        finally:
            self._facts = None
        if method is Method.RUNTIME_INSTALL:
            self._drop_node()
            self._installed_version = str(params["version"])
        return result

    def _call_node(
        self,
        method: Method,
        params: Mapping[str, Any],
        secrets: Mapping[str, Secret],
        deadline: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        for attempt in range(2):
            try:
                node = self._open_node(deadline)
            except NodeMissing as error:
                raise HostError(
                    "node.missing", "no runtime is installed on the host", place=self.host, next_step="run sbctl apply"
                ) from error
            try:
                return node.request(method, params, secrets, deadline_s=self._left(deadline), progress=progress)
            except ChannelBroken as broken:
                self._node = None
                if broken.sent and method not in _READS:
                    raise self._outcome_unknown(method, broken.cause) from broken
                if attempt or broken.sent:
                    raise broken.cause from broken
        raise AssertionError("two attempts end in a result or an error")

    def _outcome_unknown(self, method: Method, cause: SbctlError) -> HostError:
        return HostError(
            "host.outcome_unknown",
            f"{method} was asked for, and no answer came ({cause.message}): whether it was done is unknown",
            place=self.host,
            next_step="run the command again: it reads the host before it acts",
            retryable=True,
        )

    def _open_node(self, deadline: float) -> NodeChannel:
        """The open node interface, or a new one. Raises NodeMissing, UnreachableError, HostError."""
        if self._node is not None and self._node.open:
            return self._node
        facts = self._gather(deadline)
        paths, runtime = facts.snapshot.paths, facts.snapshot.runtime
        version = self._installed_version or runtime.current_version or "".join(runtime.installed_versions[-1:])
        if not version or paths is None:
            raise NodeMissing
        directory = os.path.join(paths.opt, version)
        argv = [f"{directory}/bin/python", "-I", f"{directory}/bin/sbctl-runtime", "node", "--stdio"]
        try:
            channel = self._transport.open_channel(argv, facts.environment, deadline_s=self._left(deadline))
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NodeMissing from error
        self._node = NodeChannel(channel, place=self.host, clock=self._clock, deadline_s=self._left(deadline))
        return self._node

    def _drop_node(self) -> None:
        if self._node is not None:
            self._node.close()
            self._node = None


def _environment(raw: Mapping[str, Any]) -> dict[str, str]:
    """What a node process sees: the few variables the host told, a PATH of absolute directories, a locale."""
    told = raw.get("environment")
    kept = {str(name): str(value) for name, value in told.items()} if isinstance(told, dict) else {}
    directories = [part for part in kept.get("PATH", "").split(":") if os.path.isabs(part)]
    path = ":".join(dict.fromkeys([*directories, *_SYSTEM_PATH.split(":")]))
    return {**kept, "PATH": path, "LANG": "C.UTF-8"}


def open_session(
    host: str,
    connection: Connection,
    *,
    clock: Clock,
    python: str | None = None,
    environ: Mapping[str, str] | None = None,
    links: SshLinks | None = None,
    secrets: SecretSource = no_secrets,
) -> HostSession:
    """A session that connects when it is first used. `environ` is the operator's environment, for the local machine only.

    `links` are the SSH connections of the run; a session without them has its own, whose logins ask `secrets`.
    """
    if connection.kind == "local":
        from sbctl.remote.local import LocalTransport

        return HostSession(
            host, LocalTransport(host, os.environ if environ is None else environ, clock), clock, python=python
        )
    from sbctl.remote.ssh import SshTransport

    return HostSession(host, SshTransport(host, connection, clock, links, secrets), clock, python=python)

"""Talking to the runtime on this host: HTTP over its control socket, blocking, with deadlines."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from sbctl.base import strict_json
from sbctl.base.errors import HostError, InputError, SbctlError, UnreachableError, error_from_wire
from sbctl.base.limits import MIB
from sbctl.base.secret import Secret

__all__ = ["ControlClient"]

_ANSWER_MAX_BYTES: Final = 7 * MIB
"""Goes on in a frame of the node interface. The status of a thousand nodes has 3 MiB."""
_LINE_MAX_BYTES: Final = 1 * MIB
_QUICK_S: Final = 5.0
_LOOK_S: Final = 15.0
"""For a whole cluster of a thousand nodes."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("runtime", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class ControlClient:
    """One control socket; a connection for each request."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._running: _Connection | None = None

    def status(self, *, timeout_s: float = _QUICK_S) -> dict[str, Any] | None:
        """The status document; None when nobody answers, or nothing that is one."""
        try:
            return self._json("GET", "/control/v1/status", None, timeout_s)
        except SbctlError:
            return None

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None, *, timeout_s: float) -> dict[str, Any]:
        """One request of another server of ours that speaks as the runtime does."""
        return self._json(method, path, body, timeout_s)

    def clear_bundle(self, *, timeout_s: float) -> dict[str, Any]:
        return self._json("DELETE", "/control/v1/bundle", None, timeout_s)

    def drain(self, by: str, *, timeout_s: float = _QUICK_S) -> dict[str, Any]:
        """Admit nothing new. `by`: operator, apply."""
        return self._json("POST", f"/control/v1/drain/{by}", {}, timeout_s)

    def resume(self, by: str, *, timeout_s: float = _QUICK_S) -> dict[str, Any]:
        return self._json("DELETE", f"/control/v1/drain/{by}", None, timeout_s)

    def reload_identity(self, *, timeout_s: float) -> dict[str, Any]:
        """The identity that the runtime holds from now on. Raises what it says, and goes on with the one it held."""
        return self._json("POST", "/control/v1/identity", {}, timeout_s)

    def take_certificate(self, pair: Secret, *, timeout_s: float) -> dict[str, Any]:
        """Show this chain from the next handshake on. Raises what the runtime says, and goes on with the former one."""
        return self._json("POST", "/control/v1/tls", {"pem": pair.reveal().decode("ascii", "replace")}, timeout_s)

    def take_provider_keys(self, keys: Mapping[str, Secret], *, timeout_s: float) -> dict[str, Any]:
        """Use these keys of external providers from the next request on. Raises what the runtime says."""
        told = {name: key.reveal().decode("utf-8", "replace") for name, key in keys.items()}
        return self._json("POST", "/control/v1/provider-keys", {"keys": told}, timeout_s)

    def deployment_action(
        self, deployment: str, action: str, asked: Mapping[str, Any], *, silence_s: float
    ) -> Iterator[dict[str, Any]]:
        """The lines of the job as they come; the last is result or error."""
        return self._lines(f"/control/v1/deployments/{quote(deployment, safe='')}/{action}", asked, silence_s)

    def apply_bundle(
        self, envelope: str, expected_revision: int | None, *, silence_s: float
    ) -> Iterator[dict[str, Any]]:
        """The lines of the transaction as they come; the last is result or error. Raises UnreachableError when the runtime falls silent."""
        body = {"envelope": envelope, "expected_revision": expected_revision}
        return self._lines("/control/v1/bundle", body, silence_s)

    def cluster(self, *, timeout_s: float = _LOOK_S) -> dict[str, Any] | None:
        """The cluster as this node knows it; None when nobody answers, or the runtime is no node of one."""
        try:
            return self._json("GET", "/control/v1/cluster", None, timeout_s)
        except SbctlError:
            return None

    def cluster_status(self, *, timeout_s: float = _LOOK_S) -> dict[str, Any]:
        """The body of GET /admin/cluster/status."""
        return self._json("GET", "/control/v1/cluster/status", None, timeout_s)

    def act_in_cluster(self, asked: Mapping[str, Any], *, timeout_s: float = _LOOK_S) -> dict[str, Any]:
        """What became of it. Raises what the runtime says."""
        return self._json("POST", "/control/v1/cluster/actions", asked, timeout_s)

    def publish_bundle(self, asked: Mapping[str, Any], *, silence_s: float) -> Iterator[dict[str, Any]]:
        """As `apply_bundle`, for the bundle of the cluster that this node is an authority of."""
        return self._lines("/control/v1/cluster/bundle", asked, silence_s)

    def _lines(self, path: str, body: Mapping[str, Any], silence_s: float) -> Iterator[dict[str, Any]]:
        response = self._request("POST", path, body, silence_s)
        try:
            if response.status != 200:
                raise _refusal(response.status, response.read(_ANSWER_MAX_BYTES))
            while line := response.readline(_LINE_MAX_BYTES):
                yield _object(line)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise self._silent(error) from error
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Close the connection of a running request; what the runtime began, it ends."""
        connection, self._running = self._running, None
        if connection is not None:
            if connection.sock is not None:
                with contextlib.suppress(OSError):
                    connection.sock.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float) -> dict[str, Any]:
        response = self._request(method, path, body, timeout_s)
        try:
            data = response.read(_ANSWER_MAX_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise self._silent(error) from error
        finally:
            self.abandon()
        if response.status != 200:
            raise _refusal(response.status, data)
        return _object(data)

    def _request(
        self, method: str, path: str, body: Mapping[str, Any] | None, timeout_s: float
    ) -> http.client.HTTPResponse:
        connection = _Connection(self._path, timeout_s)
        self._running = connection
        headers = {"Content-Type": "application/json"} if body is not None else {}
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.abandon()
            raise self._silent(error) from error

    def _silent(self, error: BaseException) -> UnreachableError:
        what = "it gave no answer in time" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return UnreachableError(
            "runtime.unreachable",
            f"the runtime on this host does not answer: {what}",
            place=str(self._path),
            next_step="run sbctl apply, which starts it; its log says why it stopped",
            retryable=True,
        )


def _object(data: bytes) -> dict[str, Any]:
    try:
        value = strict_json.loads(data, max_bytes=_ANSWER_MAX_BYTES)
    except InputError as error:
        raise HostError(
            "runtime.answer_invalid",
            f"the runtime answered nonsense: {error.message}",
            next_step="its log says what it does: sbctl logs; sbctl apply restarts one of another version",
        ) from error
    if not isinstance(value, dict):
        raise HostError(
            "runtime.answer_invalid",
            "the runtime answered something that is not an object",
            next_step="its log says what it does: sbctl logs; sbctl apply restarts one of another version",
        )
    return value


def _refusal(status: int, data: bytes) -> SbctlError:
    try:
        raw = _object(data).get("error")
    except HostError:
        raw = None
    if isinstance(raw, dict):
        return error_from_wire(raw)
    return HostError(
        "runtime.refused",
        f"the runtime answered {status}",
        next_step="its log says what it does: sbctl logs; sbctl apply restarts one of another version",
    )

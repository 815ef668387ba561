"""The `http` backend: the protocol that Terraform's backend of that name uses, and servers such as GitLab's speak.

    GET address            200 the document (Content-MD5 is checked when given), 204 or 404 none
    POST address?ID=lock   the document, as JSON with Content-MD5; the method may be another (`update_method`)
    LOCK lock_address      the ticket as JSON; 200 ours, 409 or 423 held, with the holder's ticket
    UNLOCK unlock_address  the ticket as JSON

Answers 429 and 5xx, and connections that break, are tried again: each of these requests may arrive twice without harm. A lock whose answer
was lost is recognised by its own id in the refusal. Redirects are not followed: the password goes to the address in sb.yml only.
"""

from __future__ import annotations

import base64
import hashlib
import json
import ssl
from collections.abc import Mapping
from typing import Any, Final

import httpx
from yarl import URL

from sbctl.base.clock import Clock
from sbctl.base.errors import InputError, LockedError, RefusedError, SbctlError, StateError
from sbctl.base.limits import STATE_DOCUMENT_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.state.settings import StateSettings, stays_here
from sbctl.state_backends.port import Ticket, lock_lost, locked, unreachable, untrusted

__all__ = ["HttpBackend"]

_TIMEOUT: Final = httpx.Timeout(60.0, connect=10.0)
_ATTEMPTS: Final = 4
_FIRST_PAUSE_S: Final = 0.5
_ANSWER_MAX_BYTES: Final = 64 * 1024


class HttpBackend:
    """One address. Requests may come from two threads."""

    def __init__(self, settings: StateSettings, password: Secret | None, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._ticket: Ticket | None = None
        self._lock_url = settings.lock_address or settings.address
        self._unlock_url = settings.unlock_address or self._lock_url
        auth = None
        if settings.username or password is not None:
            auth = httpx.BasicAuth(settings.username, password.reveal() if password is not None else b"")
        local = stays_here(URL(settings.address).host or "")
        self._client = httpx.Client(
            auth=auth, timeout=_TIMEOUT, verify=_verification(settings), follow_redirects=False, trust_env=not local
        )

    @property
    def place(self) -> str:
        return self._settings.place

    def close(self) -> None:
        self._client.close()

    def fetch(self) -> bytes | None:
        status, headers, body = self._ask("GET", self._settings.address, max_bytes=STATE_DOCUMENT_MAX_BYTES)
        if status in (204, 404):
            return None
        if status != 200:
            raise self._unexpected("GET", status)
        told = headers.get("content-md5")
        if told and told.strip() not in _md5_texts(body):
            raise StateError(
                "state.document_corrupt",
                "the shared state is not what its checksum says: it was cut or changed on its way",
                place=self.place,
                next_step="run the command again; if it stays, look at the server and what is between",
            )
        return body or None

    def store(self, data: bytes, *, head: Mapping[str, Any], expected_sha256: str) -> None:  # noqa: ARG002 - a server of this protocol compares neither
        url = URL(self._settings.address)
        if self._ticket is not None:
            url = url.update_query({"ID": self._ticket.id})
        headers = {"content-type": "application/json", "content-md5": _md5_texts(data)[0]}
        status, _, body = self._ask(self._settings.update_method, str(url), content=data, headers=headers)
        if status in (409, 423):
            raise lock_lost(self.place, Ticket.parse(body))
        if status == 412:
            raise StateError(
                "state.conflict",
                "somebody else wrote the shared state meanwhile",
                place=self.place,
                next_step="run the command again: it reads the state anew, and the hosts before it acts",
            )
        if status not in (200, 201, 202, 204):
            raise self._unexpected(self._settings.update_method, status)

    def lock(self, ticket: Ticket) -> None:
        status, _, body = self._ask_json(self._settings.lock_method, self._lock_url, ticket.to_json())
        if status in (409, 423):
            holder = Ticket.parse(body)
            if holder is None or holder.id != ticket.id:
                raise locked(self.place, holder)
        elif status in (404, 405, 501):
            raise RefusedError(
                "state.no_lock",
                f"the server has no lock at that address (it answered {status} to {self._settings.lock_method})",
                place=self._lock_url,
                next_step="set fleet.state.lock_address, lock_method and unlock_method to what the server's manual says; nothing is written without a lock",
            )
        elif status not in (200, 201, 204):
            raise self._unexpected(self._settings.lock_method, status)
        self._ticket = ticket

    def unlock(self, ticket_id: str) -> None:
        ticket = self._ticket
        body = ticket.to_json() if ticket is not None and ticket.id == ticket_id else {"ID": ticket_id}
        url = self._unlock_url
        if self._settings.unlock_method not in ("UNLOCK", "DELETE"):
            url = str(URL(url).update_query({"ID": ticket_id}))
        status, _, answer = self._ask_json(self._settings.unlock_method, url, body)
        if status in (409, 423):
            holder = Ticket.parse(answer)
            raise LockedError(
                "state.lock_mismatch",
                "the shared state is locked under another id"
                + (f": {holder.id}, {holder.who} ({holder.operation}) since {holder.created}" if holder else ""),
                place=self.place,
                next_step="look whether that run is alive, then give its id",
            )
        if status not in (200, 202, 204, 404):
            raise self._unexpected(self._settings.unlock_method, status)
        self._ticket = None

    def _ask_json(self, method: str, url: str, body: object) -> tuple[int, httpx.Headers, bytes]:
        return self._ask(method, url, content=json.dumps(body).encode(), headers={"content-type": "application/json"})

    def _ask(
        self,
        method: str,
        url: str,
        *,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        max_bytes: int = _ANSWER_MAX_BYTES,
    ) -> tuple[int, httpx.Headers, bytes]:
        """Status, headers and body; tried again where that may help. Raises UnreachableError, RefusedError `state.denied`."""
        pause_s = _FIRST_PAUSE_S
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                answer = self._once(method, url, content, headers, max_bytes)
            except (httpx.TransportError, httpx.DecodingError) as error:
                if isinstance(error, httpx.ConnectError) and "certificate" in str(error).lower():
                    raise untrusted(self.place, str(error)) from None
                failure: SbctlError = unreachable(self.place, _reason(error))
            else:
                if answer[0] in (401, 403):
                    raise self._denied(answer[0])
                if (answer[0] != 429 and answer[0] < 500) or answer[0] == 501:
                    return answer
                failure = unreachable(self.place, f"the server answered {answer[0]} to {method}")
            if attempt < _ATTEMPTS:
                self._clock.sleep_s(pause_s)
                pause_s *= 2
        raise failure

    def _once(
        self, method: str, url: str, content: bytes | None, headers: Mapping[str, str] | None, max_bytes: int
    ) -> tuple[int, httpx.Headers, bytes]:
        with self._client.stream(method, url, content=content, headers=headers) as response:
            chunks, size = [], 0
            for chunk in response.iter_bytes():
                size += len(chunk)
                if size > max_bytes:
                    if max_bytes == _ANSWER_MAX_BYTES:
                        break
                    raise StateError(
                        "state.too_large",
                        f"the server sends more than {max_bytes} bytes",
                        place=self.place,
                        next_step="check fleet.state.address: a state document is never that long",
                    )
                chunks.append(chunk)
            return response.status_code, response.headers, b"".join(chunks)

    def _denied(self, status: int) -> RefusedError:
        return RefusedError(
            "state.denied",
            f"the server of the shared state does not let us in ({status})",
            place=self.place,
            next_step="check fleet.state.username and what fleet.state.password refers to",
        )

    def _unexpected(self, method: str, status: int) -> StateError:
        kind = "a redirect, which is not followed" if 300 <= status < 400 else "which the protocol does not know"
        return StateError(
            "state.unexpected_answer",
            f"the server answered {status} to {method}, {kind}",
            place=self.place,
            next_step="check fleet.state.address and the methods with the server's manual",
        )


def _verification(settings: StateSettings) -> ssl.SSLContext | bool:
    """Raises InputError `state.ca_file`. Reading the system's certificates takes long, and plain http (on loopback only) needs none."""
    addresses = (settings.address, settings.lock_address, settings.unlock_address)
    if not settings.ca_file and all(address.startswith("http:") for address in addresses if address):
        return False
    if not settings.ca_file:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError):
        raise InputError(
            "state.ca_file",
            "fleet.state.ca_file is not a file of PEM certificates",
            place=settings.ca_file,
            next_step="give the path of the CA's certificate, relative to sb.yml",
        ) from None


def _md5_texts(data: bytes) -> tuple[str, str]:
    """The checksum as RFC 1864 writes it, and as some servers do. It finds accidents; it proves nothing."""
    digest = hashlib.md5(data, usedforsecurity=False)
    return base64.b64encode(digest.digest()).decode(), digest.hexdigest()


def _reason(error: Exception) -> str:
    if isinstance(error, httpx.TimeoutException):
        return "no answer in time"
    if isinstance(error, httpx.ConnectError):
        return "no connection"
    return "the connection broke in the middle of an answer"

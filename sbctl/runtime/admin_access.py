"""Accounts of the admin API, and sessions of those who logged in (SBproxy, "Transport, auth, CSRF").

The main account uses HTTP Basic or logs in; operators log in only, since their passwords are checked by scrypt, which is meant to be slow.
A session is a signed token in a cookie: base64url(payload).base64url(HMAC-SHA256), payload base64url(name)|role|expiry|nonce. The key is random
and of this process, so a restart ends every session; the nonce is the token that a change has to show beside the cookie.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from sbctl.base.clock import Clock
from sbctl.base.scrypt import scrypt_matches
from sbctl.base.secret import Secret
from sbctl.node.messages import AdminOperator

__all__ = ["COOKIE", "SESSION_S", "Accounts", "Principal", "Sessions"]

COOKIE: Final = "sb_admin_session"
SESSION_S: Final = 8 * 3600
_TOKEN_MAX_CHARS: Final = 1024
_REVOKED_MAX: Final = 10_000

Role = Literal["read_only", "admin"]


@dataclass(frozen=True, slots=True)
class Principal:
    """Who asks. `nonce` is of the session; None: with HTTP Basic."""

    name: str
    role: Role
    nonce: str | None = None


class Accounts:
    """`main` is the name of the account whose password the host holds; operators are of sb.yml."""

    def __init__(self, main: str, password: Secret, operators: Sequence[AdminOperator]) -> None:
        self.main = main
        self._expected = hashlib.sha256(password.reveal()).digest()
        self._operators: Mapping[str, AdminOperator] = {one.username: one for one in operators}
        self._nobody = next((one.password_hash for one in operators), None)

    def has(self, name: str) -> bool:
        return name == self.main or name in self._operators

    def basic(self, name: str, password: bytes) -> Principal | None:
        """Of the main account alone; as long for every name."""
        same = hmac.compare_digest(hashlib.sha256(password).digest(), self._expected)
        named = hmac.compare_digest(hashlib.sha256(name.encode()).digest(), hashlib.sha256(self.main.encode()).digest())
        return Principal(self.main, "admin") if same and named else None

    def login(self, name: str, password: bytes) -> Principal | None:
        """Blocks for as long as scrypt takes, also for a name that nobody has."""
        main = self.basic(name, password)
        if main is not None:
            return main
        operator = self._operators.get(name)
        stored = operator.password_hash if operator is not None else self._nobody
        right = stored is not None and scrypt_matches(stored, password)
        return Principal(operator.username, operator.role) if operator is not None and right else None


class Sessions:
    """Tokens of this process."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._revoked: OrderedDict[str, None] = OrderedDict()

    def open(self, principal: Principal) -> tuple[str, str]:
        """The token and its nonce."""
        nonce = secrets.token_hex(16)
        ends = int(self._clock.now().timestamp()) + SESSION_S
        payload = "|".join((_b64(principal.name.encode()), principal.role, str(ends), nonce))
        return f"{_b64(payload.encode())}.{_b64(self._sign(payload))}", nonce

    def of(self, token: str) -> Principal | None:
        """Whose it is; None when it is not ours, over, or ended."""
        try:
            written, _, signature = token[:_TOKEN_MAX_CHARS].partition(".")
            payload = _unb64(written).decode()
            if not hmac.compare_digest(_unb64(signature), self._sign(payload)):
                return None
            name, role, ends, nonce = payload.split("|")
            if int(ends) <= self._clock.now().timestamp() or nonce in self._revoked:
                return None
            return Principal(_unb64(name).decode(), "admin" if role == "admin" else "read_only", nonce)
        except (ValueError, binascii.Error):
            return None

    def end(self, nonce: str) -> None:
        self._revoked[nonce] = None
        if len(self._revoked) > _REVOKED_MAX:
            self._revoked.popitem(last=False)

    def _sign(self, payload: str) -> bytes:
        return hmac.new(self._key, payload.encode(), hashlib.sha256).digest()


def _b64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unb64(text: str) -> bytes:
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)

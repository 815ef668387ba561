"""Signs of life between a dispatch and its answer: a worker at work says so every few seconds, and one that says nothing is not waited for.

A prompt may be read for minutes, and a model loaded for longer; a process that was stopped, and a worker that only claims to serve, keep their
connections just the same. So a worker sends an interim answer (RFC 2518, 102) for as long as it has a dispatch in hand and no byte of its answer,
and a gateway that heard neither for `SILENCE_S` asks somebody else. That is also how long a dispatch counts: who has not taken it by then never will.
"""

from __future__ import annotations

from typing import Final

__all__ = ["INTERIM", "SIGN_S", "SILENCE_S"]

INTERIM: Final = b"HTTP/1.1 102 Processing\r\n\r\n"
SIGN_S: Final = 2.5
SILENCE_S: Final = 10.0

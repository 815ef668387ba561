"""Callers of a host's data plane who notice every request that fails, for changes that must lose none."""

from __future__ import annotations

import http.client
import json
import select
import ssl
import threading
from datetime import UTC, datetime
from typing import Self

__all__ = ["Load"]

PORT = 8080
ANSWER_S = 60.0
PAUSE_S = 0.03
"""Six callers then ask more than a hundred times a second, and leave the machine to what is changed under them."""


class Load:
    """Callers that hardly pause: some keep their connection, some take a new one for every request.

    As every pool of connections does, a caller looks before it uses a kept one again: a server may close what was idle.
    """

    def __init__(
        self,
        address: str,
        *,
        model: str | None = None,
        port: int = PORT,
        host: str = "ai.internal",
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """`model`: ask it for completions; without one, only whether the runtime lives. `host`: the origin that is asked. `tls`: over https."""
        self._tls = tls
        self._address = address
        self._port = port
        self._host = host
        self._model = model
        self._stop = threading.Event()
        self.answered = 0
        self.failures: list[str] = []
        self._threads = [threading.Thread(target=self._call, args=(number % 2 == 0,)) for number in range(6)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _call(self, keep: bool) -> None:
        connection = self._connection()
        while not self._stop.wait(PAUSE_S):
            if _was_closed(connection):
                connection.close()
            try:
                self._ask(connection)
                response = connection.getresponse()
                said = response.read()
                if response.status != 200:
                    self.failures.append(f"status {response.status}: {said[:300]!r}")
                self.answered += 1
            except (OSError, http.client.HTTPException) as error:
                kind = "kept" if keep else "new"
                self.failures.append(f"{datetime.now(UTC):%H:%M:%S.%f} on a {kind} connection: {error!r}")
                connection.close()
            if not keep:
                connection.close()
        connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is not None:
            return http.client.HTTPSConnection(self._address, self._port, timeout=ANSWER_S, context=self._tls)
        return http.client.HTTPConnection(self._address, self._port, timeout=ANSWER_S)

    def _ask(self, connection: http.client.HTTPConnection) -> None:
        if self._model is None:
            connection.request("GET", "/livez")
            return
        body = json.dumps({"model": self._model, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3})
        headers = {"Content-Type": "application/json", "Host": self._host}
        connection.request("POST", "/v1/chat/completions", body, headers)


def _was_closed(connection: http.client.HTTPConnection) -> bool:
    """Nothing but an end can arrive between an answer and the next request."""
    return connection.sock is not None and bool(select.select([connection.sock], [], [], 0)[0])

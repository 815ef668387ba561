"""A file server on loopback with a thread for each connection: fast as sendfile(2), or capped, or misbehaving in one named way.

with DownloadServer({"/w": data}, bytes_per_s=1_000_000) as server: server.url("/w")

python -m tests.simulators.download_server FILE [--bytes-per-s N]     prints its URL, serves until its standard input ends
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final, Self

__all__ = ["MISBEHAVIOURS", "Answer", "DownloadServer", "Seen"]

_SEND_BYTES: Final = 1 << 20
_CAPPED_SEND_BYTES: Final = 16 * 1024


@dataclass
class Seen:
    """One request: its number on the server, its range, and how many others were being answered."""

    path: str
    headers: Mapping[str, str]
    number: int
    beside: int

    @property
    def range(self) -> tuple[int, int | None] | None:
        match = re.fullmatch(r"bytes=([0-9]+)-([0-9]*)", self.headers.get("range", ""))
        return (int(match[1]), int(match[2]) + 1 if match[2] else None) if match else None


@dataclass
class Answer:
    """What goes out: `[start, end)` of the file under this head. `sent` cuts the body, `stall` then keeps the connection open."""

    status: int
    headers: dict[str, str]
    start: int
    end: int
    sent: int | None = None
    stall: bool = False
    garble: bool = False


Misbehaviour = Callable[[Seen, Answer], None]


def _is_piece(seen: Seen) -> bool:
    """Of a further connection, not of the first one or a continuation."""
    return seen.range is not None and seen.range[1] is not None


def _ignores(seen: Seen, answer: Answer) -> None:
    if _is_piece(seen):
        answer.status, answer.start, answer.end = 200, 0, int(answer.headers["X-Total"])
        answer.headers.pop("Content-Range", None)


def _head(name: str, value: str | None, *, status: int | None = None) -> Misbehaviour:
    def change(seen: Seen, answer: Answer) -> None:
        if _is_piece(seen):
            answer.headers.pop(name, None)
            if value is not None:
                answer.headers[name] = value
            answer.status = status or answer.status

    return change


def _shifted(seen: Seen, answer: Answer) -> None:
    if _is_piece(seen):
        answer.headers["Content-Range"] = f"bytes {answer.start + 1}-{answer.end}/{answer.headers['X-Total']}"


def _other_total(seen: Seen, answer: Answer) -> None:
    if _is_piece(seen):
        answer.headers["Content-Range"] = f"bytes {answer.start}-{answer.end - 1}/{int(answer.headers['X-Total']) + 1}"


def _cuts(seen: Seen, answer: Answer) -> None:
    if seen.number % 3:
        answer.sent = (answer.end - answer.start) // 2


def _shorter(seen: Seen, answer: Answer) -> None:
    if _is_piece(seen):
        answer.end -= 1


def _one_only(seen: Seen, answer: Answer) -> None:
    if seen.beside:
        answer.status, answer.start, answer.end = 429, 0, 0
        answer.headers |= {"Retry-After": "1"}


def _stalls(seen: Seen, answer: Answer) -> None:
    if seen.number == 1:
        answer.sent, answer.stall = 10, True


def _garbles(seen: Seen, answer: Answer) -> None:
    answer.garble = _is_piece(seen)


MISBEHAVIOURS: Final[Mapping[str, Misbehaviour]] = {
    "ignores ranges of further connections": _ignores,
    "answers another range": _shifted,
    "says another length": _other_total,
    "says no range": _head("Content-Range", None),
    "answers 206 with junk for a range": _head("Content-Range", "bytes */*"),
    "has another ETag for a range": _head("ETag", '"other"'),
    "compresses a range": _head("Content-Encoding", "gzip"),
    "answers 416": _head("Content-Range", "bytes */7", status=416),
    "answers 404 for a range": _head("X-Nothing", "", status=404),
    "answers 503 for a range": _head("Retry-After", "1", status=503),
    "cuts two of three answers": _cuts,
    "sends one byte less": _shorter,
    "allows one connection": _one_only,
    "goes silent once": _stalls,
    "has other bytes in ranges": _garbles,
}


@dataclass
class DownloadServer:
    """Serves `files` (bytes or a path each) with strong ETags and ranges, several requests a connection."""

    files: Mapping[str, bytes | Path]
    bytes_per_s: float | None = None
    misbehaviour: Misbehaviour | None = None
    ranges: bool = True
    etag: str = '"1"'
    seen: list[Seen] = field(default_factory=list)
    sent_bytes: int = 0

    def __enter__(self) -> Self:
        self._paths: dict[str, Path] = {}
        self._temporary = tempfile.TemporaryDirectory()
        for number, (path, content) in enumerate(self.files.items()):
            if isinstance(content, bytes):
                stored = Path(self._temporary.name) / str(number)
                stored.write_bytes(content)
                self._paths[path] = stored
            else:
                self._paths[path] = content
        self._lock = threading.Lock()
        self._busy = 0
        self._open: set[socket.socket] = set()
        self._stopping = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        for thread in list(self._threads):
            thread.join()
        self._temporary.cleanup()

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    def cut_all(self) -> None:
        """Every connection ends now."""
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _start(self, work: Callable[..., None], *given: object) -> None:
        thread = threading.Thread(target=work, args=given, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._open.add(connection)
            self._start(self._serve, connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, connection.makefile("rb") as reader:
                while not self._stopping.is_set() and self._one(connection, reader):
                    pass
        except OSError:
            pass
        finally:
            with self._lock:
                self._open.discard(connection)

    def _one(self, connection: socket.socket, reader: object) -> bool:
        readline: Callable[[], bytes] = reader.readline  # type: ignore[attr-defined]
        first = readline().decode("latin-1").split(" ")
        if len(first) < 2:
            return False
        headers = {}
        while (line := readline().decode("latin-1").strip()) != "":
            name, _, value = line.partition(":")
            headers[name.lower()] = value.strip()
        with self._lock:
            seen = Seen(first[1], headers, len(self.seen), self._busy)
            self.seen.append(seen)
            self._busy += 1
        try:
            return self._answer(connection, seen)
        finally:
            with self._lock:
                self._busy -= 1

    def _answer(self, connection: socket.socket, seen: Seen) -> bool:
        path = self._paths.get(seen.path.partition("?")[0])
        if path is None:
            connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return True
        answer = self._usual(seen, path.stat().st_size)
        if self.misbehaviour is not None:
            self.misbehaviour(seen, answer)
        announced = answer.end - answer.start
        answer.headers.pop("X-Total")
        if answer.status >= 300:
            answer.start = answer.end = announced = 0
        lines = [f"HTTP/1.1 {answer.status} Answer", f"Content-Length: {announced}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items()]
        connection.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
        self._send(connection, path, answer)
        if answer.stall:
            self._stopping.wait(30)
        return answer.sent is None

    def _usual(self, seen: Seen, total: int) -> Answer:
        headers = {"ETag": self.etag, "X-Total": str(total)}
        if self.ranges:
            headers["Accept-Ranges"] = "bytes"
        asked = seen.range
        if asked is None or not self.ranges or seen.headers.get("if-range", self.etag) != self.etag:
            return Answer(200, headers, 0, total)
        start, end = asked[0], min(total, asked[1] or total)
        if start >= end:
            return Answer(416, {**headers, "Content-Range": f"bytes */{total}"}, 0, 0)
        return Answer(206, {**headers, "Content-Range": f"bytes {start}-{end - 1}/{total}"}, start, end)

    def _send(self, connection: socket.socket, path: Path, answer: Answer) -> None:
        end = answer.end if answer.sent is None else min(answer.end, answer.start + answer.sent)
        position, began = answer.start, time.monotonic()
        piece = _SEND_BYTES if self.bytes_per_s is None else _CAPPED_SEND_BYTES
        with path.open("rb") as file:
            while position < end and not self._stopping.is_set():
                if answer.garble:
                    connection.sendall(random.randbytes(min(piece, end - position)))
                    sent = min(piece, end - position)
                else:
                    sent = os.sendfile(connection.fileno(), file.fileno(), position, min(piece, end - position))
                position += sent
                with self._lock:
                    self.sent_bytes += sent
                if self.bytes_per_s is not None:
                    ahead_s = (position - answer.start) / self.bytes_per_s - (time.monotonic() - began)
                    if ahead_s > 0:
                        self._stopping.wait(ahead_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bytes-per-s", type=float)
    options = parser.parse_args()
    with DownloadServer({"/w": options.file}, bytes_per_s=options.bytes_per_s) as server:
        print(server.url("/w"), flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

"""`sbctl-runtime store-keeper`: beside the store's server, as its own account; starts it anew when it takes no writes although there is room.

A server whose disk was full gives up its data until it is started anew, whatever room there is later. The keeper is a small process in the
server's own unit: it may look at the server on loopback and end it, and systemd (or the small parent, where none is) starts it again. Who runs
the runtime, or uses the store, has no way to make it do so.

    looks      every 10 s; while it is stuck at the disk only, since the server notes each question in its log
    acts       on a server that is stuck, so that no quorum hangs on it any more, and only where a file of some size can be written beside its data
    bounded    once in the life of a server; after a first restart not before 60 s of it are over, doubled up to an hour. What came before is in
               `restarts.json` beside the data, and is forgotten after an hour without a fault
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.clock import SYSTEM_CLOCK, Clock, rfc3339
from sbctl.base.errors import InputError, SbctlError, UsageError
from sbctl.base.limits import MIB
from sbctl.runtime.nodeops.store_health import Health, look

__all__ = ["Keeper", "Restarts", "keep_in_background", "room", "run_store_keeper"]

_RESTARTS_FILE: Final = "restarts.json"
_ROOM_BYTES: Final = 64 * MIB
"""Of a filesystem that is smaller than four times as much, a quarter of it."""
_PROBE_FILE: Final = "room"
_PROBE_BYTES: Final = MIB
_LOOK_S: Final = 10.0
_AGAIN_FIRST_S: Final = 60.0
_AGAIN_CAP_S: Final = 3600.0
_FORGOTTEN_AFTER_S: Final = 3600.0
_END_S: Final = 30.0
_CONFIG_MAX_BYTES: Final = 16 * MIB


def room(data: Path) -> tuple[int, int]:
    """How many bytes may be written there, and how many it takes before a start is worth it. Raises OSError."""
    found = os.statvfs(data)
    return found.f_bavail * found.f_frsize, min(_ROOM_BYTES, found.f_blocks * found.f_frsize // 4)


@dataclass(frozen=True, slots=True)
class Restarts:
    """How often the server was started anew since it last was well for an hour, and when that was."""

    count: int = 0
    last_at: str = ""

    @property
    def pause_s(self) -> float:
        """So old a server has to be before it may be ended."""
        return 0.0 if self.count == 0 else min(_AGAIN_CAP_S, _AGAIN_FIRST_S * 2.0 ** min(self.count - 1, 16))

    @classmethod
    def read(cls, data: Path) -> Restarts:
        """None so far where nothing readable is there; never raises."""
        try:
            told = json.loads(fs.read_bounded(data / _RESTARTS_FILE, max_bytes=4096))
            return cls(max(0, int(told["restarts"])), str(told["last_at"])[:40])
        except (InputError, ValueError, TypeError, KeyError, OverflowError):
            return cls()

    def write(self, data: Path) -> None:
        """Raises SbctlError `disk.*`."""
        fs.write_atomic(data / _RESTARTS_FILE, json.dumps({"restarts": self.count, "last_at": self.last_at}).encode())


class Keeper:
    """Decides for one life of a server; `is_due` is asked every now and then. `look` says how the server is, `say` writes into its log."""

    def __init__(
        self, data: Path, look: Callable[[], Health | None], *, clock: Clock, say: Callable[[str], None] | None = None
    ) -> None:
        self._data = data
        self._look = look
        self._clock = clock
        self._say = say or (lambda _text: None)
        self._began_s = clock.monotonic_s()
        self._well_since_s = self._began_s
        self._restarts = Restarts.read(data)
        self._is_stuck = False

    def is_due(self) -> bool:
        """Whether the server is to be ended now; that it will be is written down then. Raises SbctlError `disk.*`, OSError."""
        may_end = self._clock.monotonic_s() - self._began_s >= self._restarts.pause_s
        if self._is_stuck and not (may_end and self._has_room()):
            return False
        health = self._look()
        if health is None or not health.is_stuck:
            self._well(health is not None)
            return False
        if not self._is_stuck:
            self._is_stuck = True
            self._say(f"the store takes no writes: {health.problem}; it starts anew when there is room")
            return False
        Restarts(self._restarts.count + 1, rfc3339(self._clock.now())).write(self._data)
        self._say("there is room again: the store starts anew")
        return True

    def _well(self, is_answering: bool) -> None:
        now_s = self._clock.monotonic_s()
        if self._is_stuck or not is_answering:
            self._well_since_s = now_s
        self._is_stuck = False
        if self._restarts.count and now_s - self._well_since_s >= _FORGOTTEN_AFTER_S:
            self._restarts = Restarts(0, self._restarts.last_at)
            self._restarts.write(self._data)

    def _has_room(self) -> bool:
        free, needed = room(self._data)
        return free >= needed and self._can_write()

    def _can_write(self) -> bool:
        """What a filesystem says of itself knows neither quotas nor faults."""
        probe = self._data / _PROBE_FILE
        fs.sweep_temporaries(self._data, older_than_s=0.0, now_s=self._clock.now().timestamp())
        try:
            fs.write_atomic(probe, bytes(_PROBE_BYTES))
        except SbctlError:
            return False
        finally:
            with suppress(SbctlError, OSError):
                fs.remove_file(probe)
        return True


def keep(server: int, config: Path) -> None:
    """Until the server whose pidfd this is has ended; it may be ended here. Raises InputError for a configuration that is none of ours."""
    port, data = _watched(config)
    keeper = Keeper(data, lambda: look(port, others=()), clock=SYSTEM_CLOCK, say=_say)
    while not _ended(server, _LOOK_S):
        try:
            is_due = keeper.is_due()
        except (OSError, SbctlError) as error:
            _say(f"the store's keeper could not look: {error}")
            continue
        if is_due:
            signal.pidfd_send_signal(server, signal.SIGTERM)
            if not _ended(server, _END_S):
                signal.pidfd_send_signal(server, signal.SIGKILL)
            return


def _ended(server: int, within_s: float) -> bool:
    return bool(select.select([server], [], [], within_s)[0])


def _watched(config: Path) -> tuple[int, Path]:
    """Port of the server's own interface, and the directory of its data."""
    try:
        text = fs.read_bounded(config, max_bytes=_CONFIG_MAX_BYTES).decode()
        document = json.loads(text[text.index("{") :])
        return int(str(document["http"]).rpartition(":")[2]), Path(document["jetstream"]["store_dir"]).parent
    except (ValueError, KeyError, TypeError):
        raise InputError(
            "store.config_refused",
            "this is no configuration of the store",
            place=str(config),
            next_step="sbctl apply writes it anew",
        ) from None


def _say(text: str) -> None:
    with suppress(OSError, ValueError):
        sys.stderr.write(f"sbctl: {text[:1000]}\n")
        sys.stderr.flush()


def keep_in_background(server: int, config: Path) -> None:
    """As `keep`, in a process of its own. Returns at once. Raises OSError."""
    if os.fork():
        return
    try:
        keep(server, config)
    except (OSError, SbctlError) as error:
        _say(f"the store has no keeper: {error}")
    finally:
        os._exit(0)


def run_store_keeper(argv: list[str]) -> int:
    """`PID CONFIG`: stays in the background for as long as that server runs. Raises UsageError, OSError."""
    if len(argv) != 2 or not argv[0].isdecimal():
        raise UsageError("store.usage", "the keeper is started as: sbctl-runtime store-keeper PID CONFIG")
    keep_in_background(os.pidfd_open(int(argv[0])), Path(argv[1]))
    return 0

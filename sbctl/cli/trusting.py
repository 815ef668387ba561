"""`host trust`: which key each host shows or a known_hosts file has, what was pinned before, and what somebody says to it.

A key is pinned only after a person compared its fingerprint, gave it beforehand (`--fingerprint`), or named a file that they trust
(`--from`); `--yes` alone never suffices. Nobody logs in to a host that is not pinned. Jumps come first, since what lies behind them is
reached only through a jump that is pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from sbctl.base.connection import Connection, Jump
from sbctl.base.display import display_safe
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.host_keys import HOST_KEY_ALGORITHMS, HostKey, fingerprint_of_pin
from sbctl.base.limits import CONNECT_MAX_PARALLEL, SNAPSHOT_DEADLINE_S
from sbctl.base.patterns import NamePattern
from sbctl.base.suggest import did_you_mean
from sbctl.cli.workspace import Workspace
from sbctl.config.host_lock import HostLock, LockedKey, read_host_lock, write_host_lock
from sbctl.config.known_hosts import KnownHosts
from sbctl.views.trust_views import Question, Status, Trust, TrustOutcome

__all__ = ["TrustRequest", "ssh_scan", "targets_of", "trust_hosts", "unnamed_pins"]


@dataclass(frozen=True, slots=True)
class TrustRequest:
    """What the command line asks for. `ask` is None where nobody can answer."""

    lock: Path
    targets: Mapping[str, tuple[Jump, ...]]
    """Name → the way there, itself last."""
    ask: Callable[[Question], bool] | None
    assume_yes: bool = False
    fingerprint: str = ""
    known: KnownHosts | None = None
    known_file: str = ""
    recorded: Mapping[str, Connection] = field(default_factory=dict)
    """How the last apply reached each host."""


def targets_of(connections: Mapping[str, Connection], patterns: Sequence[str]) -> dict[str, tuple[Jump, ...]]:
    """Hosts and jumps that a pattern names (none given: all), jumps before what lies behind them.

    Raises InputError `host.unknown` with the nearest name, `pattern.invalid`.
    """
    paths = _ways(connections)
    chosen = set(paths) if not patterns else set()
    for text in patterns:
        pattern = NamePattern(text)
        matched = {name for name in paths if pattern.matches(name)}
        if not matched:
            raise _unknown(text, connections, paths)
        chosen |= matched
    return {name: paths[name] for name in sorted(chosen, key=lambda name: (len(paths[name]), list(paths).index(name)))}


def _ways(connections: Mapping[str, Connection]) -> dict[str, tuple[Jump, ...]]:
    """Host or jump → the way there, itself last."""
    paths: dict[str, tuple[Jump, ...]] = {}
    for name, connection in connections.items():
        if connection.kind == "ssh":
            whole = connection.path(name)
            for size in range(1, len(whole) + 1):
                paths.setdefault(whole[size - 1].name, whole[:size])
    return paths


def unnamed_pins(path: Path, *known: Mapping[str, Connection], remove: bool) -> tuple[Trust, ...]:
    """What the lock pins of hosts and jumps that none of `known` has: sb.yml, and the state, which may still have to remove something there.

    Raises ConfigError for a damaged lock.
    """
    lock = read_host_lock(path)
    named = {name for connections in known for name in _ways(connections)}
    stale = [lock.keys[name][0] for name in sorted(lock.keys) if name not in named]
    if remove and stale:
        write_host_lock(lock.without(line.name for line in stale))
    said = "" if remove else "its pin serves nobody any more; sbctl host trust --prune removes it"
    status: Status = "removed" if remove else "unnamed"
    return tuple(Trust(line.name, line.address, line.port, status, line.key, problem=said) for line in stale)


def _unknown(text: str, connections: Mapping[str, Connection], paths: Iterable[str]) -> InputError:
    shown = display_safe(text, max_chars=120)
    if text in connections:
        return InputError(
            "host.local",
            f'"{shown}" is this machine, which is not reached over SSH and has no key to pin',
            next_step="leave it out: the other hosts need their pins all the same",
        )
    close = did_you_mean(text, paths)
    return InputError(
        "host.unknown",
        f'sb.yml has no SSH host or jump "{shown}"',
        next_step=f'did you mean "{close}"?' if close else "sbctl host list names them",
    )


def trust_hosts(request: TrustRequest, scan: Callable[[tuple[Jump, ...]], HostKey]) -> TrustOutcome:
    """Look at every target's key, ask, pin. `scan` tells the key at the end of a way; it is called from several threads.

    Raises RefusedError `pin.nobody_to_ask`, `pin.blind` before anything is connected to; ConfigError for a damaged lock.
    """
    _refuse_blind(request)
    work = _Work(request, read_host_lock(request.lock))
    done: list[Trust] = []
    for depth in sorted({len(path) for path in request.targets.values()}):
        wave = {name: path for name, path in request.targets.items() if len(path) == depth}
        done.extend(work.settle(wave, scan))
    return TrustOutcome(request.lock, tuple(done), request.known.notes if request.known is not None else ())


def _refuse_blind(request: TrustRequest) -> None:
    if request.fingerprint and len(request.targets) != 1:
        raise InputError(
            "pin.one_fingerprint",
            f"one fingerprint is of one host, and {len(request.targets)} are named",
            next_step="run sbctl host trust NAME --fingerprint SHA256:… for each",
        )
    if request.fingerprint and fingerprint_of_pin(request.fingerprint) is None:
        raise InputError(
            "pin.bad_fingerprint",
            "a fingerprint is SHA256: and 43 characters, as ssh-keygen -lf prints it",
            next_step="ask the console of the host: ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub",
        )
    vouched = bool(request.fingerprint) or request.known is not None
    if request.assume_yes and not vouched:
        raise RefusedError(
            "pin.blind",
            "--yes alone would pin whoever answers at that address",
            next_step="add --fingerprint SHA256:… as the host's console shows it, or --from a known_hosts file that you trust",
        )
    if request.ask is None and not (request.assume_yes and vouched):
        raise RefusedError(
            "pin.nobody_to_ask",
            "there is no terminal on which somebody could compare the fingerprint",
            next_step="pass --yes with --fingerprint SHA256:… or with --from FILE, or run it on a terminal",
        )


class _Work:
    def __init__(self, request: TrustRequest, lock: HostLock) -> None:
        self.request = request
        self.lock = lock

    def settle(
        self, wave: Mapping[str, tuple[Jump, ...]], scan: Callable[[tuple[Jump, ...]], HostKey]
    ) -> Iterable[Trust]:
        """Targets that lie equally far: looked at together, asked one after the other."""
        paths = {name: self._with_pins(path) for name, path in wave.items()}
        looked = {name: self._in_sb_yml(path[-1]) for name, path in wave.items()}
        asked = [name for name, known in looked.items() if known is None]
        found: dict[str, tuple[HostKey, str] | Trust] = {}
        if self.request.known is not None:
            found = {name: self._from_file(paths[name][-1], self.request.known) for name in asked}
        elif asked:
            with ThreadPoolExecutor(
                max_workers=min(CONNECT_MAX_PARALLEL, len(asked)), thread_name_prefix="trust"
            ) as pool:
                found = dict(zip(asked, pool.map(lambda name: _scanned(paths[name], scan), asked), strict=True))
        for name, known in looked.items():
            if known is not None:
                yield known
                continue
            result = found[name]
            yield result if isinstance(result, Trust) else self._decide(paths[name][-1], *result)

    def _with_pins(self, path: tuple[Jump, ...]) -> tuple[Jump, ...]:
        """With what was pinned since the configuration was read."""
        return tuple(replace(hop, host_keys=hop.host_keys or self.lock.pins(hop.name)) for hop in path)

    def _in_sb_yml(self, hop: Jump) -> Trust | None:
        if not hop.host_keys or hop.host_keys == self.lock.pins(hop.name):
            return None
        sentence = "its key is pinned as host_key in sb.yml; edit it there"
        return Trust(
            hop.name, hop.address, hop.port, "in_sb_yml", previous=_fingerprints(hop.host_keys), problem=sentence
        )

    def _from_file(self, hop: Jump, known: KnownHosts) -> tuple[HostKey, str] | Trust:
        listed = known.keys_for(hop.address, hop.port)
        usable = [(line, key) for line, key in listed if key not in known.revoked]
        if not usable:
            if listed:
                return _ended(hop, "refused", "every key that the file has for it is revoked there", key=listed[0][1])
            return _ended(hop, "unknown", f"{self.request.known_file} has no key for {hop.address} port {hop.port}")
        best = min(usable, key=lambda each: HOST_KEY_ALGORITHMS.index(each[1].algorithm))
        rivals = [line for line, key in usable if key.algorithm == best[1].algorithm]
        if len(rivals) > 1:
            lines = " and ".join(map(str, rivals))
            return _ended(
                hop, "refused", f"lines {lines} have different {best[1].algorithm} keys for it; remove the old one"
            )
        return best[1], f"{self.request.known_file}:{best[0]}"

    def _decide(self, hop: Jump, key: HostKey, source: str) -> Trust:
        locked = self.lock.keys.get(hop.name, ())
        if any(each.key == key for each in locked):
            self._pin(hop, [key, *(each.key for each in locked if each.key.algorithm != key.algorithm)])
            return Trust(hop.name, hop.address, hop.port, "unchanged", key)
        question = self._question(hop, key, source)
        given = self.request.fingerprint
        if given and given != key.fingerprint:
            sentence = f"the host shows {key.fingerprint} ({key.algorithm}), not the fingerprint that was given; somebody may be in between"
            return _ended(hop, "refused", sentence, key=key, previous=question.previous)
        if not self.request.assume_yes and not (self.request.ask is not None and self.request.ask(question)):
            return _ended(hop, "declined", "nobody said yes", key=key, previous=question.previous)
        self._pin(hop, [key])
        return Trust(hop.name, hop.address, hop.port, "pinned", key, question.previous)

    def _question(self, hop: Jump, key: HostKey, source: str) -> Question:
        previous = _fingerprints(self.lock.pins(hop.name))
        place = self.lock.place(hop.name) if previous else ""
        recorded = self.request.recorded.get(hop.name)
        if not previous and recorded is not None and key.fingerprint not in _fingerprints(recorded.host_keys):
            previous, place = (
                _fingerprints(recorded.host_keys),
                "the state: so the last apply knew it" if recorded.host_keys else "",
            )
        shared = tuple(
            name for name, keys in self.lock.keys.items() if name != hop.name and any(each.key == key for each in keys)
        )
        return Question(hop.name, hop.address, hop.port, key, source, previous, place, shared)

    def _pin(self, hop: Jump, keys: Iterable[HostKey]) -> None:
        """Durable before the next question; what somebody else pinned meanwhile stays."""
        lines = [LockedKey(hop.name, hop.address, hop.port, key) for key in keys]
        fresh = read_host_lock(self.request.lock).pinned(hop.name, lines)
        if fresh.keys[hop.name] != self.lock.keys.get(hop.name):
            write_host_lock(fresh)
        self.lock = fresh


def _scanned(path: tuple[Jump, ...], scan: Callable[[tuple[Jump, ...]], HostKey]) -> tuple[HostKey, str] | Trust:
    try:
        return scan(path), "shown by the host"
    except SbctlError as error:
        is_itself = error.place is None or error.place.startswith(f"{path[-1].name} (")
        where = "" if is_itself else f"{error.place}: "
        then = f". {error.next_step}" if error.next_step else ""
        return _ended(path[-1], "unreachable", f"{where}{error.message}{then}")


def _fingerprints(pins: Iterable[str]) -> tuple[str, ...]:
    return tuple(found for pin in pins if (found := fingerprint_of_pin(pin)) is not None)


def _ended(
    hop: Jump, status: Status, problem: str, *, key: HostKey | None = None, previous: tuple[str, ...] = ()
) -> Trust:
    return Trust(hop.name, hop.address, hop.port, status, key, previous, problem)


@contextmanager
def ssh_scan(workspace: Workspace) -> Iterator[Callable[[tuple[Jump, ...]], HostKey]]:
    """A scan over the network; its connections to jumps end with it."""
    from sbctl.remote.ssh_links import SshLinks

    with closing(SshLinks(workspace.clock, workspace.login_secrets)) as links:
        yield lambda path: links.host_key(path, deadline_s=SNAPSHOT_DEADLINE_S)

"""Which hosts of a run get what is pushed through a relay of their site, by sb.yml and by what planning saw of the hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sbctl.base.clock import Clock
from sbctl.config.compiled import CompiledConfig
from sbctl.node.snapshot import NodeSnapshot
from sbctl.provider import NodeSession
from sbctl.remote.relay import RelayedSession, RelayHost, SiteRelay
from sbctl.remote.session import HostSession
from sbctl.views.console import note

__all__ = ["Relays"]


class Relays:
    """The relays of one run. Without any in sb.yml, sessions are handed on as they are."""

    def __init__(
        self,
        config: CompiledConfig | None,
        snapshots: Mapping[str, NodeSnapshot],
        connect: Callable[[str], HostSession],
        clock: Clock,
    ) -> None:
        """`connect` opens one more session to a host."""
        self._snapshots = snapshots
        self._notes: list[str] = []
        self._by_host: dict[str, SiteRelay] = {}
        hosts = config.hosts if config is not None else {}
        users: dict[str, list[str]] = {}
        for name, host in hosts.items():
            if host.relay is not None and host.delivery == "push":
                users.setdefault(host.relay, []).append(name)
        for relay, names in users.items():
            site = RelayHost(relay, hosts[relay].data_address, tuple(hosts[name].data_address for name in names))
            made = SiteRelay(site, lambda relay=relay: connect(relay), clock, has_runtime=self._has_runtime(relay))  # type: ignore[misc]
            if relay not in snapshots:
                made.give_up("it gave no answer")
            self._by_host |= dict.fromkeys((relay, *names), made)

    def over(self, host: str, session: HostSession) -> NodeSession:
        """The session to use for a host."""
        relay = self._by_host.get(host)
        if relay is None:
            return session
        return RelayedSession(session, relay, self._notes.append, has_runtime=self._has_runtime(host))

    def close(self) -> None:
        """End what relays serve, and say what went around them: not earlier, since a live view has the terminal until then."""
        for relay in set(self._by_host.values()):
            relay.close()
        for text in self._notes:
            note(text)

    def _has_runtime(self, host: str) -> bool:
        snapshot = self._snapshots.get(host)
        return snapshot is not None and snapshot.bootstrapped

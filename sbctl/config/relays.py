"""`relay` of a host: another host of this file that sbctl reaches over SSH, and that is reached by the operator directly itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sbctl.base.connection import Connection
from sbctl.base.errors import SourceSpan
from sbctl.base.suggest import did_you_mean
from sbctl.config.diagnose import Report

__all__ = ["RelayUser", "check_relays"]


class RelayUser(Protocol):
    """What is asked of a host's settings."""

    @property
    def connection(self) -> Connection: ...

    @property
    def relay(self) -> str | None: ...

    @property
    def span(self) -> SourceSpan | None: ...


def check_relays(report: Report, hosts: Mapping[str, RelayUser]) -> None:
    """Refuse relays that cannot pass anything on."""
    for name, host in hosts.items():
        if host.relay is None:
            continue
        relay = hosts.get(host.relay)
        if relay is None:
            close = did_you_mean(host.relay, hosts)
            notes = (f'did you mean "{close}"?',) if close else ()
            report.add(
                "config.unknown_relay", f'the relay of host "{name}", {host.relay}, is no host', host.span, notes=notes
            )
        elif relay.connection.kind == "local" or host.connection.kind == "local":
            message = f'host "{name}" cannot have {host.relay} as its relay: this machine sends directly'
            report.add("config.bad_relay", message, host.span)
        elif relay.relay is not None:
            message = f'the relay of host "{name}", {host.relay}, has a relay itself ({relay.relay})'
            report.add("config.bad_relay", message, host.span, notes=("a site has one relay",))

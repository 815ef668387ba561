"""What status, plan and doctor say of the certificate that callers of the API see, from what a host reports of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

from sbctl.node.snapshot import NodeSnapshot, PublicTlsState

__all__ = ["certificate_notes", "certificate_plan_notes", "certificate_problems"]


def certificate_problems(tls: PublicTlsState | None, now: datetime) -> Iterator[str]:
    """What callers over https notice, each in one sentence."""
    if tls is None:
        return
    until = _moment(tls.not_after)
    if until is not None and until <= now:
        yield f"the API's certificate ended {tls.not_after}: {_remedy(tls)}"
    elif tls.used is None:
        yield f"https is not served: {tls.problem or 'there is no certificate'}"
    elif tls.problem is not None:
        yield f"the API's certificate is not the newest: {tls.problem}"


def certificate_notes(tls: PublicTlsState | None, now: datetime) -> Iterator[str]:
    """That its end is near."""
    if tls is None:
        return
    until, warn_from = _moment(tls.not_after), _moment(tls.warn_from)
    if until is not None and warn_from is not None and warn_from <= now < until:
        days = (until - now).days
        yield f"the API's certificate ends {until.date().isoformat()}, in {days} days: {_remedy(tls)}"


def certificate_plan_notes(snapshots: Mapping[str, NodeSnapshot | None], now: datetime) -> tuple[str, ...]:
    """Of certificates that somebody else keeps on hosts: those that are sent were judged with sb.yml."""
    found = []
    for host, snapshot in sorted(snapshots.items()):
        tls = None if snapshot is None or not snapshot.runtime.running else snapshot.runtime.tls
        if tls is not None and tls.followed:
            found += [f"{host}: {said}" for said in (*certificate_problems(tls, now), *certificate_notes(tls, now))]
    return tuple(found)


def _remedy(tls: PublicTlsState) -> str:
    return "look at who keeps its files there (certbot renew)" if tls.followed else "renew it, then sbctl apply"


def _moment(text: str | None) -> datetime | None:
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else None

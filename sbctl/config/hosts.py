"""From `fleet.hosts` to single hosts: ranges written out, settings merged (host over group over defaults), and how each is reached."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from sbctl.artifacts.model import Delivery
from sbctl.base.connection import Connection
from sbctl.base.errors import SourceSpan
from sbctl.base.ids import RESERVED_SCOPES, is_id
from sbctl.base.patterns import number_ranges
from sbctl.config.diagnose import Report
from sbctl.config.document import Document, Path
from sbctl.config.egress_block import EgressModel
from sbctl.config.fleet import FleetModel, HostModel, OverlayModel, PythonModel
from sbctl.config.pins import PinBook
from sbctl.config.scalars import Scalar
from sbctl.config.ssh_fields import SshModel
from sbctl.config.ssh_ways import SshWays

__all__ = ["DEFAULT_ROLES", "LOCAL_HOST", "HostSettings", "expand_ranges", "host_settings"]

LOCAL_HOST: Final = "local"
DEFAULT_ROLES: Final = frozenset({"gateway", "worker"})
_MAX_HOSTS: Final = 10_000
_RANGE_RE: Final = re.compile(r"\[([0-9,-]+)\]")


@dataclass(frozen=True, slots=True)
class HostSettings:
    """What sb.yml says of one host beside `proxy`. `overlays` lead to its layers of `proxy` in the file, weakest first."""

    name: str
    connection: Connection
    roles: frozenset[str]
    labels: Mapping[str, str]
    variables: Mapping[str, Scalar]
    delivery: Delivery
    keep_weights: bool
    python: str | None
    standalone: PythonModel | None
    """A Python that is sent to the host, before any that it has."""
    data_address: str
    group: str | None
    overlays: tuple[Path, ...]
    egress: tuple[tuple[Path, EgressModel], ...]
    """Its layers of `egress`, weakest first."""
    relay: str | None
    """The host that passes on what is pushed; None for the relay itself."""
    span: SourceSpan | None


def expand_ranges(pattern: str) -> list[str]:
    """`gpu-[1-3]` as gpu-1, gpu-2, gpu-3; `r[1,3]-n[01-02]` as four names. Raises ValueError with a sentence."""
    parts = _RANGE_RE.split(pattern)
    if "[" in "".join(parts[::2]) or "]" in "".join(parts[::2]):
        raise ValueError("a range is written [1-4] or [1,3,5]")
    choices = [[part] if index % 2 == 0 else list(_numbers(part)) for index, part in enumerate(parts)]
    count = 1
    for each in choices:
        count *= len(each)
    if count > _MAX_HOSTS:
        raise ValueError(f"the ranges stand for more than {_MAX_HOSTS} names")
    return ["".join(combination) for combination in itertools.product(*choices)]


def _numbers(text: str) -> Iterator[str]:
    for first, last, width in number_ranges(text):
        if last - first >= _MAX_HOSTS:
            raise ValueError(f"a range counts upwards, over at most {_MAX_HOSTS} numbers")
        for number in range(first, last + 1):
            yield str(number).zfill(width)


@dataclass(frozen=True, slots=True)
class _Member:
    """One host of those that an entry stands for."""

    name: str
    address: str
    data_address: str
    pins: tuple[str, ...]


def host_settings(
    report: Report, document: Document, fleet: FleetModel, book: PinBook, secrets: Mapping[str, str]
) -> list[HostSettings]:
    """Every host, in file order; the one host `local` when `fleet.hosts` is absent. `secrets`: names, and what each refers to."""
    if fleet.hosts is None:
        return [_settings(LOCAL_HOST, Connection("local"), fleet, None, data_address="", span=None)]
    ways = SshWays(report, document, fleet, book, secrets)
    found: list[tuple[Path, HostSettings]] = []
    seen: dict[str, SourceSpan | None] = {}
    for pattern, host in fleet.hosts.items():
        path: Path = ("fleet", "hosts", pattern)
        span = document.key_span(path)
        layers = _ssh_layers(fleet, pattern, host)
        for member in _members(report, document, path, pattern, host):
            name = member.name
            if not _name_is_free(report, name, span, seen):
                continue
            connection = ways.direct(name, member.address, layers)
            if connection.kind == "ssh":
                connection = replace(connection, host_keys=book.pins(name, path, member.pins))
                ways.pinned(name, connection)
            settings = _settings(name, connection, fleet, (pattern, host), data_address=member.data_address, span=span)
            found.append((path, settings))
        if len(found) > _MAX_HOSTS:
            report.add("config.too_many_hosts", f"a fleet has at most {_MAX_HOSTS} hosts", span)
            break
    whole = [
        (path, replace(settings, connection=ways.whole(settings.name, settings.connection))) for path, settings in found
    ]
    _refuse_shared_addresses(report, document, whole)
    return [settings for _, settings in whole]


def _refuse_shared_addresses(report: Report, document: Document, found: list[tuple[Path, HostSettings]]) -> None:
    """Behind different jumps the same private address may stand for different machines."""
    reached: dict[object, str] = {}
    for path, settings in found:
        connection = settings.connection
        through = connection.jumps[-1].name if connection.jumps else ""
        place = (connection.kind, through, connection.address, connection.port)
        if place in reached:
            message = f'host "{settings.name}" has the address of host "{reached[place]}"'
            report.add("config.duplicate_address", message, document.value_span((*path, "address")))
        reached.setdefault(place, settings.name)


def _name_is_free(report: Report, name: str, span: SourceSpan | None, seen: dict[str, SourceSpan | None]) -> bool:
    if name in RESERVED_SCOPES:
        notes = (
            f"{LOCAL_HOST} exists only without fleet.hosts; this machine in a fleet is a host with address: local",
        )
        report.add("config.reserved_name", f'"{name}" is a reserved name', span, notes=notes)
        return False
    if not is_id(name):
        report.add("config.bad_key", f'the host name "{name[:64]}" must be 1 to 128 of A-Z a-z 0-9 . _ -', span)
        return False
    if name in seen:
        report.add("config.duplicate_host", f'there are two hosts "{name}"', span, notes=(f"the first: {seen[name]}",))
        return False
    seen[name] = span
    return True


def _members(report: Report, document: Document, path: Path, pattern: str, host: HostModel) -> list[_Member]:
    """The hosts that one entry stands for. A list of keys is one for each host of a range, and all of them for a single host."""
    span = document.key_span(path)
    try:
        names = expand_ranges(pattern)
        addresses = _addresses(host.address)
        reached = _addresses(host.data_address) if host.data_address else addresses
    except ValueError as error:
        report.add("config.bad_range", str(error), span)
        return []
    keys = (host.host_key,) if isinstance(host.host_key, str) else tuple(host.host_key or ())
    pins = [keys] if len(names) == 1 or len(keys) < 2 else [(key,) for key in keys]
    if len(addresses) != len(names) or len(reached) not in (1, len(names)) or len(pins) not in (1, len(names)):
        counts = f"{len(names)} names, {len(addresses)} addresses" + (
            f", {len(reached)} data addresses" if host.data_address else ""
        )
        what = f"{counts} and {len(keys)} host keys"
        report.add("config.bad_range", f"the entry stands for {what}; there must be as many of each", span)
        return []
    size = len(names)
    columns = (names, addresses, reached * (size // len(reached)), pins * (size // len(pins)))
    return [_Member(*row) for row in zip(*columns, strict=True)]


def _addresses(text: str) -> list[str]:
    return [text] if ":" in text else expand_ranges(text)


def _layers(fleet: FleetModel, host: HostModel | None) -> list[OverlayModel]:
    layers = [fleet.defaults]
    if host is not None:
        if host.group in fleet.groups:
            layers.append(fleet.groups[host.group])
        layers.append(host)
    return layers


def _ssh_layers(fleet: FleetModel, pattern: str, host: HostModel) -> list[tuple[Path, SshModel]]:
    layers: list[tuple[Path, SshModel]] = [
        (("fleet", "ssh"), fleet.ssh),
        (("fleet", "defaults", "ssh"), fleet.defaults.ssh),
    ]
    if host.group in fleet.groups:
        layers.append((("fleet", "groups", str(host.group), "ssh"), fleet.groups[str(host.group)].ssh))
    return [*layers, (("fleet", "hosts", pattern, "ssh"), host.ssh)]


def _settings(
    name: str,
    connection: Connection,
    fleet: FleetModel,
    written: tuple[str, HostModel] | None,
    *,
    data_address: str,
    span: SourceSpan | None,
) -> HostSettings:
    host = written[1] if written is not None else None
    overlays: list[Path] = [("fleet", "defaults", "proxy")]
    group = host.group if host is not None and host.group in fleet.groups else None
    if group is not None:
        overlays.append(("fleet", "groups", group, "proxy"))
    if written is not None:
        overlays.append(("fleet", "hosts", written[0], "proxy"))
    labels: dict[str, str] = {}
    variables: dict[str, Scalar] = {}
    roles, delivery, python, keep = DEFAULT_ROLES, "pull", fleet.runtime.python, False
    relay: str | None = None
    for layer in _layers(fleet, host):
        labels.update(layer.labels)
        variables.update(layer.vars)
        roles = frozenset(layer.roles) if layer.roles is not None else roles
        delivery = layer.delivery or delivery
        python = layer.python or python
        keep = keep or "weights" in layer.keep
        relay = layer.relay or relay
    return HostSettings(
        name=name,
        connection=connection,
        roles=frozenset(roles),
        labels=labels,
        variables=variables,
        delivery="push" if delivery == "push" else "pull",
        keep_weights=keep,
        python=python if isinstance(python, str) else None,
        standalone=python if isinstance(python, PythonModel) else None,
        data_address="127.0.0.1" if connection.kind == "local" else data_address,
        group=group,
        egress=tuple(
            ((*path[:-1], "egress"), layer.egress) for path, layer in zip(overlays, _layers(fleet, host), strict=True)
        ),
        relay=relay if written is not None and relay != name else None,
        overlays=tuple(overlays),
        span=span,
    )

"""From where the admin API of a host can be reached: loopback, or further with TLS and a list of who may (SBproxy, proxy.admin)."""

from __future__ import annotations

import ipaddress
from typing import Final

from sbctl.base.field_types import is_loopback
from sbctl.config.diagnose import Report
from sbctl.config.layers import View
from sbctl.config.models import AdminModel

__all__ = ["check_reach"]

_DEFAULT_PASSWORD: Final = "changeme"  # noqa: S105 - of SBproxy; it is refused


def check_reach(report: Report, admin: AdminModel, view: View) -> None:
    """Nothing is said of an admin API that is off."""
    if not admin.enabled:
        return
    goes_out = not is_loopback(admin.bind)
    lets_in = False
    for index, entry in enumerate(admin.allow_ips):
        network = _network(entry)
        if network is None:
            message = f'"{entry}" is no address and no network, and lets nobody in'
            report.note("config.no_effect", message, view.value_span(("admin", "allow_ips", index)))
        elif not (is_loopback(str(network[0])) and is_loopback(str(network[-1]))):
            lets_in = True
    _check_tls(report, admin, view, goes_out=goes_out)
    if goes_out and not lets_in:
        message = "allow_ips lets nobody from outside in, so the admin API answers this machine alone"
        report.note("config.no_effect", message, view.value_span(("admin", "bind")))
    elif lets_in and not goes_out:
        message = "the admin API listens on loopback, where nobody of allow_ips comes from; set admin.bind"
        report.note("config.no_effect", message, view.key_span(("admin", "allow_ips")))
    password = admin.password
    if password is not None and password.get_secret_value() == _DEFAULT_PASSWORD and (goes_out or lets_in):
        report.add(
            "config.rule",
            "the admin API can be reached from outside with the password that everybody knows",
            view.value_span(("admin", "password")),
            notes=("use a reference (secret:, env:, file:), or leave it out: the host makes one",),
        )


def _check_tls(report: Report, admin: AdminModel, view: View, *, goes_out: bool) -> None:
    if goes_out and admin.tls is None:
        report.add(
            "config.rule",
            "an admin API off loopback needs TLS",
            view.value_span(("admin", "bind")),
            notes=("add proxy.admin.tls: {cert: …, key: …}", "or leave it on loopback and reach it through ssh -L"),
        )


def _network(entry: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    try:
        return ipaddress.ip_network(entry, strict=False)
    except ValueError:
        return None

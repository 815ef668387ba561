"""What sb.yml may say, is known and checked, and this version cannot do yet: refused with a sentence, never half done."""

from __future__ import annotations

import re
from typing import Final

from sbctl.base.scrypt import SCRYPT_PATTERN
from sbctl.config.admin_reach import check_reach
from sbctl.config.diagnose import Report
from sbctl.config.document import Document, Path
from sbctl.config.fleet import FleetModel
from sbctl.config.layers import View
from sbctl.config.models import AdminModel, ProxyModel

__all__ = ["check_fleet", "check_proxy", "not_available"]

_CODE: Final = "config.not_available"
_UNMANAGED_ADMIN: Final = (
    "max_log_entries", "prompt_persistence_path", "prompt_persistence_encryption", "trace_url_template", "cors_origins"
)  # fmt: skip


def not_available(report: Report, view: View, path: Path, sentence: str, *, remedy: str = "") -> None:
    """Refuse what stands at `path`; `sentence` says what is missing, `remedy` what works instead."""
    report.add(_CODE, sentence, view.key_span(path), notes=(remedy,) if remedy else ())


def check_proxy(report: Report, proxy: ProxyModel, view: View) -> None:
    """Refusals that follow from `proxy` alone; engines are refused where a deployment uses one."""
    if proxy.model_host.authority == "cluster_authority" and proxy.cluster is None:
        report.add(
            "config.rule",
            "authority: cluster_authority leaves the deployments to a cluster, and there is none",
            view.value_span(("model_host", "authority")),
            notes=("add proxy.cluster, or use file_managed: this file is the owner",),
        )
    if proxy.model_host.authority == "admin_managed":
        _check_admin_managed(report, proxy, view)
    _check_admin(report, proxy.admin, view)


def _check_admin_managed(report: Report, proxy: ProxyModel, view: View) -> None:
    if not proxy.admin.enabled:
        report.add(
            "config.rule",
            "authority: admin_managed leaves the deployments to the admin API, which is not enabled",
            view.value_span(("model_host", "authority")),
            notes=("add proxy.admin.enabled: true, or use file_managed",),
        )
    if proxy.model_host.store_path is not None:
        message = (
            "store_path is kept, and not used: the deployments are in the runtime's database, below its state directory"
        )
        report.note("config.no_effect", message, view.key_span(("model_host", "store_path")))


def _check_admin(report: Report, admin: AdminModel, view: View) -> None:
    check_reach(report, admin, view)
    written = admin.model_fields_set
    for name in _UNMANAGED_ADMIN:
        if name in written:
            report.note(
                "config.not_managed",
                f"proxy.admin.{name} is kept, and not managed by sbctl",
                view.key_span(("admin", name)),
            )
    names = [admin.username]
    for index, operator in enumerate(admin.operators):
        where = ("admin", "operators", index)
        if operator.username in names:
            message = f'there are two admin accounts called "{operator.username}"'
            report.add("config.conflict", message, view.value_span((*where, "username")))
        names.append(operator.username)
        if not re.fullmatch(SCRYPT_PATTERN, operator.password_hash.get_secret_value()):
            report.add(
                "config.bad_value",
                "password_hash is not one of scrypt: other hashes can be guessed offline",
                view.value_span((*where, "password_hash")),
                notes=("sbctl admin hash-password makes one",),
            )
    _check_tenants(report, admin, view)


def _check_tenants(report: Report, admin: AdminModel, view: View) -> None:
    """Once, however many have one."""
    first = next((index for index, one in enumerate(admin.operators) if one.tenant is not None), None)
    if first is not None:
        report.note(
            "config.not_managed",
            "an operator's tenant is kept, and restricts nothing: SBproxy limits /api/meter by it, which sbctl does not serve",
            view.value_span(("admin", "operators", first, "tenant")),
        )


def check_fleet(report: Report, fleet: FleetModel, document: Document) -> None:
    """Refusals in `fleet`."""

    def refuse(path: Path, sentence: str, remedy: str) -> None:
        report.add(_CODE, sentence, document.key_span(("fleet", *path)), notes=(remedy,))

    layers: list[tuple[Path, object]] = [((), fleet), (("defaults",), fleet.defaults)]
    layers += [(("groups", name), group) for name, group in fleet.groups.items()]
    layers += [(("hosts", name), host) for name, host in (fleet.hosts or {}).items()]
    for where, layer in layers:
        ssh = getattr(layer, "ssh")  # noqa: B009 - three models, one field
        for name in ("host_keys", "jumps"):
            if where and getattr(ssh, name) is not None:
                span = document.key_span(("fleet", *where, "ssh", name))
                report.add("config.rule", f"{name} is one for the fleet", span, notes=("write it under fleet.ssh",))
        if "authority" in (getattr(layer, "roles", None) or ()) and fleet.identity is None:
            refuse(
                (*where, "roles"),
                "the role authority is one of a cluster's identities, and the fleet has none",
                "use gateway and worker, or add fleet.identity",
            )

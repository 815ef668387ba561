"""The last stage: hosts with their views become `CompiledConfig`; what can only be seen over the whole fleet is checked here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from sbctl.base.clock import SYSTEM_CLOCK, Clock
from sbctl.base.digests import fingerprint
from sbctl.base.errors import RefusedError
from sbctl.base.field_types import is_loopback
from sbctl.base.secret import Secret
from sbctl.base.suggest import did_you_mean
from sbctl.base.update_policy import UpdatePolicy
from sbctl.config.checks import check_api_key_models, check_canary, managed_providers, public_names
from sbctl.config.cluster_shape import compiled_cluster
from sbctl.config.compiled import (
    CompiledCluster,
    CompiledConfig,
    CompiledDeployment,
    CompiledEgress,
    CompiledHost,
    CompiledIdentity,
    CompiledOrigin,
    CompiledTls,
    EnrollServer,
    OwnPki,
    SecretRef,
    StandalonePython,
)
from sbctl.config.diagnose import Checked, Report
from sbctl.config.document import Document, Path
from sbctl.config.egress_block import EgressReader
from sbctl.config.external import ExternalReader
from sbctl.config.file_shape import FileShape
from sbctl.config.fleet import FleetModel
from sbctl.config.fleet_loading import written_vars
from sbctl.config.host_view import HostView, HostViewBuilder, layers_at
from sbctl.config.hosts import HostSettings, host_settings
from sbctl.config.identity_block import check_identity
from sbctl.config.interpolate import Variables, variables_in
from sbctl.config.layers import View, merged
from sbctl.config.licensing import refuse_unread_licenses
from sbctl.config.meaning import host_meaning, keys_meaning, served_meaning
from sbctl.config.models import ProxyModel
from sbctl.config.pins import PinBook, host_lock_path, open_pin_book
from sbctl.config.public_tls import TlsReader
from sbctl.config.relays import check_relays
from sbctl.config.routing import compiled_origins
from sbctl.config.scalars import Scalar
from sbctl.config.secrets import REFERENCE_PREFIXES, SecretSources, secret_ref
from sbctl.trust.bundle import ApiKeyEntry

__all__ = ["Compilation"]


@dataclass(frozen=True, slots=True)
class _Share:
    """What hosts that see and run the same have in common. `meaning` is its digest."""

    proxy: ProxyModel
    deployments: Mapping[str, CompiledDeployment]
    origins: Mapping[str, CompiledOrigin]
    meaning: str


@dataclass
class Compilation:
    """One run over one document. All findings go to `report`; `run` raises them."""

    document: Document
    report: Report
    environ: Mapping[str, str]
    keyed: Callable[[bytes], str] | None
    require_pins: bool = True
    clock: Clock = SYSTEM_CLOCK
    inline: dict[str, Secret] = field(default_factory=dict)
    views: dict[object, HostView | None] = field(default_factory=dict)
    names: dict[tuple[Path, ...], frozenset[str]] = field(default_factory=dict)
    shares: dict[object, _Share] = field(default_factory=dict)
    certificates: dict[int, CompiledTls | None] = field(default_factory=dict)
    """By view: hosts that see the same have the same."""
    meanings: dict[str, str] = field(default_factory=dict)
    api_keys: dict[str, ApiKeyEntry] = field(default_factory=dict)

    def run(self, shape: FileShape, checked: Checked[FleetModel]) -> CompiledConfig:
        """Raises ConfigError, then RefusedError `config.open_endpoint`, `config.license_not_accepted`."""
        sources = SecretSources(FilePath(self.document.path).absolute().parent, self.environ)
        secrets = {name: secret_ref(name, reference, sources, self.keyed) for name, reference in shape.secrets.items()}
        fleet = checked.model or FleetModel()
        builder = HostViewBuilder(self.document, self.report, tuple(fleet.accept_unenforced))
        if not checked.whole:
            builder.build((), Variables((self._all_variables(), self.environ)))
            host_settings(self.report, self.document, fleet, self._pins(fleet), shape.secrets)
            self.report.raise_errors()
        self.api_keys = {name: ApiKeyEntry(**dict(key)) for name, key in fleet.api_keys.items()}
        book = self._pins(fleet)
        settings = host_settings(self.report, self.document, fleet, book, shape.secrets)
        check_relays(self.report, {host.name: host for host in settings})
        book.note_unused()
        self._unused_groups(builder, fleet, settings)
        hosts: dict[str, CompiledHost] = {}
        proxies: dict[str, View] = {}
        for host in settings:
            view = self._view(builder, host)
            if view is not None:
                hosts[host.name] = self._host(host, view, fleet, secrets, sources)
                proxies[host.name] = view.view
        seen = [view for view in self.views.values() if view is not None]
        self._check_fleet_wide(fleet, settings, hosts, seen)
        canary = None if fleet.update is None else fleet.update.canary
        cluster = compiled_cluster(self.report, hosts, proxies, has_identity=fleet.identity is not None, canary=canary)
        self.report.raise_errors()
        self._refuse_open_endpoints(hosts, fleet)
        refuse_unread_licenses(hosts)
        return self._config(fleet, hosts, secrets, seen, cluster)

    def _pins(self, fleet: FleetModel) -> PinBook:
        return open_pin_book(self.report, self.document, fleet, required=self.require_pins)

    def _all_variables(self) -> dict[str, Scalar]:
        """Every variable that any host sets: enough to check the rest of a file whose fleet block has errors."""
        raw = self.document.value.get("fleet")
        blocks: list[Any] = [raw.get("defaults")] if isinstance(raw, dict) else []
        for name in ("groups", "hosts"):
            inner = raw.get(name) if isinstance(raw, dict) else None
            blocks.extend(inner.values() if isinstance(inner, dict) else ())
        found: dict[str, Scalar] = {}
        for block in blocks:
            found.update(written_vars(block, self.environ))
        return found

    def _unused_groups(self, builder: HostViewBuilder, fleet: FleetModel, settings: list[HostSettings]) -> None:
        """A group that no host takes is checked too, so that it does not break the day somebody uses it."""
        taken = {host.group for host in settings}
        for name, group in fleet.groups.items():
            if name not in taken and group.proxy:
                overlays: tuple[Path, ...] = (("fleet", "defaults", "proxy"), ("fleet", "groups", name, "proxy"))
                builder.build(overlays, Variables(({**fleet.defaults.vars, **group.vars}, self.environ)))

    def _view(self, builder: HostViewBuilder, host: HostSettings) -> HostView | None:
        layers = layers_at(self.document, ("proxy",), *host.overlays)
        present = tuple(layer.path for layer in layers)
        if present not in self.names:
            whole: Any = {}
            for layer in layers:
                whole = merged(whole, layer.value)
            self.names[present] = variables_in(whole) | variables_in(self.document.value.get("origins"))
        used = self.names[present]
        key = (present, tuple(sorted((name, repr(value)) for name, value in host.variables.items() if name in used)))
        if key not in self.views:
            self.views[key] = builder.build(host.overlays, Variables((host.variables, self.environ)))
        return self.views[key]

    def _host(
        self,
        host: HostSettings,
        view: HostView,
        fleet: FleetModel,
        secrets: Mapping[str, SecretRef],
        sources: SecretSources,
    ) -> CompiledHost:
        if view.proxy.model_host.offline:
            host = replace(host, delivery="push")
        share = self._share(host, view, ExternalReader(self.report, secrets, sources, self.keyed))
        password = self._password(host, view, secrets, sources)
        self.meanings[host.name] = share.meaning
        return CompiledHost(
            name=host.name,
            connection=host.connection,
            roles=host.roles,
            labels=host.labels,
            proxy=share.proxy,
            model_host=share.proxy.model_host,
            deployments=share.deployments,
            origins=share.origins,
            api_keys=self.api_keys,
            public=fleet.public,
            admin_password=password,
            delivery=host.delivery,
            python=host.python,
            standalone=self._standalone(host),
            keep_weights=host.keep_weights,
            relay=host.relay,
            group=host.group,
            tls=self._tls(view, secrets, sources),
            egress=self._egress(host, secrets, sources),
            data_address=host.data_address,
            catalog=view.catalog,
        )

    def _tls(self, view: HostView, secrets: Mapping[str, SecretRef], sources: SecretSources) -> CompiledTls | None:
        if id(view) not in self.certificates:
            directory = FilePath(self.document.path).absolute().parent
            reader = TlsReader(self.report, directory, secrets, sources, self.clock)
            served = {name: origin for name, origin in view.origins.items() if managed_providers(origin)}
            self.certificates[id(view)] = reader.read(view.proxy, view.view, served)
        return self.certificates[id(view)]

    def _egress(
        self, host: HostSettings, secrets: Mapping[str, SecretRef], sources: SecretSources
    ) -> CompiledEgress | None:
        layers = [(layer, self.document.key_span(path)) for path, layer in host.egress]
        return EgressReader(self.report, secrets, sources, self.keyed).read(layers)

    def _standalone(self, host: HostSettings) -> StandalonePython | None:
        if host.standalone is None:
            return None
        path = FilePath(self.document.path).absolute().parent / FilePath(host.standalone.path).expanduser()
        return StandalonePython(str(path), host.standalone.sha256)

    def _share(self, host: HostSettings, view: HostView, externals: ExternalReader) -> _Share:
        """What the host serves; alike hosts get the same objects."""
        names = tuple(name for name, each in view.deployments.items() if _runs(host, each))
        joined = view.proxy.cluster is not None
        serves = bool(host.roles & ({"gateway"} if joined else {"gateway", "worker"}))
        key = (id(view), names, serves, host.delivery)
        if key not in self.shares:
            deployments = {name: replace(view.deployments[name], delivery=host.delivery) for name in names}
            origins = compiled_origins(view, view.deployments if joined else deployments, externals) if serves else {}
            proxy = view.proxy.model_copy(update={"admin": view.proxy.admin.model_copy(update={"password": None})})
            self.shares[key] = _Share(proxy, deployments, origins, served_meaning(proxy, deployments, origins))
        return self.shares[key]

    def _password(
        self, host: HostSettings, view: HostView, secrets: Mapping[str, SecretRef], sources: SecretSources
    ) -> SecretRef | None:
        written, value = view.password_text, view.proxy.admin.password
        if value is None:
            return None
        text = value.get_secret_value()
        path: Path = ("admin", "password")
        if written is None or not written.startswith(REFERENCE_PREFIXES):
            pointer = "/".join(
                ("inline:", *(part.replace("~", "~0").replace("/", "~1") for part in map(str, view.view.source(path))))
            )
            secret = Secret(text.encode())
            reference = pointer if self.inline.setdefault(pointer, secret) == secret else f"{pointer}@{host.name}"
            self.inline[reference] = secret
            return SecretRef(
                "admin_password", reference, self.keyed(secret.reveal()) if self.keyed is not None else None
            )
        if not text.startswith("secret:"):
            return secret_ref("admin_password", text, sources, self.keyed)
        name = text.removeprefix("secret:")
        if name not in secrets:
            close = did_you_mean(name, secrets)
            self.report.add(
                "config.unknown_secret",
                f'there is no secret "{name}"',
                view.view.value_span(path),
                label=f'did you mean "{close}"?' if close else "",
                notes=(f"secrets: {', '.join(sorted(secrets)) or 'none'}",),
            )
            return None
        return secrets[name]

    def _check_fleet_wide(
        self, fleet: FleetModel, settings: list[HostSettings], hosts: Mapping[str, CompiledHost], views: list[HostView]
    ) -> None:
        running = {name for host in hosts.values() for name in host.deployments}
        for view in views:
            for name, each in view.deployments.items():
                if name not in running:
                    labels = ", ".join(f"{key}: {value}" for key, value in each.model.required_labels.items())
                    message = f'no worker host has the labels that deployment "{name}" requires ({labels or "none"})'
                    path: Path = ("model_host", "deployments", name)
                    where = (*path, "required_labels") if labels else path
                    self.report.add("config.no_matching_host", message, view.view.key_span(where))
        for host in settings:
            if "worker" not in host.roles and (host.name not in hosts or hosts[host.name].proxy.cluster is None):
                message = f'host "{host.name}" is no worker; without proxy.cluster it serves nothing'
                self.report.note("config.no_effect", message, host.span)
        exposed = {
            model
            for view in views
            for origin in view.origins.values()
            for _, provider in managed_providers(origin)
            for model in public_names(provider)
        }
        fleet_view = View(self.document, layers_at(self.document, ("fleet",)))
        if fleet.identity is not None:
            roles = {host.name: host.roles for host in settings}
            check_identity(self.report, fleet.identity, roles, fleet_view.key_span)
        if fleet.update is not None and fleet.update.canary is not None:
            check_canary(self.report, fleet.update.canary, [host.name for host in settings], fleet_view)
        for name, key in fleet.api_keys.items():
            check_api_key_models(self.report, name, key.models or (), exposed, fleet_view)

    def _refuse_open_endpoints(self, hosts: Mapping[str, CompiledHost], fleet: FleetModel) -> None:
        if fleet.public or fleet.api_keys:
            return
        opened = [name for name, host in hosts.items() if not is_loopback(host.proxy.bind_address)]
        if opened:
            listed = ", ".join(opened[:5]) + (" …" if len(opened) > 5 else "")
            raise RefusedError(
                "config.open_endpoint",
                f"the API of {listed} would be open to the network without a key",
                place=self.document.path,
                next_step="list callers under fleet.api_keys, bind to 127.0.0.1, or say fleet.public: true",
                detail={"hosts": opened},
            )

    def _config(
        self,
        fleet: FleetModel,
        hosts: Mapping[str, CompiledHost],
        secrets: Mapping[str, SecretRef],
        views: list[HostView],
        cluster: CompiledCluster | None,
    ) -> CompiledConfig:
        signers = dict(fleet.trust.signers) if fleet.trust is not None else None
        catalogs = sorted({view.catalog.digest for view in _distinct(views)})
        name = fleet.name or (_directory_name(self.document.path) if cluster is None else cluster.cluster_id)
        meaning = {
            "fleet_name": name,
            "hosts": {host.name: host_meaning(host, self.meanings[host.name]) for host in hosts.values()},
            "api_keys": keys_meaning(self.api_keys),
            "public": fleet.public,
            "signers": signers,
            "runtime_version": fleet.runtime.version,
            "prevent_destroy": list(fleet.prevent_destroy),
            **({} if fleet.update is None else {"update": dict(fleet.update)}),
            "identity": None if fleet.identity is None else fleet.identity.model_dump(mode="json"),
        }
        return CompiledConfig(
            path=self.document.path,
            fleet_name=name,
            digest=fingerprint(meaning),
            catalog_digest=catalogs[0] if len(catalogs) == 1 else fingerprint(catalogs),
            hosts=hosts,
            signers=signers,
            runtime_version=fleet.runtime.version,
            secrets=secrets,
            prevent_destroy=fleet.prevent_destroy,
            update=None if fleet.update is None else UpdatePolicy(**dict(fleet.update)),
            notes=self.report.in_order("note"),
            inline_secrets=self.inline,
            host_lock=host_lock_path(self.document.path, fleet),
            identity=_identity(fleet, FilePath(self.document.path).absolute().parent),
            cluster=cluster,
        )


def _identity(fleet: FleetModel, directory: FilePath) -> CompiledIdentity | None:
    written = fleet.identity
    if written is None:
        return None
    own = None
    if written.ca_file is not None and written.cert_file is not None and written.key_file is not None:
        ca, certificate = (
            str(directory / FilePath(name).expanduser()) for name in (written.ca_file, written.cert_file)
        )
        own = OwnPki(ca, certificate, written.key_file)
    enroll = written.enroll
    return CompiledIdentity(
        own=own,
        enroll=None if enroll is None else EnrollServer(**dict(enroll)),
        directory=str(directory / FilePath(written.directory).expanduser()),
        server_name=written.server_name,
        validity_days=written.validity_days,
        renew_before_days=written.renew_before_days,
    )


def _runs(host: HostSettings, deployment: CompiledDeployment) -> bool:
    required = deployment.model.required_labels
    return "worker" in host.roles and all(host.labels.get(key) == value for key, value in required.items())


def _distinct(views: list[HostView]) -> list[HostView]:
    return list({id(view.catalog): view for view in views}.values())


def _directory_name(path: str) -> str:
    name = FilePath(path).absolute().parent.name
    return (
        "".join(char if char.isascii() and (char.isalnum() or char in "._-") else "-" for char in name)[:64].strip(".-")
        or "fleet"
    )

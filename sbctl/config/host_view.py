"""`proxy` and `origins` as one host sees them: overlays merged, variables put in, checked, deployments resolved against the catalog.

Hosts that see the same share one `HostView`, so a fleet of a thousand alike costs as much as one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, ClassVar

from pydantic import Field

from sbctl.base.errors import InputError
from sbctl.base.field_types import Block
from sbctl.catalog.loader import Catalog, builtin_catalog
from sbctl.catalog.resolve import DeviceProfile, Resolution, resolve
from sbctl.config.availability import check_proxy, not_available
from sbctl.config.catalog_file import catalog_with_file
from sbctl.config.checks import check_origins, check_proxy_rules, managed_providers
from sbctl.config.cluster_fields import check_cluster_fields
from sbctl.config.compiled import CompiledAdapter, CompiledAlternative, CompiledDeployment
from sbctl.config.diagnose import Report, report_expansion, validated
from sbctl.config.document import ABSENT, Document, Path, child
from sbctl.config.external import refuse_offline
from sbctl.config.interpolate import Variables, expanded
from sbctl.config.layers import Layer, View
from sbctl.config.models import DeploymentModel, EngineModel, ProxyModel
from sbctl.config.origins import OriginModel, OriginName
from sbctl.config.planes import Foreign, without_foreign
from sbctl.config.public_tls import check_force_ssl
from sbctl.config.served import report_foreign, served_origins
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, wheel_versions
from sbctl.trust.bundle import COLD_START_DEFAULT, EngineMode

__all__ = ["HostView", "HostViewBuilder", "layers_at"]

_VLLM_ONLY = ("chunked_prefill", "tool_call_parser", "swap_space_gib", "cpu_offload_gib")
_MODES: Mapping[str, EngineMode] = {"chat": "chat", "embedding": "embedding", "rerank": "rerank"}
"""Modality of the catalog → what an engine is started as."""


@dataclass(frozen=True, slots=True)
class HostView:
    """What hosts that see the same share. `password_text` is admin.password as it is written, before variables are put in."""

    proxy: ProxyModel
    view: View
    origins: Mapping[str, OriginModel]
    origins_view: View
    deployments: Mapping[str, CompiledDeployment]
    catalog: Catalog
    password_text: str | None


class OriginsShape(Block):
    """The hostnames of the file, read apart from the rest of it."""

    noun: ClassVar[str] = "origins"

    origins: dict[OriginName, OriginModel] = Field(default_factory=dict)


def layers_at(document: Document, *paths: Path) -> tuple[Layer, ...]:
    """The parts of the file at `paths`, where there are any."""
    found = []
    for path in paths:
        value: Any = document.value
        for part in path:
            value = child(value, part)
        if value is not ABSENT:
            found.append(Layer(path, value))
    return tuple(found)


def _written_deployments(proxy: Any) -> list[str]:
    """Ids as the file has them, also those of deployments that have errors."""
    model_host = proxy.get("model_host") if isinstance(proxy, dict) else None
    deployments = model_host.get("deployments") if isinstance(model_host, dict) else None
    return list(deployments) if isinstance(deployments, dict) else []


@dataclass
class HostViewBuilder:
    """Builds views of one file. Catalog files are read once."""

    document: Document
    report: Report
    accepted: tuple[str, ...]
    catalogs: dict[str | None, Catalog] = field(default_factory=dict)

    def build(self, overlays: tuple[Path, ...], variables: Variables) -> HostView | None:
        """None with findings in the report. `overlays` lead to layers over the global `proxy`, weakest first."""
        view = View(self.document, layers_at(self.document, ("proxy",), *overlays))
        proxy = self._proxy(view, variables)
        origins, origins_view = self._origins(variables)
        if proxy is None:
            return None
        catalog = self._catalog(proxy, view)
        check_proxy(self.report, proxy, view)
        check_proxy_rules(self.report, proxy, view)
        if proxy.cluster is not None:
            check_cluster_fields(self.report, proxy.cluster, view)
        deployments = self._deployments(proxy, view, catalog)
        check_origins(
            self.report,
            origins,
            _written_deployments(view.value),
            origins_view,
            may_precede=proxy.model_host.authority == "admin_managed",
        )
        if proxy.model_host.offline:
            refuse_offline(self.report, origins, origins_view)
        has_https = proxy.https_bind_port is not None
        served = {name: origin for name, origin in origins.items() if managed_providers(origin)}
        check_force_ssl(self.report, served, origins_view, has_https=has_https, accepted=self.accepted)
        raw_admin = view.value.get("admin") if isinstance(view.value, dict) else None
        text = raw_admin.get("password") if isinstance(raw_admin, dict) else None
        return HostView(
            proxy, view, origins, origins_view, deployments, catalog, text if isinstance(text, str) else None
        )

    def _proxy(self, view: View, variables: Variables) -> ProxyModel | None:
        value, found = without_foreign(view.value, ("proxy",))
        shown = [Foreign(each.path[1:], each.pattern, each.restricts) for each in found]
        report_foreign(self.report, view, "proxy", shown, self.accepted)
        expansion = expanded(value, variables)
        report_expansion(self.report, view, expansion.problems)
        broken = [path for path, _, _ in expansion.problems]
        checked = validated(
            self.report, ProxyModel, expansion.value, view, texts=expansion.texts, broken=broken, prefix=("proxy",)
        )
        return checked.model

    def _origins(self, variables: Variables) -> tuple[dict[str, OriginModel], View]:
        view = View(self.document, layers_at(self.document, ("origins",)))
        served = served_origins(self.report, view, self.accepted)
        whole = View(self.document, (Layer((), {"origins": view.value}),))
        expansion = expanded({"origins": served.value}, variables)
        report_expansion(self.report, whole, expansion.problems)
        broken = [path for path, _, _ in expansion.problems]
        checked = validated(self.report, OriginsShape, expansion.value, whole, texts=expansion.texts, broken=broken)
        return (checked.model.origins if checked.model is not None else {}), view

    def _catalog(self, proxy: ProxyModel, view: View) -> Catalog:
        written = proxy.model_host.catalog_file
        if written not in self.catalogs:
            directory = FilePath(self.document.path).absolute().parent
            span = view.value_span(("model_host", "catalog_file"))
            self.catalogs[written] = (
                builtin_catalog() if written is None else catalog_with_file(self.report, written, directory, span)
            )
        return self.catalogs[written]

    def _deployments(self, proxy: ProxyModel, view: View, catalog: Catalog) -> dict[str, CompiledDeployment]:
        found: dict[str, CompiledDeployment] = {}
        used: set[str] = set()
        for name, deployment in proxy.model_host.deployments.items():
            compiled = self._deployment(name, deployment, proxy, view, catalog)
            if compiled is not None:
                used.add(compiled.engine)
                found[name] = compiled
            elif deployment.engine != "auto":
                used.add(deployment.engine)
        for kind in proxy.model_host.engines:
            if kind not in used:
                message = f"no deployment uses the engine {kind}"
                if proxy.model_host.authority == "admin_managed":
                    message += (
                        ", so hosts do not get it, and the admin API has none to start: name one deployment that does"
                    )
                self.report.note("config.unused_engine", message, view.key_span(("model_host", "engines", kind)))
        return found

    def _deployment(
        self, name: str, deployment: DeploymentModel, proxy: ProxyModel, view: View, catalog: Catalog
    ) -> CompiledDeployment | None:
        path: Path = ("model_host", "deployments", name)
        settings = proxy.model_host.engines
        try:
            resolution = resolve(
                catalog, deployment.model, deployment.variant, engine=deployment.engine, device=DeviceProfile()
            )
        except InputError as error:
            where = "variant" if error.code == "catalog.unknown_variant" else "model"
            close = error.detail.get("did_you_mean")
            label = f'did you mean "{close}"?' if close else ""
            notes = [] if label or error.next_step is None else [error.next_step]
            self.report.add(error.code, error.message, view.value_span((*path, where)), label=label, notes=notes)
            return None
        if not self._has_engine(resolution.engine, deployment, view, path):
            return None
        policy = self._policy(deployment, settings.get("llama_cpp"), view, path)
        mode = self._mode(deployment, resolution.entry.model.modality, view, path)
        adapters = self._adapters(deployment, view, catalog, path)
        context = self._context(deployment, resolution.facts.context_length, view, path)
        if policy is None or mode is None or adapters is None or context is None:
            return None
        return CompiledDeployment(
            id=name,
            model=deployment,
            artifact=resolution.facts,
            engine=resolution.engine,
            engine_policy=policy,
            context_length=context,
            max_concurrency=deployment.max_concurrency or 1,
            cold_start=deployment.cold_start or COLD_START_DEFAULT,
            delivery="pull",
            span=view.key_span(path),
            mode=mode,
            adapters=adapters,
            shape=resolution.variant.shape,
            alternatives=() if proxy.cluster is None else _alternatives(deployment, resolution, catalog),
        )

    def _has_engine(self, engine: str, deployment: DeploymentModel, view: View, path: Path) -> bool:
        """Whether this version runs it; fields of another engine are reported."""
        if engine != "llama_cpp":
            where = "engine" if deployment.engine != "auto" else "model"
            sentence = f"the engine {engine} is not in this version of sbctl"
            not_available(
                self.report, view, (*path, where), sentence, remedy="choose a gguf variant: llama_cpp serves it"
            )
            return False
        for field_name in _VLLM_ONLY:
            if deployment.engine == "auto" and getattr(deployment, field_name) is not None:
                message = f"{field_name} is for vllm only, and this deployment runs on {engine}"
                self.report.add("config.conflict", message, view.value_span((*path, field_name)))
        return True

    def _context(self, deployment: DeploymentModel, most: int, view: View, path: Path) -> int | None:
        """Tokens of one request."""
        asked = deployment.max_context
        if asked is None or asked <= most:
            return asked or most
        message = f"max_context is {asked}, and {deployment.model} has {most} tokens of context"
        notes = (f"leave it out for all {most}, or say less",)
        self.report.add("config.out_of_range", message, view.value_span((*path, "max_context")), notes=notes)
        return None

    def _mode(self, deployment: DeploymentModel, modality: str, view: View, path: Path) -> EngineMode | None:
        mode = _MODES.get(modality)
        if mode is not None:
            return mode
        sentence = f"{deployment.model} is for {modality}, which llama_cpp does not serve in this version of sbctl"
        remedy = "llama_cpp serves models for chat, embedding and rerank"
        not_available(self.report, view, (*path, "model"), sentence, remedy=remedy)
        return None

    def _adapters(
        self, deployment: DeploymentModel, view: View, catalog: Catalog, path: Path
    ) -> tuple[CompiledAdapter, ...] | None:
        found = []
        for index, lora in enumerate(deployment.lora):
            try:
                facts = resolve(catalog, lora.model, lora.variant, engine="llama_cpp", device=DeviceProfile()).facts
            except InputError as error:
                where = "variant" if error.code == "catalog.unknown_variant" else "model"
                notes = [] if error.next_step is None else [error.next_step]
                self.report.add(error.code, error.message, view.value_span((*path, "lora", index, where)), notes=notes)
                return None
            found.append(CompiledAdapter(facts, lora.scale))
        return tuple(found)

    def _policy(
        self, deployment: DeploymentModel, written: EngineModel | None, view: View, path: Path
    ) -> EngineModel | None:
        engine_path: Path = ("model_host", "engines", "llama_cpp")
        policy = written or EngineModel(launch="wheel")
        if policy.launch in ("container", "uv"):
            sentence = f"launch: {policy.launch} is not in this version of sbctl"
            not_available(
                self.report, view, (*engine_path, "launch"), sentence, remedy="use launch: wheel or launch: binary"
            )
            return None
        if policy.acceleration == "metal" or (policy.launch == "wheel" and policy.acceleration not in ("auto", "cpu")):
            sentence = (
                f"acceleration: {policy.acceleration} with launch: {policy.launch} is not in this version of sbctl"
            )
            remedy = "auto and cpu run on the CPU; launch: binary has cuda (built on the host) and vulkan"
            not_available(self.report, view, (*engine_path, "acceleration"), sentence, remedy=remedy)
            return None
        if deployment.engine_image is not None:
            sentence = "engine_image goes with launch: container, which is not in this version of sbctl"
            not_available(self.report, view, (*path, "engine_image"), sentence)
            return None
        version = deployment.engine_version or policy.version
        if policy.launch == "wheel":
            if deployment.engine_version is not None and deployment.engine_version not in wheel_versions():
                notes = (f"pinned versions: {', '.join(wheel_versions())}",)
                message = f"no wheel of version {version} is pinned"
                self.report.add("config.not_pinned", message, view.value_span((*path, "engine_version")), notes=notes)
            version = version or LLAMA_CPP_WHEEL_DEFAULT
        return policy.model_copy(update={"version": version, "sha256": deployment.engine_sha256 or policy.sha256})


def _alternatives(
    deployment: DeploymentModel, preferred: Resolution, catalog: Catalog
) -> tuple[CompiledAlternative, ...]:
    """The other variants that the engine serves, in the order of the catalog."""
    found = []
    for variant in preferred.entry.model.variants if deployment.heterogeneous_variants else ():
        try:
            other = resolve(catalog, deployment.model, variant.id, engine=deployment.engine, device=DeviceProfile())
        except InputError:
            continue
        if variant.id != preferred.variant.id and other.engine == preferred.engine:
            most = other.facts.context_length
            context = min(deployment.max_context or most, most)
            found.append(CompiledAlternative(other.facts, context, other.variant.shape))
    return tuple(found)

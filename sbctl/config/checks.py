"""Rules between fields of `proxy` and `origins` (SBproxy, model host and AI providers). Each finding stands where the reader must act."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from typing import Final

from sbctl.base.suggest import did_you_mean
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.external import check_externals, is_chain
from sbctl.config.layers import View
from sbctl.config.models import DeploymentModel, EngineModel, ProxyModel
from sbctl.config.origins import AiActionModel, OriginModel, ProviderModel
from sbctl.engines.flags import check_extra_args
from sbctl.engines.pins import wheel_versions

__all__ = [
    "check_api_key_models",
    "check_canary",
    "check_origins",
    "check_proxy_rules",
    "managed_providers",
    "public_names",
]

_VLLM_ONLY: Final = ("chunked_prefill", "tool_call_parser", "swap_space_gib", "cpu_offload_gib")
_RULE: Final = "config.conflict"


def check_proxy_rules(report: Report, proxy: ProxyModel, view: View) -> None:
    """Engines, deployments and ports of one host's `proxy`."""
    for kind, engine in proxy.model_host.engines.items():
        _check_engine(report, kind, engine, view, ("model_host", "engines", kind))
    for name, deployment in proxy.model_host.deployments.items():
        path: Path = ("model_host", "deployments", name)
        _check_deployment(report, deployment, view, path)
        if deployment.spread_by and proxy.cluster is None:
            message = "spread_by has no effect without proxy.cluster: every matching host runs the deployment"
            report.note("config.no_effect", message, view.key_span((*path, "spread_by")))
    if proxy.admin.enabled and proxy.admin.port == proxy.http_bind_port:
        message = f"admin.port and http_bind_port are both {proxy.http_bind_port}"
        report.add("config.duplicate_port", message, view.value_span(("admin", "port")))


def _check_engine(report: Report, kind: str, engine: EngineModel, view: View, path: Path) -> None:
    def refuse(name: str, message: str, *notes: str) -> None:
        report.add(_RULE, message, view.value_span((*path, name)), notes=notes)

    launch = engine.launch
    if launch == "container" and engine.image is None:
        refuse("launch", "launch: container needs image, by digest")
    if launch != "container" and engine.image is not None:
        refuse("image", f"image goes with launch: container, not with {launch}")
    if launch != "container" and engine.shm_size_gib is not None:
        refuse("shm_size_gib", f"shm_size_gib goes with launch: container, not with {launch}")
    if launch == "uv" and kind not in ("vllm", "sglang"):
        refuse("launch", f"launch: uv is for vllm and sglang, not for {kind}")
    if launch == "wheel" and kind != "llama_cpp":
        refuse("launch", f"launch: wheel is for llama_cpp, not for {kind}")
    if launch != "binary" and engine.path is not None:
        refuse("path", f"path names a program on the host, so it goes with launch: binary, not with {launch}")
    if launch == "wheel" and engine.sha256 is not None:
        refuse("sha256", "launch: wheel has its digest pinned in sbctl")
    if launch == "wheel" and kind == "llama_cpp":
        _check_wheel_version(report, engine.version, view, (*path, "version"))


def _check_wheel_version(report: Report, version: str | None, view: View, path: Path) -> None:
    if version is not None and version not in wheel_versions():
        notes = (f"pinned versions: {', '.join(wheel_versions())}",)
        report.add("config.not_pinned", f"no wheel of version {version} is pinned", view.value_span(path), notes=notes)


def _check_deployment(report: Report, deployment: DeploymentModel, view: View, path: Path) -> None:
    def refuse(name: str, message: str, *notes: str) -> None:
        report.add(_RULE, message, view.value_span((*path, name)), notes=notes)

    engine = deployment.engine
    if deployment.replicas > 1 and deployment.variant is None and not deployment.heterogeneous_variants:
        refuse(
            "replicas",
            "more than one replica needs variant, so that all run the same",
            "or heterogeneous_variants: true",
        )
    if len(set(deployment.spread_by)) != len(deployment.spread_by):
        refuse("spread_by", "spread_by lists a label twice")
    for name in _VLLM_ONLY:
        if getattr(deployment, name) is not None and engine not in ("auto", "vllm"):
            refuse(name, f"{name} is for vllm only, and the deployment asks for {engine}")
    image = deployment.engine_image
    if image is not None and "@" not in image and (":" not in image.rpartition("/")[2] or image.endswith(":latest")):
        refuse("engine_image", "engine_image needs a tag other than latest, or a digest")
    for sentence in _extra_arg_problems(engine, deployment.extra_args):
        notes = ("say engine: llama_cpp in the deployment",) if engine == "auto" and "may mean vllm" in sentence else ()
        refuse("extra_args", f"extra_args: {sentence}", *notes)


def _extra_arg_problems(engine: str, args: Iterable[str]) -> list[str]:
    listed = list(args)
    if not listed:
        return []
    if engine != "auto":
        return check_extra_args(engine, listed)
    found = [
        f"{sentence} (engine: auto may mean {kind})"
        for kind in ("llama_cpp", "vllm")
        for sentence in check_extra_args(kind, listed)
    ]
    return found[:1] if len(listed) == 1 else found


def managed_providers(origin: OriginModel) -> list[tuple[int, ProviderModel]]:
    """The providers that sbctl serves, with their place in the list."""
    if not isinstance(origin.action, AiActionModel):
        return []
    return [(index, each) for index, each in enumerate(origin.action.providers) if isinstance(each, ProviderModel)]


def public_names(provider: ProviderModel) -> tuple[str, ...]:
    """Model names that clients use; the deployment's id when none is listed."""
    return provider.models or (provider.deployment,)


def check_origins(
    report: Report,
    origins: Mapping[str, OriginModel],
    deployments: Iterable[str],
    view: View,
    *,
    may_precede: bool = False,
) -> None:
    """Hostnames and routes: what they name exists, and no name leads to two places.

    `may_precede`: somebody else adds deployments, so a route may come first.
    """
    known = sorted(deployments)
    routes: dict[tuple[str, str], tuple[str, str]] = {}
    lowered: dict[str, str] = {}
    for hostname, origin in origins.items():
        _check_hostname(report, hostname, lowered, view)
        if (
            isinstance(origin.action, AiActionModel)
            and not origin.action.providers
            and not _lists_providers(view, hostname)
        ):
            report.add(_RULE, f'origin "{hostname}" has no providers', view.key_span((hostname, "action")))
        check_externals(report, hostname, origin, view)
        answered: dict[str, str] = {}
        in_chain = is_chain(view.value[hostname]["action"])
        for index, provider in managed_providers(origin):
            path: Path = (hostname, "action", "providers", index)
            _check_provider(report, provider, None if may_precede else known, view, path)
            for model in public_names(provider):
                where = (*path, "models" if provider.models else "deployment")
                first = routes.setdefault((provider.name, model), (provider.deployment, hostname))
                if first[0] != provider.deployment:
                    message = (
                        f'provider "{provider.name}" leads model "{model}" to deployment "{provider.deployment}" here'
                        f' and to "{first[0]}" at origin "{first[1]}"'
                    )
                    report.add(
                        _RULE, message, view.value_span(where), notes=("give one of the providers another name",)
                    )
                elif answered.setdefault(model, provider.deployment) != provider.deployment and not in_chain:
                    sentence = f'two providers of this origin answer "{model}", and nothing says which of them when'
                    note = "with routing: fallback_chain the later one answers when the earlier one cannot"
                    report.add(_RULE, sentence, view.value_span(where), notes=(note,))


def _lists_providers(view: View, hostname: str) -> bool:
    """Whether the file lists providers that could not be read, which is reported already."""
    return bool(view.value[hostname]["action"].get("providers"))


def _check_hostname(report: Report, hostname: str, lowered: dict[str, str], view: View) -> None:
    span = view.key_span((hostname,))
    first = lowered.setdefault(hostname.lower(), hostname)
    if first != hostname:
        report.add(_RULE, f'"{hostname}" and "{first}" are the same hostname', span)
    if ":" in hostname:
        try:
            ipaddress.IPv6Address(hostname)
        except ValueError:
            report.add("config.bad_key", f'the hostname "{hostname}" must stand without a port', span)


def _check_provider(report: Report, provider: ProviderModel, known: list[str] | None, view: View, path: Path) -> None:
    for name in ("base_url", "api_key"):
        if getattr(provider, name) is not None:
            message = f"{name} does not go with provider_type: managed_model: the runtime knows where the engine is"
            report.add(_RULE, message, view.key_span((*path, name)))
    if known is not None and provider.deployment not in known:
        close = did_you_mean(provider.deployment, known)
        report.add(
            "config.unknown_deployment",
            f'there is no deployment "{provider.deployment}"',
            view.value_span((*path, "deployment")),
            label=f'did you mean "{close}"?' if close else "",
            notes=(f"deployments: {', '.join(known[:20])}" if known else "proxy.model_host.deployments is empty",),
        )
    names = public_names(provider)
    if len(set(names)) != len(names):
        report.add(_RULE, "models lists a name twice", view.value_span((*path, "models")))
    if provider.default_model is not None and provider.default_model not in names:
        close = did_you_mean(provider.default_model, names)
        report.add(
            "config.unknown_model",
            f'default_model "{provider.default_model}" is not among the models of the provider',
            view.value_span((*path, "default_model")),
            label=f'did you mean "{close}"?' if close else "",
            notes=(f"models: {', '.join(names[:20])}",),
        )


def check_canary(report: Report, canary: str, hosts: Iterable[str], view: View) -> None:
    """A canary that is no host would be waited for in vain, or not at all."""
    names = sorted(hosts)
    if canary not in names:
        close = did_you_mean(canary, names)
        report.add(
            "config.unknown_host",
            f'the canary "{canary}" is no host of this fleet',
            view.value_span(("update", "canary")),
            label=f'did you mean "{close}"?' if close else "",
        )


def check_api_key_models(report: Report, key: str, models: Iterable[str], known: Iterable[str], view: View) -> None:
    """A key that allows a model which no origin exposes would shut its owner out."""
    names = sorted(set(known))
    for index, model in enumerate(models):
        if model not in names:
            close = did_you_mean(model, names)
            report.add(
                "config.unknown_model",
                f'API key "{key}" allows the model "{model}", which no origin exposes',
                view.value_span(("api_keys", key, "models", index)),
                label=f'did you mean "{close}"?' if close else "",
            )

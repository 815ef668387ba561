"""From `egress` of a host, and the secrets beside it, to what a fetcher needs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from yarl import URL

from sbctl.artifacts.egress import OPERATORS_OWN, Egress, EgressSecret
from sbctl.artifacts.fetch_policy import FetchSettings, basic_authorization, parse_url
from sbctl.base.errors import ArtifactError, InputError
from sbctl.base.secret import Secret

__all__ = ["fetch_settings"]


def fetch_settings(
    egress: Egress, environ: Mapping[str, str], secret: Callable[[EgressSecret], Secret]
) -> FetchSettings:
    """The settings of one host. `secret` reads one that `egress.secrets` names.

    Raises InputError `egress.invalid`, `artifact.setting_invalid`, and what `secret` raises; no message repeats a value.
    """
    settings = FetchSettings.from_environ(environ if environ.get(OPERATORS_OWN) == "operator" else {})
    held = {name: secret(name) for name in egress.secrets}
    if egress.package_index is not None:
        settings = replace(settings, index=_address("package_index", egress.package_index), index_credentials=None)
    if egress.hf_endpoint is not None:
        settings = replace(settings, hf_endpoint=_address("hf_endpoint", egress.hf_endpoint), hf_token=None)
    if "index_credentials" in held:
        settings = replace(settings, index_credentials=basic_authorization(*_pair("index_credentials", held)))
    if "hf_token" in held:
        settings = replace(settings, hf_token=held["hf_token"])
    if egress.proxy is not None:
        proxy = _address("proxy", egress.proxy)
        if "proxy_credentials" in held:
            user, password = _pair("proxy_credentials", held)
            proxy = proxy.with_user(user).with_password(password)
        settings = replace(settings, proxies={"https": proxy, "http": proxy}, no_proxy=",".join(egress.no_proxy))
    return replace(
        settings,
        hosts=settings.hosts | {host.lower() for host in egress.allowed_hosts},
        extra_authority=egress.ca_file or settings.extra_authority,
    )


def _address(name: str, value: str) -> URL:
    try:
        url = parse_url(value)
    except ArtifactError as error:
        raise InputError(
            "egress.invalid",
            f"{name} is not an http or https address",
            place=f"egress.{name}",
            next_step="write it as http://HOST:PORT or https://HOST[:PORT]",
        ) from error
    if url.user is not None or url.password is not None:
        raise InputError(
            "egress.invalid",
            f"{name} carries a user or password",
            place=f"egress.{name}",
            next_step="write it as a reference to a secret, in proxy_credentials or index_credentials",
        )
    return url


def _pair(name: EgressSecret, held: Mapping[EgressSecret, Secret]) -> tuple[str, str]:
    try:
        user, colon, password = held[name].reveal().decode().partition(":")
    except UnicodeDecodeError:
        user = colon = password = ""
    if not user or not colon:
        raise InputError(
            "egress.invalid",
            f"{name} is not USER:PASSWORD",
            place=f"egress.{name}",
            next_step="put both into the secret, with a colon between them",
        )
    return user, password

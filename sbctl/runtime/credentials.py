"""What a running daemon holds to show who it is and to be let in elsewhere. Each is exchanged by the control socket while it serves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from aiohttp import web

from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.runtime.egress import provider_key
from sbctl.runtime.event_log import EventSink
from sbctl.runtime.external.keys import ProviderKeys, with_provider_keys
from sbctl.runtime.identity import HeldIdentity, with_identity
from sbctl.runtime.public_tls_service import HeldCertificate, with_certificate
from sbctl.runtime.settings import Settings

__all__ = ["Credentials"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """None: the configuration asks for none. One that cannot be used is held all the same, and says why in its status."""

    identity: HeldIdentity | None
    certificate: HeldCertificate | None
    provider_keys: ProviderKeys

    @classmethod
    def taken_up(cls, settings: Settings, environ: Mapping[str, str], events: EventSink) -> Self:
        config, paths = settings.config, settings.paths
        identity = HeldIdentity(paths, SYSTEM_CLOCK) if config.identity else None
        if identity is not None:
            identity.start()
        certificate = HeldCertificate(paths, config, environ, SYSTEM_CLOCK, events) if config.has_tls else None
        if certificate is not None:
            certificate.start()
        keys = ProviderKeys(config.provider_keys, lambda name: provider_key(paths, environ, name))
        return cls(identity, certificate, keys)

    def with_routes(self, app: web.Application) -> web.Application:
        """The control socket's application, with an exchange for each."""
        return with_provider_keys(
            with_certificate(with_identity(app, self.identity), self.certificate), self.provider_keys
        )

"""Which providers there are: an explicit tuple, nothing is scanned for. Only the command line imports this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from providers.artifact import ArtifactProvider
from providers.bundle import BundleProvider
from providers.certificate import CertificateProvider
from providers.deployment import DeploymentProvider
from providers.engine import EngineProvider
from providers.enrollment import EnrollmentProvider
from providers.host import HostProvider
from providers.origin import OriginProvider
from providers.runtime import RuntimeProvider
from providers.store import StoreProvider
from sbctl.provider import Provider

__all__ = ["PROVIDERS"]

_ALL: Final[tuple[Provider, ...]] = (
    HostProvider(),
    CertificateProvider(),
    RuntimeProvider(),
    StoreProvider(),
    EnrollmentProvider(),
    EngineProvider(),
    ArtifactProvider(),
    BundleProvider(),
    DeploymentProvider(),
    OriginProvider(),
)

PROVIDERS: Final[Mapping[str, Provider]] = {provider.kind: provider for provider in _ALL}
"""By kind, in the order in which a host's resources are created."""

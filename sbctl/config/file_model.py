"""sb.yml as a whole: every field that sbctl reads. The published schema, the reference and `explain` follow it."""

from __future__ import annotations

from pydantic import Field

from sbctl.config.file_shape import FileShape
from sbctl.config.fleet import FleetModel
from sbctl.config.models import ProxyModel
from sbctl.config.origins import OriginModel, OriginName

__all__ = ["SbFile"]


class SbFile(FileShape):
    """Fields stand in the order of `FileShape`."""

    fleet: FleetModel = Field(
        default=FleetModel.model_construct(), description="Hosts, trust and callers. Unset: this machine."
    )
    proxy: ProxyModel = Field(default=ProxyModel.model_construct(), description="Listeners, admin and model host.")
    origins: dict[OriginName, OriginModel] = Field(
        default_factory=dict, max_length=1024, description="Hostnames and what they expose."
    )

"""What kinds have in common: how configuration becomes `Desired` (one address, one plain spec, one fingerprint), and how old records are read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from sbctl.base.digests import fingerprint
from sbctl.base.errors import StateError
from sbctl.base.ids import Address
from sbctl.base.patterns import any_of
from sbctl.base.truths import Desired
from sbctl.config.compiled import CompiledConfig, CompiledHost

__all__ = ["OneForm", "desired_resource"]


def desired_resource(
    config: CompiledConfig,
    host: CompiledHost,
    address: Address,
    spec: Mapping[str, Any],
    *,
    spec_fingerprint: str | None = None,
    after: frozenset[Address] = frozenset(),
    member_of: Address | None = None,
    keep: bool = False,
) -> Desired:
    """`spec_fingerprint` spares the hashing when the caller already has it; it must be `fingerprint(spec)`."""
    return Desired(
        address=address,
        spec=spec,
        fingerprint=spec_fingerprint or fingerprint(spec),
        host=host.name,
        connection=host.connection,
        after=after,
        member_of=member_of,
        prevent_destroy=any_of(config.prevent_destroy)(address),
        keep=keep,
    )


class OneForm:
    """`upgrade` of a kind whose record has had one form."""

    kind: ClassVar[str]
    record_version: ClassVar[int] = 1

    def upgrade(self, record: Mapping[str, Any], version: int) -> Mapping[str, Any]:
        """Raises StateError `state.too_new`."""
        if version > self.record_version:
            raise StateError(
                "state.too_new",
                f"the state keeps {self.kind} resources in form {version}; this sbctl knows {self.record_version}",
                next_step="use the sbctl that wrote the state, or a newer one",
            )
        return record

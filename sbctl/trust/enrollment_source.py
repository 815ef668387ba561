"""Where a host that enrolled renews: `enrollment-server.json` beside its identity. Public, and only believed as far as mutual TLS goes."""

from __future__ import annotations

import json
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.digests import canonical_json
from sbctl.base.errors import InputError

__all__ = ["SOURCE_FILE", "EnrollmentSource"]

SOURCE_FILE: Final = "enrollment-server.json"
_MAX_BYTES: Final = 4096


class EnrollmentSource(BaseModel):
    """Address and the name that the server's certificate has."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, hide_input_in_errors=True, defer_build=True)

    schema_version: Literal[1] = 1
    host: str = Field(min_length=1, max_length=253)
    port: int = Field(ge=1, le=65535)
    server_name: str = Field(min_length=1, max_length=253)

    def to_json(self) -> bytes:
        return canonical_json(self.model_dump(mode="json"))

    @classmethod
    def parse(cls, data: bytes) -> EnrollmentSource:
        """Raises InputError `identity.source_invalid`."""
        try:
            document = strict_json.loads(data, max_bytes=_MAX_BYTES, max_depth=2)
            return cls.model_validate_json(json.dumps(document))
        except (InputError, ValidationError):
            raise InputError(
                "identity.source_invalid",
                f"{SOURCE_FILE} does not say where this host renews",
                next_step="enroll again with a token made for this host",
            ) from None

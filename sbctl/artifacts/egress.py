"""How a host reaches the outside: `egress` of sb.yml as the host keeps it. Names and addresses only; secrets lie beside it, by their names.

What is written here is used; nothing of the environment comes in its place. The environment counts on the operator's own machine alone,
where it is the operator's, and there only for what is not written.
"""

from __future__ import annotations

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["EGRESS_SECRETS", "OPERATORS_OWN", "PROVIDER_KEY_PATTERN", "Egress", "EgressSecret"]

EgressSecret = Literal["hf_token", "index_credentials", "proxy_credentials"]
EGRESS_SECRETS: Final[tuple[EgressSecret, ...]] = ("hf_token", "index_credentials", "proxy_credentials")

PROVIDER_KEY_PATTERN: Final = "^provider_key_[0-9a-f]{16}$"
"""Names of the secrets of external providers on a host: files like those of `EGRESS_SECRETS`, named by where they come from."""

OPERATORS_OWN: Final = "SBCTL_FETCH_ENVIRONMENT"
"""Set to `operator` in an environment that an operator's process made for this very machine."""


class Egress(BaseModel):
    """`secrets` are those that the host was given; each is a file of its name in `<etc>/secrets`."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)

    proxy: str | None = Field(default=None, max_length=2048)
    no_proxy: tuple[str, ...] = Field(default=(), max_length=256)
    ca_file: str | None = Field(default=None, max_length=4096)
    allowed_hosts: tuple[str, ...] = Field(default=(), max_length=256)
    hf_endpoint: str | None = Field(default=None, max_length=2048)
    package_index: str | None = Field(default=None, max_length=2048)
    secrets: tuple[EgressSecret, ...] = ()

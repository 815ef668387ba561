"""Keys of external providers as the runtime holds them: from the host's files, until a newer one comes by the control socket.

Under systemd the files that a service sees are those of its start, so an exchanged key is handed over (`POST /control/v1/provider-keys`)
and held in memory; the next start finds it in the files.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Final

from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sbctl.base import strict_json
from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.base.secret import Secret
from sbctl.runtime.listeners import read_body
from sbctl.runtime.log import get_log

__all__ = ["ProviderKeys", "with_provider_keys"]

_BODY_MAX_BYTES: Final = 1 << 20


class _Handed(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: dict[str, Annotated[str, Field(min_length=1, max_length=65_536)]] = Field(min_length=1, max_length=64)


class ProviderKeys:
    """`names`: those of the configuration. `read` reads one from where the host keeps it; it raises InputError `egress.secret_missing`."""

    def __init__(self, names: Collection[str], read: Callable[[str], Secret]) -> None:
        self._names = frozenset(names)
        self._read = read
        self._handed: dict[str, Secret] = {}
        self._listeners: list[Callable[[str], None]] = []
        self._log = get_log("external")

    def on_exchange(self, listener: Callable[[str], None]) -> None:
        """`listener` is told the name of each key that is exchanged."""
        self._listeners.append(listener)

    def secret(self, name: str) -> Secret:
        handed = self._handed.get(name)
        return self._read(name) if handed is None else handed

    def take(self, keys: Mapping[str, Secret]) -> None:
        """Use these from the next request on; all or none. Raises RefusedError `runtime.unknown_key`."""
        unknown = sorted(set(keys).difference(self._names))
        if unknown:
            raise RefusedError("runtime.unknown_key", f"this runtime's configuration names no key {', '.join(unknown)}")
        for name, key in keys.items():
            self._handed[name] = Secret(key.reveal().strip())
            for listener in self._listeners:
                listener(name)
        self._log.info("keys of external providers exchanged", keys=sorted(keys))


def with_provider_keys(app: web.Application, held: ProviderKeys) -> web.Application:
    """The control socket's application, with `POST /control/v1/provider-keys` {keys: {name: text}} → {}, or the reason at 409."""

    async def take(request: web.Request) -> web.Response:
        try:
            document = strict_json.loads(await read_body(request, max_bytes=_BODY_MAX_BYTES), max_bytes=_BODY_MAX_BYTES)
            try:
                asked = _Handed.model_validate(document)
            except ValidationError as error:
                # Never the error's own text: it may quote a key.
                raise InputError("invalid_body", f"keys: {error.error_count()} values that are none") from None
            held.take({name: Secret(text.encode()) for name, text in asked.keys.items()})
        except SbctlError as error:
            return web.json_response({"error": error.to_wire()}, status=409)
        return web.json_response({})

    app.router.add_post("/control/v1/provider-keys", take)
    return app

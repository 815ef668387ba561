"""`sbctl-runtime node --stdio`: the node interface on standard input and output.

Standard output carries frames and nothing else: its descriptor is taken away from everybody else before anything runs, and what prints
goes to standard error. A thread of its own reads frames, so that a closed channel cancels the call that runs. Every mutating call is
idempotent and compares the host with what is asked before it acts; that, and the snapshot, is how a call is continued whose answer was
lost, so no journal is kept here.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import queue
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from sbctl import __version__
from sbctl.base.clock import SYSTEM_CLOCK
from sbctl.base.defects import where_it_failed
from sbctl.base.errors import HostError, InputError, SbctlError, UsageError
from sbctl.base.secret import Secret
from sbctl.node.frames import read_frame, write_frame
from sbctl.node.messages import PARAMS, PROTOCOL_VERSION, Method
from sbctl.node.paths import node_paths
from sbctl.runtime.nodeops.context import Cancellation, NodeContext

__all__ = ["Dispatcher", "run_stdio"]

_PROGRESS_INTERVAL_S: Final = 0.2
_NOTE_MAX_CHARS: Final = 1024

_HANDLERS: Final[dict[Method, tuple[str, str]]] = {
    Method.SNAPSHOT: ("snapshot", "answer_snapshot"),
    Method.CERTIFICATE_REQUEST: ("certificate_ops", "request_certificate"),
    Method.CERTIFICATE_INSTALL: ("certificate_ops", "install_certificate"),
    Method.CERTIFICATE_REMOVE: ("certificate_ops", "remove_certificate"),
    Method.STORE_INSTALL: ("store_ops", "install_store"),
    Method.STORE_REMOVE: ("store_ops", "remove_store"),
    Method.ENROLLMENT_REQUEST: ("enrollment_ops", "request_delegation"),
    Method.ENROLLMENT_INSTALL: ("enrollment_ops", "install_enrollment"),
    Method.ENROLLMENT_REMOVE: ("enrollment_ops", "remove_enrollment"),
    Method.ENROLLMENT_ASK: ("enrollment_ops", "ask_enrollment"),
    Method.HOST_DRAIN: ("drain_ops", "drain_host"),
    Method.HOST_RESUME: ("drain_ops", "resume_host"),
    Method.HOST_LEAVE: ("drain_ops", "leave_cluster"),
    Method.RUNTIME_ACTIVATE: ("runtime_ops", "activate"),
    Method.RUNTIME_CERTIFICATE: ("public_tls_ops", "install_public_certificate"),
    Method.RUNTIME_KEYS: ("provider_key_ops", "install_provider_keys"),
    Method.RUNTIME_REMOVE: ("runtime_removal", "remove_runtime"),
    Method.ENGINE_INSTALL: ("engine_ops", "install_engine"),
    Method.ENGINE_REMOVE: ("engine_ops", "remove_engine"),
    Method.ARTIFACT_PULL: ("artifact_ops", "pull_artifact"),
    Method.ARTIFACT_IMPORT: ("artifact_ops", "import_artifact"),
    Method.ARTIFACT_REMOVE: ("artifact_ops", "remove_artifact"),
    Method.ARTIFACT_LIST: ("artifact_ops", "list_artifacts"),
    Method.ARTIFACT_VERIFY: ("artifact_ops", "verify_artifact"),
    Method.ARTIFACT_PRUNE: ("artifact_ops", "prune_artifacts"),
    Method.BLOB_SERVE: ("blob_ops", "serve_blobs"),
    Method.BLOB_FETCH: ("blob_ops", "fetch_blob"),
    Method.BUNDLE_APPLY: ("bundle_ops", "apply_bundle"),
    Method.BUNDLE_CLEAR: ("bundle_ops", "clear_bundle"),
    Method.CLUSTER_PUBLISH: ("bundle_ops", "publish_bundle"),
    Method.CLUSTER_STATUS: ("bundle_ops", "cluster_status"),
    Method.CLUSTER_ACT: ("bundle_ops", "act_in_cluster"),
    Method.DEPLOYMENT_ACTION: ("bundle_ops", "act_on_deployment"),
    Method.LOGS_READ: ("reading_ops", "read_logs"),
    Method.EVENTS_READ: ("reading_ops", "read_events"),
    Method.AUDIT_VERIFY: ("reading_ops", "verify_audit"),
    Method.EGRESS_CHECK: ("egress_ops", "check_egress"),
}
"""Module of this package and function, imported when first asked for: a plan needs the snapshot only, from every host.

`host.mark`, `host.unmark` and `runtime.install` are not among them: a host without a runtime answers those by the bootstrap."""


def _handler(method: Method) -> Callable[[NodeContext, Any], dict[str, Any]]:
    module, function = _HANDLERS[method]
    handler: Callable[[NodeContext, Any], dict[str, Any]] = getattr(
        import_module(f"sbctl.runtime.nodeops.{module}"), function
    )
    return handler


class Dispatcher:
    """Answers one request message after another; `write` takes a whole frame."""

    def __init__(self, context: NodeContext, write: Callable[[bytes], object]) -> None:
        self._context = context
        self._write = write
        self._lock = threading.Lock()

    def hello(self) -> None:
        self._send({"hello": {"protocol": PROTOCOL_VERSION, "version": __version__, "pid": os.getpid()}})

    def answer(self, message: Mapping[str, Any]) -> None:
        """Exactly one result or error for one request. Raises OSError when the channel is gone."""
        number = message.get("id")
        try:
            result = self._run(message)
        except SbctlError as error:
            self._send({"id": number, "error": error.to_wire()})
        except OSError as error:
            self._send({"id": number, "error": _os_error(error).to_wire()})
        except Exception as error:  # noqa: BLE001 - the caller learns of every failure
            import traceback

            traceback.print_exc(file=sys.stderr)
            failure = HostError("node.internal", f"the node interface failed unexpectedly: {where_it_failed(error)}")
            self._send({"id": number, "error": failure.to_wire()})
        else:
            self._send({"id": number, "result": result})

    def _run(self, message: Mapping[str, Any]) -> dict[str, Any]:
        method = _method(message.get("method"))
        params = _params(method, message.get("params", {}))
        secrets = _secrets(message.get("secrets", {}))
        report = _Reporter(lambda step: self._send({"id": message.get("id"), "progress": step}))
        return _handler(method)(replace(self._context, report=report, secrets=secrets), params)

    def _send(self, message: Mapping[str, Any]) -> None:
        with self._lock:
            write_frame(self._write, message)


class _Reporter:
    """Progress at most five times a second, and always the last of a stretch of work."""

    def __init__(self, send: Callable[[dict[str, Any]], None]) -> None:
        self._send = send
        self._last_s = float("-inf")
        self._last_note = ""

    def __call__(self, done: int, total: int | None, note: str) -> None:
        now_s = SYSTEM_CLOCK.monotonic_s()
        if note != self._last_note or done == total or now_s - self._last_s >= _PROGRESS_INTERVAL_S:
            self._last_s, self._last_note = now_s, note
            self._send({"done": done, "total": total, "note": note[:_NOTE_MAX_CHARS]})


def _os_error(error: OSError) -> SbctlError:
    from sbctl.base.fs import disk_error

    return disk_error(error, str(error.filename or "this host"))


def _method(name: object) -> Method:
    try:
        method = Method(str(name))
    except ValueError:
        raise InputError("node.unknown_method", f"this host answers no method {str(name)[:64]!r}") from None
    if method not in _HANDLERS:
        raise InputError("node.not_here", f"{method} is done by the bootstrap, not by the node interface")
    return method


def _params(method: Method, raw: object) -> BaseModel | None:
    model = PARAMS.get(method)
    if model is None:
        if raw not in ({}, None):
            raise InputError("node.invalid_params", f"{method} takes no parameters")
        return None
    try:
        return model.model_validate_json(json.dumps(raw))
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise InputError("node.invalid_params", f"{method}: {where}: {first['msg']}") from None


def _secrets(raw: object) -> dict[str, Secret]:
    if not isinstance(raw, Mapping):
        raise InputError("node.invalid_params", "secrets are not an object")
    try:
        return {str(name): Secret(base64.b64decode(str(value), validate=True)) for name, value in raw.items()}
    except (binascii.Error, ValueError):
        raise InputError("node.invalid_params", "a secret is not base64") from None


def _take_stdout() -> tuple[int, int]:
    """Descriptors for frames in and out, which no child inherits; standard input and output lead elsewhere from now on."""
    frames_in, frames_out = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return frames_in, frames_out


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def run_stdio(argv: list[str]) -> int:
    """Serve one channel until it closes. Raises UsageError for anything but `--stdio`."""
    if argv != ["--stdio"]:
        raise UsageError("node.usage", "the node interface is started as: sbctl-runtime node --stdio")
    os.umask(0o022)
    frames_in, frames_out = _take_stdout()
    cancellation = Cancellation()
    environ = dict(os.environ)
    context = NodeContext(node_paths(os.getuid(), environ), environ, os.getuid(), cancellation=cancellation)
    dispatcher = Dispatcher(context, lambda frame: _write_all(frames_out, frame))
    waiting: queue.Queue[dict[str, Any] | SbctlError | None] = queue.Queue(maxsize=16)

    def read() -> None:
        try:
            while (message := read_frame(lambda count: os.read(frames_in, count))) is not None:
                waiting.put(message)
            waiting.put(None)
        except SbctlError as error:
            waiting.put(error)
        except OSError:
            waiting.put(None)
        cancellation.cancel()

    threading.Thread(target=read, daemon=True, name="frames").start()
    try:
        dispatcher.hello()
        while (message := waiting.get()) is not None:
            if isinstance(message, SbctlError):
                raise message
            dispatcher.answer(message)
    except BrokenPipeError:
        return 0
    return 0

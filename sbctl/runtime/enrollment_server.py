"""The enrollment server: an authority's HTTPS port, where a host with a join token gets its identity.

    GET  /admin/cluster/ca       the CA that tokens pin
    POST /admin/cluster/enroll   a token for an identity; needs no operator's credentials, since the token is one
    POST /admin/cluster/renew    the next identity for the present one, shown by mutual TLS
    GET  /health, /healthz, /livez, /readyz

TLS 1.3 with the authority's own identity. What a request costs before its token was checked is bounded: connections, header, body, time,
requests a minute of each source and of all. Tokens are in no log: what is told of one is its id.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeVar

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, generate_latest

from sbctl.base.clock import Clock
from sbctl.base.errors import HTTP_STATUS, RefusedError, SbctlError
from sbctl.base.limits import (
    ENROLL_BODY_MAX_BYTES,
    ENROLL_DEADLINE_S,
    ENROLL_REQUESTS_PER_MINUTE,
    ENROLL_REQUESTS_PER_MINUTE_ALL,
)
from sbctl.runtime.listeners import PROBE_ROUTES, Handler, json_headers, read_body
from sbctl.runtime.log import get_log
from sbctl.runtime.rate_limit import RateLimiter
from sbctl.trust.authority import Authority
from sbctl.trust.certificates import certificate_facts
from sbctl.trust.enrollment import Enrollment
from sbctl.trust.enrollment_messages import (
    CA_PATH,
    ENROLL_PATH,
    RENEW_PATH,
    EnrollmentAnswer,
    EnrollmentRequest,
    parse_renewal,
    parse_request,
)

__all__ = ["EnrollmentMetrics", "EnrollmentServer", "server_tls"]

_BODY_S: Final = 10.0
_WORKERS: Final = 2
_LOOK_EVERY_S: Final = 60.0
_ALL_SOURCES: Final = ""
_Result = TypeVar("_Result")


class EnrollmentMetrics:
    """`mesh_enrollment_total{outcome, reason}`; both values come from tables of ours, so their number is bounded."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._total = Counter(
            "mesh_enrollment", "Enrollments by outcome.", ["outcome", "reason"], registry=self._registry
        )

    def count(self, outcome: str, reason: str) -> None:
        self._total.labels(outcome, reason).inc()

    def app(self) -> web.Application:
        """`GET /metrics`, for a port that only this machine reaches."""

        async def render(_request: web.Request) -> web.Response:
            return web.Response(body=generate_latest(self._registry), content_type="text/plain", charset="utf-8")

        app = web.Application()
        app.router.add_get("/metrics", render)
        return app


class EnrollmentServer:
    """Routes and limits around one `Enrollment`."""

    def __init__(self, enrollment: Enrollment, clock: Clock, metrics: EnrollmentMetrics) -> None:
        self._enrollment = enrollment
        self._clock = clock
        self._metrics = metrics
        self._log = get_log("enrollment")
        self._limiter = RateLimiter()
        self._workers = ThreadPoolExecutor(_WORKERS, thread_name_prefix="enrollment")

    def app(self) -> web.Application:
        app = web.Application(middlewares=[self._answer()], client_max_size=ENROLL_BODY_MAX_BYTES)
        app.router.add_post(ENROLL_PATH, self._enroll)
        app.router.add_post(RENEW_PATH, self._renew)
        app.router.add_get(CA_PATH, self._ca)
        for path in PROBE_ROUTES:
            app.router.add_get(path, _health)
        return app

    def close(self) -> None:
        """Let what is being issued end: a token that is burnt has its certificate then."""
        self._workers.shutdown(wait=True)

    async def keep_fresh(self, tls: ssl.SSLContext) -> None:
        """Renew the authority's own certificate past its half-life, and show what stands in the directory: a CA rollover changes it, too."""
        authority = self._enrollment.authority
        shown = authority.own_fingerprint()
        while True:
            await asyncio.sleep(_LOOK_EVERY_S)
            try:
                await self._work(lambda: authority.renew_own(now=self._clock.now()))
                found = authority.own_fingerprint()
                if found != shown:
                    load_own(tls, authority)
                    shown = found
                    self._log.info("the authority's own certificate changed", fingerprint=found)
            except SbctlError as error:
                self._log.error("the authority's own certificate is not usable", code=error.code, reason=error.message)

    async def _ca(self, _request: web.Request) -> web.Response:
        text = await self._work(self._enrollment.pinned_ca)
        return web.Response(text=text, content_type="application/x-pem-file", headers=json_headers())

    async def _enroll(self, request: web.Request) -> web.Response:
        source = request.remote or ""
        asked: EnrollmentRequest | None = None
        try:
            self._take_turn(source)
            if request.content_type != "application/json":
                raise RefusedError("unsupported_media_type", "an enrollment is application/json")
            body = await read_body(request, max_bytes=ENROLL_BODY_MAX_BYTES, deadline_s=_BODY_S)
            asked = parse_request(body)
            answer = await self._issue(asked, source)
        except SbctlError as error:
            self._tell(error, asked.grant.node_id if asked is not None else None, source)
            raise
        self._metrics.count("issued", "ok")
        self._log.info("a host enrolled", node=asked.grant.node_id, source=source)
        return web.Response(body=answer.to_json(), content_type="application/json", headers=json_headers())

    async def _renew(self, request: web.Request) -> web.Response:
        source, node = request.remote or "", None
        try:
            self._take_turn(source)
            shown = _shown_certificate(request)
            node = certificate_facts(shown).subject
            if request.content_type != "application/json":
                raise RefusedError("unsupported_media_type", "a renewal is application/json")
            body = await read_body(request, max_bytes=ENROLL_BODY_MAX_BYTES, deadline_s=_BODY_S)
            wanted, now = parse_renewal(body), self._clock.now()
            answer = await self._work(lambda: self._enrollment.renew(shown, wanted, source=source, now=now))
        except SbctlError as error:
            self._tell(error, node, source)
            raise
        self._metrics.count("renewed", "ok")
        self._log.info("a host renewed its identity", node=node, source=source)
        return web.Response(body=answer.to_json(), content_type="application/json", headers=json_headers())

    async def _issue(self, asked: EnrollmentRequest, source: str) -> EnrollmentAnswer:
        now = self._clock.now()
        return await self._work(lambda: self._enrollment.enroll(asked, source=source, now=now))

    async def _work(self, call: Callable[[], _Result]) -> _Result:
        """In a thread, and to its end whatever becomes of the connection."""
        running = asyncio.get_running_loop().run_in_executor(self._workers, call)
        try:
            async with asyncio.timeout(ENROLL_DEADLINE_S / 2):
                return await asyncio.shield(running)
        except TimeoutError:
            raise SbctlError("authority_unavailable", "the authority is busy", retryable=True) from None

    def _take_turn(self, source: str) -> None:
        now_s = asyncio.get_running_loop().time()
        limits = ((_neighbourhood(source), ENROLL_REQUESTS_PER_MINUTE), (_ALL_SOURCES, ENROLL_REQUESTS_PER_MINUTE_ALL))
        for name, per_minute in limits:
            try:
                self._limiter.take(name, per_minute=per_minute, now_s=now_s)
            except RefusedError as error:
                raise RefusedError("rate_limited", "too many enrollments", detail=error.detail) from None

    def _tell(self, error: SbctlError, node: str | None, source: str) -> None:
        """One line and one count; `reason` is what the caller is not told."""
        reason = str(error.detail.get("reason") or error.code)
        outcome = "refused" if HTTP_STATUS.status(error.code) < 500 else "failed"
        self._metrics.count(outcome, reason if HTTP_STATUS.status(error.code) < 500 else "authority")
        write = self._log.warning if outcome == "refused" else self._log.error
        write("an enrollment was not carried out", outcome=outcome, reason=reason, node=node, source=source,
              token_id=error.detail.get("token_id"), said=error.message, place=error.place)  # fmt: skip

    def _answer(self) -> Any:
        @web.middleware
        async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
            try:
                return await handler(request)
            except SbctlError as error:
                status = HTTP_STATUS.status(error.code)
                code = error.code if status != 500 else "authority_unavailable"
                said = error.message if status < 500 else "the authority cannot issue an identity now"
                after = error.detail.get("retry_after_s")
                headers = {} if after is None else {"Retry-After": str(max(1, round(float(after))))}
                return _problem(503 if status == 500 else status, code, said, headers)
            except web.HTTPException as error:
                code = {404: "not_found", 405: "method_not_allowed"}.get(error.status, "invalid_request")
                return _problem(error.status, code, error.reason, {})

        return answer_errors


def server_tls(authority: Authority) -> ssl.SSLContext:
    """TLS 1.3 with the authority's own identity; a caller may show one of the cluster, which OpenSSL verifies. Raises RefusedError `enroll.own_role`, `authority.no_key`, `authority.permissions`."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_OPTIONAL
    load_own(context, authority)
    return context


def load_own(context: ssl.SSLContext, authority: Authority) -> None:
    """Show the certificate that is in the directory now to whoever connects from here on."""
    certificate, key = authority.own_files()
    try:
        context.load_cert_chain(certificate, key)
        context.load_verify_locations(cadata=authority.trusted_ca())
    except (OSError, ssl.SSLError) as error:
        raise SbctlError(
            "enroll.own_identity",
            f"the authority's own certificate cannot be used: {error.strerror or 'it does not belong to its key'}",
            place=str(certificate),
            next_step="restore node.pem and node-key.pem together from a backup",
        ) from None


def _shown_certificate(request: web.Request) -> str:
    """The certificate that the caller proved to hold, PEM. Raises RefusedError `renewal_denied`."""
    connection = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
    shown = connection.getpeercert(binary_form=True) if connection is not None else None
    if shown is None:
        said = "a renewal shows the present identity by mutual TLS, and none was shown"
        raise RefusedError("renewal_denied", said, detail={"reason": "no_certificate"})
    return ssl.DER_cert_to_PEM_cert(shown)


async def _health(_request: web.Request) -> web.Response:
    return web.json_response({"status": "ok"}, headers=json_headers())


def _problem(status: int, code: str, said: str, headers: dict[str, str]) -> web.Response:
    return web.json_response({"code": code, "error": said}, status=status, headers=json_headers(headers))


def _neighbourhood(source: str) -> str:
    """Whom a source's requests are counted for: itself, or for IPv6 the /64 that one machine has to itself."""
    try:
        address = ipaddress.ip_address(source.partition("%")[0])
    except ValueError:
        return "unknown"
    if address.version == 6:
        mapped = address.ipv4_mapped
        return str(mapped or ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)

"""TLS on API and admin API by a certificate of the user's own: which files, and whether they can be served (SBproxy, proxy).

`tls_cert_file` and `tls_key_file` (`admin.tls.cert`, `admin.tls.key` for an admin API alone) are files of the operator's machine, read now, or both `node-file:` paths that somebody else (certbot)
keeps on the host. The key may also be a reference: `secret:`, `env:`, `exec:`. What can be judged here is judged here, before any host is
touched; of a key nothing is kept.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from sbctl.base.clock import Clock
from sbctl.base.errors import InputError
from sbctl.base.fs import read_bounded
from sbctl.base.suggest import did_you_mean
from sbctl.config.compiled import CompiledTls, SecretRef
from sbctl.config.diagnose import Report
from sbctl.config.document import Path
from sbctl.config.layers import View
from sbctl.config.models import ProxyModel
from sbctl.config.origins import OriginModel
from sbctl.config.planes import accepts
from sbctl.config.secrets import REFERENCE_PREFIXES, SecretSources
from sbctl.trust.public_certificate import (
    PUBLIC_CHAIN_MAX_BYTES,
    PublicCertificate,
    check_pair,
    read_public_certificate,
)

__all__ = ["TlsReader", "check_force_ssl"]

_ON_NODE: Final = "node-file:"
_CONFLICT: Final = "config.conflict"
_PORT, _CERT, _KEY = "https_bind_port", "tls_cert_file", "tls_key_file"
_FORCE_SSL: Final = "origins.*.force_ssl"


@dataclass(frozen=True, slots=True)
class _Files:
    """What a host shows, and where sb.yml names it."""

    certificate: str
    key: str
    certificate_at: Path = (_CERT,)
    key_at: Path = (_KEY,)

    @property
    def names(self) -> tuple[str, str]:
        return ".".join(map(str, self.certificate_at)), ".".join(map(str, self.key_at))


def check_force_ssl(
    report: Report, origins: Mapping[str, OriginModel], view: View, *, has_https: bool, accepted: tuple[str, ...]
) -> None:
    """`force_ssl` where nothing answers https would close the origin; serving it in the clear would break a promise."""
    if has_https or accepts(accepted, _FORCE_SSL):
        return
    for hostname, origin in origins.items():
        if origin.force_ssl:
            report.add(
                "config.unenforced",
                f"origins.{hostname}.force_ssl needs https, and proxy.{_PORT} is not set",
                view.key_span((hostname, "force_ssl")),
                notes=(
                    f"set proxy.{_PORT}, {_CERT} and {_KEY}",
                    f'where a proxy in front of the hosts ends TLS: fleet.accept_unenforced: ["{_FORCE_SSL}"]',
                ),
            )


@dataclass(frozen=True)
class TlsReader:
    """Reads what `proxy` names, for one file."""

    report: Report
    directory: FilePath
    """Of sb.yml: relative paths begin there."""
    secrets: Mapping[str, SecretRef]
    sources: SecretSources
    clock: Clock

    def read(self, proxy: ProxyModel, view: View, origins: Mapping[str, OriginModel]) -> CompiledTls | None:
        """None without TLS, and with findings in the report. API and admin API of a host show one certificate."""
        of_api, of_admin = self._of_api(proxy, view), _of_admin(proxy)
        files = of_api or of_admin
        if files is None:
            return None
        if of_api is not None and of_admin is not None and not _are_same(of_api, of_admin):
            message = "the admin API shows the certificate of the API, and admin.tls names other files"
            notes = (f"name the same files as {_CERT} and {_KEY} do",)
            self.report.add(_CONFLICT, message, view.key_span(("admin", "tls")), notes=notes)
            return None
        key = self._key(files, view)
        if key is None:
            return None
        certificate = files.certificate.removeprefix("file:")
        on_node = certificate.startswith(_ON_NODE)
        if on_node != key.reference.startswith(_ON_NODE):
            message = "certificate and key are on the host both (node-file:), or on the operator's machine both"
            self.report.add(_CONFLICT, message, view.value_span(files.key_at))
            return None
        if on_node:
            return self._on_node(files, key.reference.removeprefix(_ON_NODE), view)
        read = self._judged(certificate, key, files, view)
        if read is None:
            return None
        if of_api is not None:
            self._check_names(read, origins, view)
        return CompiledTls(f"file:{certificate}", key.reference, read)

    def _of_api(self, proxy: ProxyModel, view: View) -> _Files | None:
        given = [name for name in (_PORT, _CERT, _KEY) if getattr(proxy, name) is not None]
        if 0 < len(given) < 3:
            missing = [name for name in (_PORT, _CERT, _KEY) if name not in given]
            acme = isinstance(view.value, dict) and view.value.get("acme") is not None
            notes = (
                ("ACME is not spoken here: let certbot keep the files, and name them with node-file:",) if acme else ()
            )
            verb = "goes" if len(given) == 1 else "go"
            message = f"{' and '.join(given)} {verb} with {' and '.join(missing)}"
            self.report.add(_CONFLICT, message, view.key_span((given[0],)), notes=notes)
        for name, port in (("http_bind_port", proxy.http_bind_port), ("admin.port", proxy.admin.port)):
            used = name != "admin.port" or proxy.admin.enabled
            if used and port == proxy.https_bind_port:
                message = f"{_PORT} and {name} are both {port}"
                self.report.add("config.duplicate_port", message, view.value_span((_PORT,)))
        if len(given) < 3 or proxy.tls_cert_file is None or proxy.tls_key_file is None:
            return None
        return _Files(proxy.tls_cert_file, proxy.tls_key_file)

    def _key(self, files: _Files, view: View) -> SecretRef | None:
        written, path = files.key, files.key_at
        if "-----BEGIN" in written:
            message = f"{files.names[1]} names where the private key is, and never is the key itself"
            self.report.add(
                "config.bad_value", message, view.key_span(path), notes=("use a path, secret:, env: or exec:",)
            )
            return None
        if not written.startswith("secret:"):
            reference = written if written.startswith(REFERENCE_PREFIXES) else f"file:{written}"
            return SecretRef(_KEY, reference)
        name = written.removeprefix("secret:")
        if name in self.secrets:
            return self.secrets[name]
        close = did_you_mean(name, self.secrets)
        self.report.add(
            "config.unknown_secret",
            f'there is no secret "{name}"',
            view.value_span(path),
            label=f'did you mean "{close}"?' if close else "",
            notes=(f"secrets: {', '.join(sorted(self.secrets)) or 'none'}",),
        )
        return None

    def _on_node(self, files: _Files, key: str, view: View) -> CompiledTls | None:
        certificate = files.certificate.removeprefix("file:").removeprefix(_ON_NODE)
        places = zip(files.names, (files.certificate_at, files.key_at), (certificate, key), strict=True)
        for name, at, path in places:
            if not path.startswith("/") or ".." in path.split("/"):
                message = f"{name}: a path on the host is absolute"
                self.report.add("config.bad_value", message, view.value_span(at))
                return None
        return CompiledTls(f"{_ON_NODE}{certificate}", f"{_ON_NODE}{key}", None)

    def _judged(self, certificate: str, key: SecretRef, files: _Files, view: View) -> PublicCertificate | None:
        """The certificate, when it can be served today with that key."""
        where, name = files.certificate_at, files.names[0]
        try:
            chain = read_bounded(self.directory / FilePath(certificate).expanduser(), max_bytes=PUBLIC_CHAIN_MAX_BYTES)
            found = read_public_certificate(chain)
            now = self.clock.now()
            untimely = found.time_problem(now)
            if untimely is not None:
                raise untimely
            soon = found.ends_soon(now)
            if soon is not None:
                notes = ("renew it with whoever issued it, then run sbctl apply: no request is lost",)
                self.report.note("tls.ends_soon", soon, view.value_span(where), notes=notes)
            where, name = files.key_at, files.names[1]
            self._compare(chain, key, files, view)
        except InputError as error:
            advice = () if error.next_step is None else (error.next_step,)
            self.report.add(error.code, f"{name}: {error.message}", view.value_span(where), notes=advice)
            return None
        return found

    def _compare(self, chain: bytes, key: SecretRef, files: _Files, view: View) -> None:
        """No command is run for a plan, and who only plans need not have the key; an apply compares in any case."""
        try:
            value = self.sources.read(key.reference) if not key.reference.startswith("exec:") else None
        except InputError as error:
            said = "cannot be read here, so it was not compared with the certificate"
            message = f"{files.names[1]} {said}: {error.message}"
            notes = ("who applies needs it",)
            self.report.note("tls.key_not_read", message, view.value_span(files.key_at), notes=notes)
            return
        if value is not None:
            check_pair(chain, value)

    def _check_names(self, certificate: PublicCertificate, origins: Mapping[str, OriginModel], view: View) -> None:
        lacking = {name: origin for name, origin in origins.items() if not certificate.covers(name)}
        listed = ", ".join(certificate.names[:5]) + (" …" if len(certificate.names) > 5 else "")
        notes = (f"it is for {listed}",)
        forced = sorted(name for name, origin in lacking.items() if origin.force_ssl)
        if origins and len(lacking) == len(origins):
            message = f"the certificate is for none of the origins ({', '.join(sorted(lacking)[:5])})"
            self.report.add("tls.name_missing", message, view.value_span((_CERT,)), notes=notes)
        elif forced:
            message = f"the certificate is not for {', '.join(forced)}, and force_ssl lets nobody in otherwise"
            self.report.add("tls.name_missing", message, view.value_span((_CERT,)), notes=notes)
        elif lacking:
            message = (
                f"the certificate is not for {', '.join(sorted(lacking)[:5])}: https callers of that name refuse it"
            )
            self.report.note("tls.name_missing", message, view.value_span((_CERT,)), notes=notes)


def _of_admin(proxy: ProxyModel) -> _Files | None:
    """Nothing where the admin API is off: what it would show is not sent."""
    tls = proxy.admin.tls
    if tls is None or not proxy.admin.enabled:
        return None
    return _Files(tls.cert, tls.key, ("admin", "tls", "cert"), ("admin", "tls", "key"))


def _are_same(one: _Files, other: _Files) -> bool:
    return (one.certificate.removeprefix("file:"), one.key.removeprefix("file:")) == (
        other.certificate.removeprefix("file:"),
        other.key.removeprefix("file:"),
    )

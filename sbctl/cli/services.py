"""What a step may need from the operator's machine: wheels, weights to push, signatures, revisions, secrets."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from platformdirs import user_cache_dir

from sbctl.artifacts.cache import ArtifactCache
from sbctl.artifacts.model import ArtifactFacts
from sbctl.artifacts.pull import pull
from sbctl.base.clock import Clock
from sbctl.base.file_slice import ByteSource
from sbctl.base.secret import Secret
from sbctl.cli.authority import IdentitySigner
from sbctl.cli.pythons import local_archive
from sbctl.cli.signing import Signer
from sbctl.provider import Progress, SignedOnce
from sbctl.remote.wheelhouse import Wheelhouse

__all__ = ["OnlineSupplies", "OperatorServices", "Supplies", "operator_cache"]


def operator_cache() -> Path:
    """Where this machine keeps what it fetched in order to deliver it."""
    return Path(user_cache_dir("sbctl")) / "operator"


class Supplies(Protocol):
    """Where wheels and weights come from; each method as in `sbctl.provider.Services`."""

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]: ...

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path: ...

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path: ...

    def python_archive(self, path: str, sha256: str) -> ByteSource: ...

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, ByteSource]: ...


class OnlineSupplies:
    """From the package index and the sources of the weights, once, by way of the operator's cache.

    Hosts run in threads, so fetching the same thing twice is prevented by a lock a kind.
    """

    def __init__(self, cache: Path, environ: Mapping[str, str], clock: Clock) -> None:
        self._wheelhouse = Wheelhouse(cache, environ)
        self._artifacts = ArtifactCache(cache / "artifacts", clock)
        self._wheels_lock = threading.Lock()
        self._artifacts_lock = threading.Lock()

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        with self._wheels_lock:
            return self._wheelhouse.ensure(arch, libc, python_version, progress)

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        with self._wheels_lock:
            return self._wheelhouse.pinned_wheel(project, version, filename, sha256, progress)

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        with self._wheels_lock:
            return self._wheelhouse.pinned_archive(url, filename, sha256, progress)

    def python_archive(self, path: str, sha256: str) -> ByteSource:
        return local_archive(path, sha256)

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, Path]:
        artifact = ArtifactFacts.model_validate_json(
            ArtifactFacts.model_validate(dict(facts), strict=False).model_dump_json()
        )
        with self._artifacts_lock:
            asyncio.run(pull(self._artifacts, artifact, progress=progress))
        return {file.sha256: self._artifacts.blob_path(file.sha256) for file in artifact.files}


class Signatures:
    """Documents that were signed once for several hosts. Threads wait for each other."""

    def __init__(self) -> None:
        self._made: dict[str, SignedOnce] = {}
        self._lock = threading.Lock()

    def once(self, key: str, above: int, sign: Callable[[], SignedOnce]) -> SignedOnce:
        with self._lock:
            found = self._made.get(key)
            if found is None or found.revision <= above:
                found = self._made[key] = sign()
            return found


class OperatorServices:
    """One of these serves all hosts of a run, which ask from threads of their own."""

    def __init__(
        self,
        clock: Clock,
        signer: Signer,
        allocate_revision: Callable[[str], int],
        resolve_secret: Callable[[str], Secret],
        supplies: Supplies,
        *,
        identities: IdentitySigner,
    ) -> None:
        self.clock = clock
        self._signer = signer
        self._allocate_revision = allocate_revision
        self._resolve_secret = resolve_secret
        self._supplies = supplies
        self._identities = identities
        self._signatures = Signatures()

    def wheelhouse(self, arch: str, libc: str, python_version: str, progress: Progress) -> Mapping[str, Path]:
        return self._supplies.wheelhouse(arch, libc, python_version, progress)

    def engine_wheel(self, project: str, version: str, filename: str, sha256: str, progress: Progress) -> Path:
        return self._supplies.engine_wheel(project, version, filename, sha256, progress)

    def engine_archive(self, url: str, filename: str, sha256: str, progress: Progress) -> Path:
        return self._supplies.engine_archive(url, filename, sha256, progress)

    def python_archive(self, path: str, sha256: str) -> ByteSource:
        return self._supplies.python_archive(path, sha256)

    def artifact_files(self, facts: Mapping[str, Any], progress: Progress) -> Mapping[str, ByteSource]:
        return self._supplies.artifact_files(facts, progress)

    def sign(self, payload_type: str, payload: bytes) -> str:
        return self._signer.sign(payload_type, payload)

    def next_revision(self, scope: str) -> int:
        return self._allocate_revision(scope)

    def signed_once(self, key: str, *, above: int, sign: Callable[[], SignedOnce]) -> SignedOnce:
        return self._signatures.once(key, above, sign)

    def issue_identity(
        self, request: str, grant: Mapping[str, Any], *, issuer: str, validity_days: int, least_epoch: int
    ) -> Mapping[str, str]:
        return self._identities.issue_identity(
            request, grant, issuer=issuer, validity_days=validity_days, least_epoch=least_epoch
        )

    def identity_trust(self, ca: Sequence[str]) -> Mapping[str, str]:
        return self._identities.identity_trust(ca)

    def delegate_enrollment(
        self, request: str, verifying_key: str, *, node_id: str, issuer: str, validity_days: int
    ) -> Mapping[str, str]:
        return self._identities.delegate_enrollment(
            request, verifying_key, node_id=node_id, issuer=issuer, validity_days=validity_days
        )

    def own_identity(self, host: str, spec: Mapping[str, Any]) -> Mapping[str, str]:
        return self._identities.own_identity(host, spec)

    def secret(self, reference: str) -> Secret:
        return self._resolve_secret(reference)

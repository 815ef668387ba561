"""Small packs for tests: a wheel, an engine and weights of a few bytes each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sbctl import __version__
from sbctl.base.digests import sha256_bytes
from sbctl.pack.manifest import PACK_PAYLOAD_TYPE, PackArtifact, PackEntry, PackManifest, PackTarget, Role
from sbctl.pack.writer import write_pack
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey

__all__ = ["FILES", "digest_of", "manifest_of", "packed", "signing"]

FILES: dict[str, tuple[Role, bytes]] = {
    "builtin.json": ("catalog", b"{}"),
    "alpha-1.0-py3-none-any.whl": ("runtime", b"alpha" * 300),
    "uv-1.0-py3-none-any.whl": ("runtime", b"uv" * 256),
    "engine-1.0-py3-none-any.whl": ("engine", b"e" * 513),
    "tiny:q4/model.gguf": ("weights", b"weights" * 1000),
    "tiny:q4/empty": ("weights", b""),
}


def digest_of(name: str) -> str:
    return sha256_bytes(FILES[name][1])


def manifest_of(**changes: object) -> PackManifest:
    wheels = tuple(sorted(digest_of(name) for name, (role, _) in FILES.items() if role == "runtime"))
    weights = (digest_of("tiny:q4/model.gguf"),)
    fields: dict[str, object] = {
        "sbctl_version": __version__,
        "fleet": "site",
        "config_digest": "c" * 64,
        "catalog_digest": "d" * 64,
        "targets": tuple(
            PackTarget(arch="x86_64", libc=libc, python="3.11", wheels=wheels) for libc in ("glibc-2.28", "glibc-2.34")
        ),
        "artifacts": (PackArtifact(name="tiny:q4", artifact="a" * 64, files=weights),),
        "entries": tuple(
            PackEntry(name=name, sha256=sha256_bytes(content), size_bytes=len(content), role=role)
            for name, (role, content) in FILES.items()
        ),
    }
    return PackManifest(**{**fields, **changes})  # type: ignore[arg-type]


def signing(key: SigningKey, name: str = "ops") -> Callable[[bytes], str]:
    return lambda payload: sign_envelope(PACK_PAYLOAD_TYPE, payload, key, name)


def packed(directory: Path, manifest: PackManifest | None = None, key: SigningKey | None = None) -> Path:
    """A pack of FILES in `directory`."""
    sources: dict[str, Path] = {}
    for number, (_, content) in enumerate(FILES.values()):
        source = directory / f"source-{number}"
        source.write_bytes(content)
        sources[sha256_bytes(content)] = source
    target = directory / "site.sbpack"
    write_pack(target, manifest or manifest_of(), sources, sign=signing(key) if key else None, progress=lambda *_: None)
    return target

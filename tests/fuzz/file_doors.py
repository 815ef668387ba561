"""Doors behind which files and signed documents lie: weights, archives, configuration, catalogs, lockfiles, bundles, plans, state."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import shutil
import struct
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from sbctl.artifacts.formats.architectures import model_shape
from sbctl.artifacts.formats.content import check_file, content_of
from sbctl.artifacts.formats.gguf import read_gguf
from sbctl.artifacts.formats.safetensors import read_safetensors
from sbctl.artifacts.lockfile import WantedModel, lock_of, read_lock
from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.artifacts.seal import MANIFEST, read_manifest
from sbctl.artifacts.tar_archive import unpack_tar
from sbctl.base import strict_json
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import ConfigError, SbctlError
from sbctl.base.limits import PLAN_MAX_BYTES
from sbctl.catalog.loader import builtin_catalog
from sbctl.config.catalog_file import read_catalog_file
from sbctl.config.diagnose import Report
from sbctl.config.host_lock import read_host_lock
from sbctl.config.known_hosts import parse_known_hosts
from sbctl.config.load import load
from sbctl.config.ssh_config import parse_ssh_config
from sbctl.node.paths import node_paths
from sbctl.node.python_archive import inspect_python
from sbctl.pack.reader import open_pack
from sbctl.plan.document import read_plan_document
from sbctl.plan.saved_plan import read_saved, saved_payload
from sbctl.runtime.nodeops.activation_journal import read_journal
from sbctl.runtime.settings import load_settings
from sbctl.state.document import parse_document
from sbctl.trust.bundle import (
    BUNDLE_PAYLOAD_TYPE,
    TRUST_PAYLOAD_TYPE,
    ApiKeyEntry,
    BundlePayload,
    ExternalMember,
    LocalStandIn,
    OriginMember,
    TrustSet,
    content_digest,
)
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from sbctl.trust.verifier import verify_bundle, verify_trust
from tests.fuzz.door import Door, Knock
from tests.simulators.engine_world import facts
from tests.simulators.gguf_files import MODELS, tiny_gguf
from tests.simulators.packs import packed
from tests.simulators.provider_world import QUICKSTART, ProviderWorld
from tests.simulators.runtime_world import content, member

__all__ = ["FILE_DOORS"]

NOW: Final = datetime(2026, 11, 29, 12, tzinfo=UTC)
KEY: Final = SigningKey.generate()
LINEAGE: Final = "11111111-2222-3333-4444-555555555555"
TRUST: Final = TrustSet(lineage=LINEAGE, key_epoch=1, signers={"ops": KEY.public_text})


def pure(call: Knock) -> Callable[[Path], Any]:
    """A door without anything around it."""

    @contextmanager
    def opened(_folder: Path) -> Iterator[Knock]:
        yield call

    return opened


def by_file(name: str, call: Callable[[Path], object]) -> Callable[[Path], Any]:
    """A door that reads a file of that name."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Knock]:
        def knock(data: bytes) -> object:
            path = folder / name
            path.write_bytes(data)
            return call(path)

        yield knock

    return opened


def as_document(data: bytes) -> Any:
    return strict_json.loads(data, max_bytes=PLAN_MAX_BYTES)


# Weights


@contextmanager
def weights_door(folder: Path) -> Iterator[Knock]:
    """As the bytes are, and as the start of a large file, so that tensors may lie behind them."""
    path = folder / "model.gguf"

    def knock(data: bytes) -> None:
        for size in (len(data), 1 << 40):
            with path.open("wb") as file:
                file.write(data)
                file.truncate(size)
            with contextlib.suppress(SbctlError):
                model_shape([read_gguf(path)])

    yield knock


def weights_seeds() -> list[bytes]:
    return [tiny_gguf(note="x"), tiny_gguf(layers=3), MODELS["gpt-oss-20b"].header()[0]]


def tensors_seeds() -> list[bytes]:
    header = json.dumps(
        {"__metadata__": {"format": "pt"}, "w": {"dtype": "F16", "shape": [2, 2], "data_offsets": [0, 8]}}
    ).encode()
    return [struct.pack("<Q", len(header)) + header + bytes(8)]


@contextmanager
def content_door(folder: Path) -> Iterator[Knock]:
    """Whatever it is called, what holds a pickle is found, unless what was given is refused before."""

    def knock(data: bytes) -> None:
        for name, kind in (
            ("model.safetensors", "safetensors"),
            ("m.gguf", "gguf"),
            ("config.json", "safetensors"),
            ("notes", "safetensors"),
            ("pytorch_model.bin", "pickle"),
        ):
            path = folder / name
            path.write_bytes(data)
            content_of(path)
            with contextlib.suppress(SbctlError):
                check_file(path, name, kind)

    yield knock


def pickle_seeds() -> list[bytes]:
    dumped = [pickle.dumps({"w": [1.5, "x"], "n": None}, protocol=protocol) for protocol in range(6)]
    zipped = io.BytesIO()
    import zipfile

    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("archive/data.pkl", dumped[2])
    return [
        *dumped,
        zipped.getvalue(),
        b'{"model_type": "llama", "auto_map": {"AutoModel": "m.py"}}',
        b"cos\nsystem\n(S'id'\ntR.",
    ]


# Archives


def archive(*members: tuple[str, bytes | str], top: str = "top/") -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as tar:
        for name, inside in members:
            info = tarfile.TarInfo(top + name)
            if isinstance(inside, str):
                info.type, info.linkname = tarfile.SYMTYPE, inside
                tar.addfile(info)
            else:
                info.size = len(inside)
                tar.addfile(info, io.BytesIO(inside))
    return buffer.getvalue()


@contextmanager
def tar_door(folder: Path) -> Iterator[Knock]:
    """Nothing is written beside the target. The mutants are made of what is inside the compression, too."""
    import gzip

    def knock(data: bytes) -> None:
        for packed_bytes in (data, gzip.compress(data, 1)):
            place = Path(tempfile.mkdtemp(dir=folder))
            target, path = place / "in" / "target", place / "a.tar.gz"
            target.mkdir(parents=True)
            path.write_bytes(packed_bytes)
            try:
                with contextlib.suppress(SbctlError):
                    unpack_tar(path, target, max_bytes=1 << 20)
            finally:
                assert sorted(os.listdir(place)) == ["a.tar.gz", "in"]
                assert os.listdir(place / "in") == ["target"]
                for found in target.rglob("*"):
                    assert target.resolve() in found.resolve().parents, found
                shutil.rmtree(place)

    yield knock


def tar_seeds() -> list[bytes]:
    import gzip

    whole = archive(
        ("llama-server", b"\x7fELF" + bytes(60)), ("lib/libggml.so.0", b"x" * 40), ("lib/libggml.so", "libggml.so.0")
    )
    return [whole, gzip.decompress(whole)]


@contextmanager
def python_door(folder: Path) -> Iterator[Knock]:
    import gzip

    def knock(data: bytes) -> None:
        for packed_bytes in (data, gzip.compress(data, 1)):
            with contextlib.suppress(SbctlError):
                inspect_python(io.BytesIO(packed_bytes), "x")

    yield knock


def python_seeds() -> list[bytes]:
    import gzip

    head = struct.pack(
        "<6sH8sHHIQQQIHHHHHH", b"\x7fELF\x02\x01", 1, bytes(8), 3, 62, 1, 0, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    loader = b"/lib64/ld-linux-x86-64.so.2\0"
    program = head + struct.pack("<IIQQQQQQ", 3, 4, 120, 0, 0, len(loader), len(loader), 1) + loader
    whole = archive(
        ("bin/python3.12", program),
        ("bin/python3", "python3.12"),
        ("include/python3.12/patchlevel.h", b'#define PY_VERSION   "3.12.7"\n'),
        top="python/",
    )
    return [whole, gzip.decompress(whole)]


def read_pack(path: Path) -> None:
    pack = open_pack(path)
    pack.verify(lambda *_: None)
    pack.require_signer({"ops": KEY.public_text})


def pack_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [packed(Path(folder), key=KEY).read_bytes()]


# Configuration


def read_sb_yml(path: Path) -> None:
    load(path, environ={"NAME": "value", "PORT": "8080"})


SB_YML: Final = b"""\
required_sbctl: ">=0.1"
fleet:
  api_keys: {app: {sha256: "3f79bb7b435b05321651daefd374cdc681dc06faa65e374e38337b88ca046dea", models: [chat], requests_per_minute: 6}}
  groups: {l4: {labels: {accelerator: l4}, proxy: {model_host: {cache: {directory: /data/models}}}}}
  hosts:
    "l4-[1-2]": {address: "10.0.0.[1-2]", group: l4, vars: {port: 8081}, host_key: ["SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA", "SHA256:BAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"]}
secrets: {hf: "env:HF_TOKEN"}
proxy:
  http_bind_port: ${PORT:-8080}
  model_host:
    engines: {llama_cpp: {launch: binary, version: b9905}}
    deployments:
      chat: {model: smollm2-135m-instruct, variant: q4_1, replicas: 2, required_labels: {accelerator: l4}}
      small: {model: smollm2-135m-instruct, variant: q4_1, cold_start: fallback}
origins:
  "ai.internal":
    action:
      type: ai_proxy
      routing: fallback_chain
      providers:
        - {name: local, provider_type: managed_model, deployment: chat, models: [chat]}
        - {name: spare, provider_type: managed_model, deployment: small, models: [chat]}
        - {name: other, base_url: "https://api.example.com/v1", api_key: "env:KEY", models: [chat]}
"""


def read_catalog(path: Path) -> None:
    read_catalog_file(Report(), path, None)


def catalog_seeds() -> list[bytes]:
    first = next(iter(builtin_catalog().entries.values())).model.model_dump(mode="json", exclude_none=True)
    document = {"schema_version": 2, "catalog_revision": "2026-11-29", "models": {"m": first}}
    return [json.dumps(document).encode()]


def lock_seeds() -> list[bytes]:
    wanted = WantedModel(small_facts(), "llama_cpp", engine_version="b9905", catalog_revision="2026-11-29")
    return [lock_of([wanted], now_ms=1).model_dump_json().encode()]


def small_facts() -> ArtifactFacts:
    files = (ArtifactFile(path="m.gguf", sha256="a" * 64, size_bytes=7),)
    return ArtifactFacts(
        artifact=artifact_id("gguf", files),
        format="gguf",
        files=files,
        source="file:/m.gguf",
        model="m",
        variant="q4",
        context_length=512,
    )


def host_lock_seeds() -> list[bytes]:
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
    head = "# sb.hosts.lock v1: pinned SSH host keys, written by `sbctl host trust`; commit this file"
    return [f"{head}\ngw-a 10.0.0.1:22 {key} # SHA256:+DiY3wvvV6TuJJhbpZisF/zLDA0zPMSvHdkr4UvCOqU\n".encode()]


SSH_CONFIG: Final = b"Host gw-* !gw-x\n  HostName %h.corp\n  User ops\n  Port 2222\n  ProxyJump a@b:22,c\nMatch all\n  IdentityFile ~/.ssh/id\n"
KNOWN_HOSTS: Final = b"|1|F1E1KeoE/eEWhi10WpGv4OdiO6Y=|3988QV0VE8wmZL7suNrYQLITLCg= ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n[h]:22,10.* ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl\n@revoked * x y\n"


# Signed


def bundle_payload() -> dict[str, Any]:
    desired = content(
        {"q": member(facts(), "/engine")},
        origins={
            "ai.internal": OriginMember(
                models={"m": "q"},
                stand_ins=(
                    LocalStandIn(name="spare", deployment="q", models=("m",)),
                    ExternalMember(name="other", base_url="https://a.example/v1", models={"m": "x"}),
                ),
            )
        },
        api_keys={"app": ApiKeyEntry(sha256="a" * 64, models=("m",), requests_per_minute=5)},
    )
    return BundlePayload(
        lineage=LINEAGE,
        scope="local",
        key_epoch=1,
        revision=7,
        issued_at="2026-11-29T12:00:00Z",
        content=desired,
        content_digest=content_digest(desired),
    ).model_dump(mode="json")


def knock_envelope(data: bytes) -> None:
    verify_bundle(data.decode("utf-8", "surrogateescape"), trust=TRUST, scope="local", fence=None, now=NOW)


def knock_payload(data: bytes) -> None:
    """Signed by somebody who is trusted, so that everything behind the signature is reached."""
    knock_envelope(sign_envelope(BUNDLE_PAYLOAD_TYPE, data, KEY, "ops").encode())


def knock_trust(data: bytes) -> None:
    verify_trust(sign_envelope(TRUST_PAYLOAD_TYPE, data, KEY, "ops"), current=TRUST, lineage=LINEAGE)


def envelope_seeds() -> list[bytes]:
    return [sign_envelope(BUNDLE_PAYLOAD_TYPE, canonical_json(bundle_payload()), KEY, "ops").encode()]


# Documents of our own that may have been damaged


def sealed_again(data: bytes, seal: str) -> bytes:
    """With the digest that belongs to it, so that what lies behind the digest is reached."""
    raw = as_document(data)
    if not isinstance(raw, dict):
        return data
    rest = {key: value for key, value in raw.items() if key != seal}
    try:
        return canonical_json({**rest, seal: fingerprint(rest)})
    except (ValueError, RecursionError):
        return data


def knock_plan(data: bytes) -> None:
    read_saved(sealed_again(data, "seal")).document  # noqa: B018 - reading it is the knock


def plan_seeds() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        world = ProviderWorld(Path(folder))
        world.configure(QUICKSTART)
        return [saved_payload(world.plan())]


def plan_document_seeds() -> list[bytes]:
    return [canonical_json(json.loads(seed)["plan"]) for seed in plan_seeds()]


def knock_plan_document(data: bytes) -> None:
    raw = as_document(data)
    if isinstance(raw, dict):
        read_plan_document(raw)


def knock_state(data: bytes) -> None:
    for document in (data, sealed_again(data, "digest")):
        with contextlib.suppress(SbctlError):
            parse_document(document)


def state_seeds() -> list[bytes]:
    entry = {
        "address": "host.a",
        "host": "a",
        "spec": {"x": 1},
        "record": {"y": [1]},
        "fingerprint": "a" * 64,
        "stands_on": [],
        "connection": {"kind": "local"},
        "applied_serial": 1,
    }
    document: dict[str, Any] = {
        "format": "sbctl.state",
        "schema_version": 1,
        "tool_version": "0.1.0",
        "lineage": LINEAGE,
        "serial": 3,
        "fleet_name": "site",
        "key_epoch": 1,
        "signers": {"ops": KEY.public_text},
        "revisions": {"local": 4},
        "resources": [entry],
        "tombstones": {},
    }
    return [sealed_again(json.dumps(document).encode(), "digest")]


def settings_seeds() -> list[bytes]:
    runtime = {"lineage": LINEAGE, "host": "local", "http_bind_port": 8080, "admin_port": 9090}
    return [
        json.dumps({"runtime": runtime, "content": bundle_payload()["content"]}).encode(),
        json.dumps(runtime).encode(),
    ]


@contextmanager
def settings_door(folder: Path) -> Iterator[Knock]:
    paths = node_paths(os.getuid(), {"SBCTL_NODE_PREFIX": str(folder)})
    paths.etc.mkdir(parents=True)

    def knock(data: bytes) -> None:
        written = folder / "sbctl.json"
        written.write_bytes(data)
        paths.runtime_config.write_bytes(data)
        for by_hand in (written, None):
            with contextlib.suppress(SbctlError):
                load_settings(paths, by_hand)

    yield knock


@contextmanager
def snapshot_door(folder: Path) -> Iterator[Knock]:
    snapshot = folder / small_facts().artifact
    snapshot.mkdir()

    def knock(data: bytes) -> None:
        (snapshot / MANIFEST).write_bytes(data)
        read_manifest(snapshot)

    yield knock


def snapshot_seeds() -> list[bytes]:
    facts_of = small_facts().model_dump(mode="json")
    return [json.dumps({"schema_version": 1, "facts": facts_of, "seals": {"m.gguf": "7:1:1"}}).encode()]


@contextmanager
def journal_door(folder: Path) -> Iterator[Knock]:
    paths = node_paths(os.getuid(), {"SBCTL_NODE_PREFIX": str(folder)})
    paths.activation_journal.parent.mkdir(parents=True, exist_ok=True)

    def knock(data: bytes) -> None:
        paths.activation_journal.write_bytes(data)
        read_journal(paths)

    yield knock


def journal_seeds() -> list[bytes]:
    wanted = {"version": "0.1.0", "config_sha256": "a" * 64, "trust_digest": "b" * 64, "stamp": "x"}
    return [
        json.dumps(
            {
                "schema_version": 1,
                "wanted": wanted,
                "previous": wanted,
                "previous_pid": 7,
                "rebind": False,
                "kept": [{"path": "/x", "copy": None}],
            }
        ).encode()
    ]


FILE_DOORS: Final = (
    Door("gguf header", weights_door, ("formats/*.gguf", "corpus/gguf/*"), weights_seeds, rounds=500),
    Door(
        "safetensors header",
        by_file("model.safetensors", read_safetensors),
        ("formats/*.safetensors", "corpus/safetensors/*"),
        tensors_seeds,
        rounds=1500,
    ),
    Door("pickle scan", content_door, ("corpus/pickle/*",), pickle_seeds, rounds=400),
    Door("engine archive", tar_door, ("corpus/archive/*",), tar_seeds, rounds=250),
    Door("python archive", python_door, ("corpus/python_archive/*",), python_seeds, rounds=250),
    Door("pack", by_file("site.sbpack", read_pack), ("corpus/pack/*",), pack_seeds, rounds=200),
    Door(
        "sb.yml",
        by_file("sb.yml", read_sb_yml),
        ("corpus/*.yml", "corpus/*.bin"),
        lambda: [SB_YML],
        rounds=120,
        refusals=(ConfigError,),
    ),
    Door("catalog", by_file("models.yaml", read_catalog), ("corpus/catalog/*",), catalog_seeds, rounds=120),
    Door("models lockfile", by_file("sbproxy-models.lock", read_lock), ("corpus/models_lock/*",), lock_seeds),
    Door("hosts lockfile", by_file("sb.hosts.lock", read_host_lock), ("corpus/hosts_lock/*",), host_lock_seeds),
    Door(
        "ssh config",
        pure(lambda data: parse_ssh_config(data.decode("utf-8", "replace"))),
        ("corpus/ssh_config/*",),
        lambda: [SSH_CONFIG],
    ),
    Door("known hosts", pure(parse_known_hosts), ("corpus/known_hosts/*",), lambda: [KNOWN_HOSTS]),
    Door("bundle envelope", pure(knock_envelope), ("corpus/bundle_envelope/*",), envelope_seeds),
    Door(
        "bundle payload",
        pure(knock_payload),
        ("corpus/bundle_payload/*",),
        lambda: [json.dumps(bundle_payload()).encode()],
    ),
    Door("signer set", pure(knock_trust), ("corpus/signer_set/*",), lambda: [TRUST.model_dump_json().encode()]),
    Door("saved plan", pure(knock_plan), ("corpus/saved_plan/*",), plan_seeds),
    Door("plan document", pure(knock_plan_document), ("corpus/plan_document/*",), plan_document_seeds),
    Door("state document", pure(knock_state), ("corpus/state/*",), state_seeds),
    Door("runtime settings", settings_door, ("corpus/settings/*",), settings_seeds),
    Door("snapshot manifest", snapshot_door, ("corpus/snapshot/*",), snapshot_seeds),
    Door("activation journal", journal_door, ("corpus/journal/*",), journal_seeds),
)

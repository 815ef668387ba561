"""Making a pack for one sb.yml, opening one for a closed site, and saying before anything changes what it lacks."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from providers.engine_policy import engine_policy
from providers.runtime_wheels import choose_python
from sbctl import __version__
from sbctl.base import fs
from sbctl.base.digests import sha256_file
from sbctl.base.errors import EngineError, RefusedError, SbctlError, UsageError
from sbctl.cli.services import OnlineSupplies, operator_cache
from sbctl.cli.signing import KEY_NOT_MADE_YET, require_member
from sbctl.cli.workspace import Workspace
from sbctl.config.compiled import CompiledConfig
from sbctl.engines.pins import library_pins, wheel_pin
from sbctl.engines.release_pins import ArchivePin, Machine, archive_pin
from sbctl.engines.store_pins import STORE_DEFAULT, store_pin
from sbctl.node.messages import Method
from sbctl.node.python_archive import PythonArchive
from sbctl.node.snapshot import NodeSnapshot
from sbctl.pack.manifest import PACK_PAYLOAD_TYPE, PackArtifact, PackEntry, PackManifest, PackTarget, Role
from sbctl.pack.reader import Pack, open_pack
from sbctl.pack.supplies import PackSupplies
from sbctl.pack.writer import write_pack
from sbctl.plan.model import Plan, Step
from sbctl.remote.wheel_lock import WheelTarget

__all__ = [
    "ARCHES",
    "PackRequest",
    "default_arch",
    "make_pack",
    "open_for",
    "parsed_list",
    "require_packed",
    "signer_of",
]

ARCHES: Final = ("x86_64", "aarch64")
_STALE_AFTER_S: Final = 3600.0
_ORDER: Final[Mapping[Role, int]] = {"catalog": 0, "runtime": 1, "python": 2, "engine": 3, "weights": 4}

Report = Callable[[int, int | None], None]


@dataclass(frozen=True, slots=True)
class PackRequest:
    """`libc` is the oldest C library of the hosts. `begin` gets a title and gives the function that reports progress on it."""

    out: Path
    arches: tuple[str, ...]
    pythons: tuple[str, ...]
    libc: str
    with_weights: bool
    unsigned: bool
    begin: Callable[[str], Report]


def default_arch() -> str:
    """This machine's, where hosts can have it."""
    return platform.machine() if platform.machine() in ARCHES else ARCHES[0]


@dataclass(slots=True)
class _Contents:
    """What was gathered so far; a file that serves twice is there once."""

    entries: dict[str, PackEntry] = field(default_factory=dict)
    sources: dict[str, Path] = field(default_factory=dict)

    def add(self, path: Path, name: str, role: Role, sha256: str | None = None) -> str:
        digest = sha256 or sha256_file(path)
        if digest not in self.entries:
            self.entries[digest] = PackEntry(name=name, sha256=digest, size_bytes=path.stat().st_size, role=role)
            self.sources[digest] = path
        return digest


def make_pack(workspace: Workspace, request: PackRequest) -> tuple[Pack, str | None, tuple[str, ...]]:
    """Gather, sign and write; the pack read back, who signed it, and notes on what it cannot hold.

    Raises ConfigError; RefusedError `key.none`, `key.not_listed`, `runtime.host_unsupported`; ArtifactError; SbctlError `disk.*`.
    """
    config = workspace.config
    sign, signer = _signature(workspace, config, unsigned=request.unsigned)
    supplies = OnlineSupplies(operator_cache(), workspace.environ, workspace.clock)
    contents = _Contents()
    targets = _targets(supplies, contents, request, config)
    _add_pythons(supplies, contents, config)
    notes = (*_add_engines(supplies, contents, config, request), *_add_store(supplies, contents, config, request))
    artifacts = _add_weights(supplies, contents, config, request) if request.with_weights else ()
    _add_catalogs(contents, config, workspace.directory)
    manifest = PackManifest(
        sbctl_version=__version__,
        fleet=config.fleet_name,
        config_digest=config.digest,
        catalog_digest=config.catalog_digest,
        targets=targets,
        artifacts=artifacts,
        left_out=() if request.with_weights else ("weights",),
        entries=tuple(sorted(contents.entries.values(), key=lambda each: (_ORDER[each.role], each.name, each.sha256))),
    )
    out = request.out.absolute()
    fs.sweep_temporaries(out.parent, older_than_s=_STALE_AFTER_S, now_s=workspace.clock.now().timestamp())
    write_pack(out, manifest, contents.sources, sign=sign, progress=request.begin(f"writing {request.out}"))
    return open_pack(request.out), signer, notes


def _signature(
    workspace: Workspace, config: CompiledConfig, *, unsigned: bool
) -> tuple[Callable[[bytes], str] | None, str | None]:
    if unsigned:
        return None, None
    key = workspace.signing_key
    if key is None:
        raise RefusedError(
            "key.none",
            "there is no signing key on this machine, so nobody could tell this pack from another",
            next_step="set SBCTL_SIGNING_KEY_FILE, or make a pack that says it is unsigned: --unsigned",
        )
    signer = require_member(key, config.signers or {})
    return lambda payload: signer.sign(PACK_PAYLOAD_TYPE, payload), signer.name


def _targets(
    supplies: OnlineSupplies, contents: _Contents, request: PackRequest, config: CompiledConfig
) -> tuple[PackTarget, ...]:
    """For the kinds of host that were asked for, and for each standalone Python."""
    sent = {archive.minor for archive in _archives(config).values()}
    targets: list[PackTarget] = []
    for arch in request.arches:
        for python in dict.fromkeys((*request.pythons, *sorted(sent))):
            WheelTarget(arch, request.libc, python).tags()
            report = request.begin(f"wheels for {arch}, Python {python}")
            wheels = supplies.wheelhouse(arch, request.libc, python, report)
            digests = tuple(sorted(contents.add(path, name, "runtime") for name, path in wheels.items()))
            targets.append(PackTarget(arch=arch, libc=request.libc, python=python, wheels=digests))
    return tuple(targets)


def _archives(config: CompiledConfig) -> dict[tuple[str, str], PythonArchive]:
    """By path and digest."""
    sent = [host.standalone for host in config.hosts.values() if host.standalone is not None]
    return {(each.path, each.sha256): each.archive for each in sent if each.archive is not None}


def _add_pythons(supplies: OnlineSupplies, contents: _Contents, config: CompiledConfig) -> None:
    for path, digest in _archives(config):
        supplies.python_archive(path, digest)
        contents.add(Path(path), Path(path).name, "python", digest)


def _add_engines(
    supplies: OnlineSupplies, contents: _Contents, config: CompiledConfig, request: PackRequest
) -> Iterator[str]:
    """Adds the pinned wheels, releases and sources; yields a note for every program that hosts must have themselves."""
    versions: set[str] = set()
    archives: dict[str, ArchivePin] = {}
    for host in config.hosts.values():
        for deployment in host.deployments.values():
            policy = engine_policy(deployment)
            if policy.launch == "wheel" and policy.version is not None:
                versions.add(policy.version)
            elif policy.path is not None:
                yield f"{policy.path} is not packed: {host.name} must have it"
            elif policy.launch == "binary":
                for arch in request.arches:
                    machine = Machine("Linux", arch, request.libc)
                    sha256 = deployment.engine_policy.sha256
                    try:
                        found = archive_pin(policy.version, machine, policy.acceleration, sha256=sha256)
                    except EngineError as error:
                        yield f"no llama-server is packed for {arch}: {error.message}"
                    else:
                        archives[found.sha256] = found
    for archive in archives.values():
        path = supplies.engine_archive(archive.url, archive.filename, archive.sha256, request.begin(archive.filename))
        contents.add(path, archive.filename, "engine", archive.sha256)
    for version in sorted(versions):
        for arch in request.arches:
            pin = wheel_pin(version, arch, request.libc)
            wheels = [(pin.project, pin.version, pin.filename, pin.sha256)]
            wheels += [(lib.project, lib.version, lib.filename, lib.sha256) for lib in library_pins(arch)]
            for project, release, filename, digest in wheels:
                report = request.begin(f"{project} {release} for {arch}")
                path = supplies.engine_wheel(project, release, filename, digest, report)
                contents.add(path, filename, "engine", digest)


def _add_store(
    supplies: OnlineSupplies, contents: _Contents, config: CompiledConfig, request: PackRequest
) -> Iterator[str]:
    """Adds the pinned servers of the cluster's store; yields a note for every one that a host must have itself."""
    versions: set[str] = set()
    for host in config.hosts.values():
        if host.proxy.cluster is None or "authority" not in host.roles:
            continue
        store = host.proxy.cluster.store
        if store.path is not None:
            yield f"{store.path} is not packed: {host.name} must have it"
        else:
            versions.add(store.version or STORE_DEFAULT)
    for version in sorted(versions):
        for arch in request.arches:
            pin = store_pin(version, arch)
            report = request.begin(f"{pin.project} {version} for {arch}")
            path = supplies.engine_wheel(pin.project, version, pin.filename, pin.sha256, report)
            contents.add(path, pin.filename, "engine", pin.sha256)


def _add_weights(
    supplies: OnlineSupplies, contents: _Contents, config: CompiledConfig, request: PackRequest
) -> tuple[PackArtifact, ...]:
    wanted = {
        facts.artifact: facts
        for host in config.hosts.values()
        for deployment in host.deployments.values()
        for facts in deployment.artifacts
    }
    packed: list[PackArtifact] = []
    for facts in sorted(wanted.values(), key=lambda each: (each.model, each.variant, each.artifact)):
        name = f"{facts.model}:{facts.variant}"
        files = supplies.artifact_files(facts.model_dump(mode="json"), request.begin(name))
        paths = {file.sha256: f"{name}/{file.path}" for file in facts.files}
        for digest, path in files.items():
            contents.add(path, paths[digest], "weights", digest)
        packed.append(PackArtifact(name=name, artifact=facts.artifact, files=tuple(sorted(files))))
    return tuple(packed)


def _add_catalogs(contents: _Contents, config: CompiledConfig, directory: Path) -> None:
    """The built-in catalog and every file that is laid over it, as they stand."""
    import sbctl.catalog

    contents.add(Path(sbctl.catalog.__file__).with_name("builtin.json"), "builtin.json", "catalog")
    for host in config.hosts.values():
        if written := host.model_host.catalog_file:
            path = directory / Path(written).expanduser()
            contents.add(path, path.name, "catalog")


def open_for(workspace: Workspace, path: Path, *, accept_unsigned: bool) -> Workspace:
    """The same workspace bound to a pack: everything is pushed, and taken from the pack alone.

    Raises InputError `pack.*`, RefusedError `pack.unsigned`, `envelope.bad_signature`.
    """
    pack = open_pack(path)
    if pack.envelope is not None or not accept_unsigned:
        signer_of(pack, workspace)
    return replace(workspace, pack=pack)


def signer_of(pack: Pack, workspace: Workspace) -> str:
    """Who of this fleet signed the pack. Raises RefusedError `pack.unsigned`, `envelope.bad_signature`."""
    config = workspace.with_signers(workspace.loaded)
    signers = {name: key for name, key in (config.signers or {}).items() if key != KEY_NOT_MADE_YET}
    try:
        return pack.require_signer(signers)
    except RefusedError as error:
        if error.code == "envelope.bad_signature":
            error.next_step = f"{error.next_step}; whoever makes packs is listed under fleet.trust.signers"
        raise


def require_packed(pack: Pack, config_file: Path, plan: Plan, snapshots: Mapping[str, NodeSnapshot]) -> None:
    """Raises InputError `pack.lacks` for what the steps of `plan` will ask for and the pack does not have."""
    supplies = PackSupplies(pack, operator_cache(), config_file)
    steps = [(change.address.scope, step) for change in plan.changes for step in change.steps]
    kinds = [
        kind for host, step in steps if host in snapshots and (kind := _kind_of_host(step, snapshots[host])) is not None
    ]
    engines: dict[str, str] = {}
    for host, step in steps:
        if step.method == Method.ENGINE_INSTALL and host in snapshots:
            engines |= _engine_files(step, snapshots[host])
        elif step.method == Method.STORE_INSTALL and (wheel := step.params["wheel"]) is not None:
            engines[wheel["sha256"]] = f"{wheel['project']} {wheel['version']}"
    supplies.lacking(
        kinds, engines, [step.params["facts"] for _, step in steps if step.method == Method.ARTIFACT_IMPORT]
    )


def _kind_of_host(step: Step, snapshot: NodeSnapshot) -> tuple[str, str, str] | None:
    if step.method != Method.RUNTIME_INSTALL or not snapshot.host.arch:
        return None
    standalone = step.params["standalone"]
    if standalone is not None:
        return snapshot.host.arch, snapshot.host.libc, standalone["minor"]
    with suppress(RefusedError):
        return snapshot.host.arch, snapshot.host.libc, choose_python(snapshot.host, step.params["python"]).version
    return None


def _engine_files(step: Step, snapshot: NodeSnapshot) -> dict[str, str]:
    """Digest → what it is, of all that one installation asks for."""
    if "wish" in step.params:
        planned = step.params["archive"]
        return {} if planned is None else {planned["sha256"]: planned["filename"]}
    arch, libc = snapshot.host.arch, snapshot.host.libc
    wanted = {pin.sha256: f"{pin.project} {pin.version} for {arch}" for pin in library_pins(arch)}
    with suppress(SbctlError):
        pin = wheel_pin(step.params["version"], arch, libc)
        wanted[pin.sha256] = f"{pin.project} {pin.version} for {arch}"
    return wanted


def parsed_list(text: str, what: str, known: Iterable[str] = ()) -> tuple[str, ...]:
    """`a,b` as two words, each once. Raises UsageError."""
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    allowed = tuple(known)
    if not words or (allowed and set(words) - set(allowed)):
        raise UsageError("usage", f"{what} is a list such as {','.join(allowed) or '3.11,3.12'}, not {text[:60]!r}")
    return words

"""Packs that were cut, flipped, stretched, rewritten or signed by somebody else: each is refused, and nothing of it reaches a path."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import InputError, SbctlError
from sbctl.pack.layout import END, blob_name, header, padded
from sbctl.pack.manifest import PACK_PAYLOAD_TYPE, render_manifest
from sbctl.pack.reader import open_pack
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey
from tests.simulators.packs import FILES, digest_of, manifest_of, packed

KEY = SigningKey.generate()
SIGNERS = {"ops": KEY.public_text}


def _check(path: Path) -> None:
    """Everything that `apply --from` and `pack verify` do before they believe a pack."""
    pack = open_pack(path)
    pack.require_signer(SIGNERS)
    pack.verify(lambda *_: None)


def _member(name: str, content: bytes) -> bytes:
    return header(name, len(content)) + content + bytes(padded(len(content)) - len(content))


def _whole(manifest: bytes, signature: str | None, *members: bytes) -> bytes:
    signed = [] if signature is None else [_member("signature.json", signature.encode())]
    return b"".join([_member("manifest.json", manifest), *signed, *members, END])


def _contents(*, skip: str = "") -> list[bytes]:
    return [_member(blob_name(digest_of(name)), content) for name, (_, content) in FILES.items() if name != skip]


def _signed(manifest: bytes, key: SigningKey = KEY, kind: str = PACK_PAYLOAD_TYPE) -> str:
    return sign_envelope(kind, manifest, key, "ops")


def _hostile(kind: bytes, name: str = "blobs/x", link: str = "/etc/passwd") -> bytes:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info.tobuf(tarfile.GNU_FORMAT)


RENDERED = render_manifest(manifest_of())
SIGNATURE = _signed(RENDERED)
MODEL = "tiny:q4/model.gguf"
ENTRY_AT = len(_whole(RENDERED, SIGNATURE)) - len(END)


def _swapped(good: bytes, replacement: bytes) -> bytes:
    """The first blob's header replaced."""
    return good[:ENTRY_AT] + replacement + good[ENTRY_AT + len(replacement) :]


def _flipped(good: bytes, at: int) -> bytes:
    return good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]


def _manifest_with(good: bytes, old: bytes, new: bytes) -> bytes:
    edited = RENDERED.replace(old, new, 1)
    assert edited != RENDERED
    return _whole(edited, _signed(edited), *_contents())


ATTACKS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda good: b"", "pack.not_a_pack"),
    "something else": (lambda good: b"\x7fELF" + good, "pack.not_a_pack"),
    "cut in the manifest": (lambda good: good[:700], "pack.damaged"),
    "cut in the signature": (lambda good: good[: ENTRY_AT - 600], "pack.damaged"),
    "cut in a file": (lambda good: good[:-3000], "pack.damaged"),
    "cut before the end": (lambda good: good[:-1], "pack.damaged"),
    "longer than it should be": (lambda good: good + bytes(512), "pack.damaged"),
    "a member more": (lambda good: good[: -len(END)] + _member("blobs/extra", b"x") + END, "pack.damaged"),
    "a member less": (lambda good: _whole(RENDERED, SIGNATURE, *_contents(skip=MODEL)), "pack.damaged"),
    "a member twice": (lambda good: _whole(RENDERED, SIGNATURE, *_contents()[:1], *_contents()), "pack.damaged"),
    "members in another order": (lambda good: _whole(RENDERED, SIGNATURE, *_contents()[::-1]), "pack.damaged"),
    "a way out": (lambda good: _swapped(good, header("../../etc/cron.d/x", 2)), "pack.damaged"),
    "an absolute path": (lambda good: _swapped(good, header("/etc/cron.d/x", 2)), "pack.damaged"),
    "a symbolic link": (lambda good: _swapped(good, _hostile(tarfile.SYMTYPE)), "pack.damaged"),
    "a hard link": (lambda good: _swapped(good, _hostile(tarfile.LNKTYPE)), "pack.damaged"),
    "a device": (lambda good: _swapped(good, _hostile(tarfile.CHRTYPE)), "pack.damaged"),
    "a FIFO": (lambda good: _swapped(good, _hostile(tarfile.FIFOTYPE)), "pack.damaged"),
    "a sparse file": (lambda good: _swapped(good, _hostile(tarfile.GNUTYPE_SPARSE)), "pack.damaged"),
    "an extended header": (lambda good: _swapped(good, _hostile(tarfile.XHDTYPE)), "pack.damaged"),
    "a member of another size": (
        lambda good: _swapped(good, header(blob_name(digest_of("builtin.json")), 2**40)),
        "pack.damaged",
    ),
    "a negative size": (lambda good: _swapped(good, header("x", 0)[:124] + b"\xff" * 12), "pack.damaged"),
    "a set-user-id mode": (lambda good: _flipped(good, ENTRY_AT + 103), "pack.damaged"),
    "a bit of a file": (lambda good: _flipped(good, good.index(b"weightsweights") + 99), "pack.damaged"),
    "a byte behind a file": (lambda good: _flipped(good, ENTRY_AT + 512 + 100), "pack.damaged"),
    "a bit of the manifest": (lambda good: _flipped(good, good.index(b"site")), "pack.damaged"),
    "a manifest of gigabytes": (lambda good: header("manifest.json", 2**33) + good[512:], "pack.not_a_pack"),
    "a signature of gigabytes": (
        lambda good: _member("manifest.json", RENDERED) + header("signature.json", 2**33) + good[:9000],
        "pack.damaged",
    ),
    "no signature": (lambda good: _whole(RENDERED, None, *_contents()), "pack.unsigned"),
    "the wrong signer": (
        lambda good: _whole(RENDERED, _signed(RENDERED, SigningKey.generate()), *_contents()),
        "envelope.bad_signature",
    ),
    "the signature of a bundle": (
        lambda good: _whole(RENDERED, _signed(RENDERED, kind=BUNDLE_PAYLOAD_TYPE), *_contents()),
        "pack.damaged",
    ),
    "the signature of another pack": (
        lambda good: _whole(RENDERED, _signed(render_manifest(manifest_of(fleet="other"))), *_contents()),
        "pack.damaged",
    ),
    "no JSON for a signature": (lambda good: _whole(RENDERED, "{", *_contents()), "pack.damaged"),
    "an older form": (
        lambda good: _manifest_with(good, b'"schema_version":1', b'"schema_version":0'),
        "pack.unsupported",
    ),
    "a newer form": (lambda good: _manifest_with(good, b'"schema_version":1', b'"schema_version":2'), "pack.unsupported"),
    "a field that nobody knows": (lambda good: _manifest_with(good, b'"fleet":', b'"extra":1,"fleet":'), "pack.invalid"),
    "a field twice": (lambda good: _manifest_with(good, b'"fleet":', b'"fleet":"x","fleet":'), "pack.invalid"),
    "white space": (lambda good: _manifest_with(good, b'"fleet":', b'"fleet": '), "pack.invalid"),
    "a negative length": (lambda good: _manifest_with(good, b'"size_bytes":2}', b'"size_bytes":-2}'), "pack.invalid"),
    "a name that a terminal obeys": (lambda good: _manifest_with(good, b"builtin", b"\\u001b[2J"), "pack.invalid"),
    "a wheel that is not there": (
        lambda good: _manifest_with(good, b'"wheels":["', b'"wheels":["' + b"0" * 64 + b'","'),
        "pack.invalid",
    ),
}  # fmt: skip


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_pack_that_is_not_as_it_was_made_is_refused(tmp_path: Path, attack: str) -> None:
    change, code = ATTACKS[attack]
    path = packed(tmp_path, key=KEY)
    good = path.read_bytes()
    assert good == _whole(RENDERED, SIGNATURE, *_contents())
    _check(path)
    path.write_bytes(change(good))
    with pytest.raises(SbctlError) as refused:
        _check(path)
    assert refused.value.code == code
    assert refused.value.place == str(path)


def test_every_byte_of_a_pack_counts(tmp_path: Path) -> None:
    path = packed(tmp_path, key=KEY)
    good = path.read_bytes()
    for at in range(0, len(good), 37):
        path.write_bytes(_flipped(good, at))
        with pytest.raises(SbctlError):
            _check(path)


def test_a_directory_a_device_and_nothing_are_no_packs(tmp_path: Path) -> None:
    for path in (tmp_path, Path("/dev/zero"), tmp_path / "none"):
        with pytest.raises(InputError) as refused:
            open_pack(path)
        assert refused.value.code.startswith("file.")


def test_a_compressed_pack_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "p"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        archive.add(packed(tmp_path, key=KEY), "manifest.json")
    path.write_bytes(buffer.getvalue())
    with pytest.raises(InputError) as refused:
        open_pack(path)
    assert refused.value.code == "pack.not_a_pack"

"""OpenSSH's known_hosts, line by line."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.config.known_hosts import parse_known_hosts
from tests.simulators.ssh_keys import ecdsa_key, ed25519_key

A, B, C = ed25519_key("a"), ed25519_key("b"), ecdsa_key("c")


@pytest.mark.parametrize(
    ("names", "address", "port", "known"),
    [
        ("10.0.0.1", "10.0.0.1", 22, True),
        ("10.0.0.1", "10.0.0.1", 2222, False),
        ("[10.0.0.1]:2222", "10.0.0.1", 2222, True),
        ("[10.0.0.1]:2222", "10.0.0.1", 22, False),
        ("[10.0.0.1]:22", "10.0.0.1", 22, True),
        ("gpu.example,10.0.0.1", "10.0.0.1", 22, True),
        ("GPU.Example", "gpu.example", 22, True),
        ("gpu.example", "GPU.EXAMPLE", 22, True),
        ("10.0.0.*", "10.0.0.7", 22, True),
        ("10.0.0.?", "10.0.0.77", 22, False),
        ("10.0.0.*,!10.0.0.7", "10.0.0.7", 22, False),
        ("!10.0.0.7,10.0.0.*", "10.0.0.8", 22, True),
        ("[10.0.0.*]:2222", "10.0.0.7", 2222, True),
        ("fe80::1", "fe80::1", 22, True),
        ("10.0.0.1x", "10.0.0.1", 22, False),
        ("|1|AAAA|AAAA", "10.0.0.1", 22, False),
        ("|2|x", "10.0.0.1", 22, False),
    ],
)
def test_whose_key_a_line_has(names: str, address: str, port: int, known: bool) -> None:
    found = parse_known_hosts(f"{names} {A.text} comment\n".encode())
    assert found.notes == ()
    assert found.keys_for(address, port) == (((1, A),) if known else ())


@pytest.mark.parametrize(("address", "port"), [("10.0.0.1", 22), ("gpu.example", 2222)])
def test_hashed_names_as_ssh_keygen_hashes_them(tmp_path: Path, address: str, port: int) -> None:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("needs ssh-keygen")
    file = tmp_path / "known_hosts"
    file.write_text(f"{address if port == 22 else f'[{address}]:{port}'} {A.text}\n")
    subprocess.run(["ssh-keygen", "-q", "-H", "-f", str(file)], check=True, capture_output=True)
    assert file.read_text().startswith("|1|")
    found = parse_known_hosts(file.read_bytes())
    assert found.keys_for(address, port) == ((1, A),)
    assert found.keys_for("other.example", port) == ()


def test_several_keys_of_a_host_and_one_key_twice() -> None:
    text = f"h {A.text}\nh,i {A.text}\n# h {B.text}\n\nh {C.text}\r\n"
    assert parse_known_hosts(text.encode()).keys_for("h", 22) == ((1, A), (5, C))


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (f"@cert-authority *.example {A.text}", "certificate authority"),
        (f"@other h {A.text}", "marker"),
        ("h", "a line is"),
        ("h ssh-ed25519", "a line is"),
        ("h ssh-dss AAAA", "algorithm"),
        ("h 1024 35 123456789", "algorithm"),
        (f"h ssh-ed25519 {A.blob[:-4]}", "damaged"),
        (f"h ssh-ed25519 {A.blob[:-3]}", "base64"),
        (f"h ssh-rsa {A.blob}", "another algorithm"),
        (f"hé {A.text}", "ASCII"),
        ("h" * 20_000, "longer"),
    ],
)
def test_a_line_that_cannot_be_used_is_reported_and_stops_nothing(line: str, words: str) -> None:
    found = parse_known_hosts(f"first {B.text}\n{line}\nlast {A.text}\n".encode())
    assert [(note.line, words in note.sentence) for note in found.notes] == [(2, True)]
    assert found.keys_for("last", 22) == ((3, A),)


def test_a_revoked_key_is_revoked_for_every_host() -> None:
    found = parse_known_hosts(f"h {A.text}\n@revoked other {A.text}\n".encode())
    assert found.keys_for("h", 22) == ((1, A),)
    assert found.revoked == {A}
    assert found.notes[0].line == 2


@given(
    st.binary(max_size=200)
    | st.lists(st.sampled_from([b"h ", A.text.encode(), b"@revoked ", b"|1|", b"\n", b"*", b"!", b"[", b"\xff"])).map(
        b"".join
    )
)
def test_A19_any_bytes_are_read(data: bytes) -> None:
    found = parse_known_hosts(data)
    found.keys_for("h", 22)
    assert all(note.line > 0 and note.sentence.isprintable() for note in found.notes)

"""A release as an engine of ours: by digest, unpacked, asked for its version and its flags, then in place at once; or refused whole."""

from __future__ import annotations

import io
import json
import sys
import tarfile
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import EngineError, HostError, SbctlError
from sbctl.engines import build_tools
from sbctl.engines.detect import find_engine
from sbctl.engines.driver import EngineSite, EngineWish
from sbctl.engines.release_pins import Machine
from sbctl.node.messages import EngineArchive, EngineInstall, EngineRemove
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.engine_ops import install_engine, remove_engine
from tests.simulators import fake_llama_server

pytestmark = pytest.mark.flow

HELP = Path(__file__).resolve().parents[2] / "fixtures" / "engines" / "llama_server_b9905_help.txt"
SERVER = (
    Path(str(fake_llama_server.__file__))
    .read_bytes()
    .replace(b"#!/usr/bin/env python3", f"#!{sys.executable}".encode())
)
FILENAME = "llama-b9905-bin-ubuntu-x64.tar.gz"


def archive(*, program: bytes = SERVER, inside: str = "llama-b9905", **behave: Any) -> bytes:
    data = io.BytesIO()
    told = json.dumps({"help_file": str(HELP), **behave}).encode()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        for name, content in (("llama-server", program), ("llama-server.control.json", told), ("libllama.so", b"so")):
            info = tarfile.TarInfo(f"{inside}/{name}")
            info.size, info.mode = len(content), 0o755
            tar.addfile(info, io.BytesIO(content))
    return data.getvalue()


def asked(data: bytes, **changes: Any) -> EngineInstall:
    pin = {
        "filename": FILENAME, "url": "https://example.org/x.tar.gz", "sha256": sha256_bytes(data), "tag": "b9905",
        "acceleration": "cpu", "is_source": False, "installed_bytes": 10 << 20, **changes,
    }  # fmt: skip
    name = pin["tag"] if pin["acceleration"] == "cpu" else f"{pin['tag']}+{pin['acceleration']}"
    return EngineInstall(
        engine="llama_cpp", launch="binary", version=name, archive=EngineArchive(**pin), delivery="push"
    )


def put(context: NodeContext, data: bytes) -> None:
    context.paths.blobs.mkdir(parents=True, exist_ok=True)
    (context.paths.blobs / sha256_bytes(data)).write_bytes(data)


def test_a_release_that_was_pushed_is_installed_once_and_found(context: NodeContext) -> None:
    data = archive()
    put(context, data)
    answer = install_engine(context, asked(data))
    assert answer["digest"] == sha256_bytes(data)
    assert not list(context.paths.blobs.iterdir()), "what was put is used up"
    site = EngineSite(context.paths.engines, "", Machine("Linux", "x86_64", "glibc-2.36"))
    found = find_engine(EngineWish("binary", "b9905"), site)
    assert found.build is not None
    assert (found.build.version, found.build.has_unix_sockets, found.build.ours) == ("b9905", True, True)
    assert found.build.argv_prefix == (str(Path(answer["path"]) / "bin" / "llama-server"),)
    assert install_engine(context, asked(data)) == answer, "a second time asks for nothing"
    assert remove_engine(context, EngineRemove(engine="llama_cpp", version="b9905")) == {"removed": True}
    assert find_engine(EngineWish("binary", "b9905"), site).state == "acquirable"


def test_a_release_that_was_changed_on_the_host_is_installed_anew(context: NodeContext) -> None:
    data = archive()
    put(context, data)
    home = Path(install_engine(context, asked(data))["path"])
    (home / "bin" / "llama-server").write_bytes(b"other")
    with pytest.raises(HostError, match="was not sent"):
        install_engine(context, asked(data))
    put(context, data)
    install_engine(context, asked(data))
    assert (home / "bin" / "llama-server").read_bytes() == SERVER


@pytest.mark.parametrize(
    ("made", "code"),
    [
        ({"version": "9906 (3fa1c2)"}, "engine.other_version"),
        ({"version": "0.6.0 (build 9904, commit 3fa1c2)"}, "engine.other_version"),
        ({"help_file": "/etc/hostname"}, "engine.help_differs"),
        ({"program": b"#!/bin/false\n"}, "engine.install_failed"),
        ({"inside": "llama-b9905/deep/down"}, "engine.install_failed"),
    ],
)
def test_fault_17_a_release_that_is_not_what_was_tried_is_refused_whole(
    context: NodeContext, made: dict[str, Any], code: str
) -> None:
    data = archive(**made)
    put(context, data)
    with pytest.raises(EngineError) as caught:
        install_engine(context, asked(data))
    assert caught.value.code == code
    assert caught.value.next_step
    assert not list((context.paths.engines / "llama_cpp").iterdir())


class _Release(BaseHTTPRequestHandler):
    data = b""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.data)))
        self.end_headers()
        self.wfile.write(self.data)

    def log_message(self, *args: Any) -> None: ...


def test_a_release_is_fetched_by_the_host_and_believed_by_its_digest_alone(context: NodeContext) -> None:
    data = archive()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Release", (_Release,), {"data": data}))
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        allowed = replace(context, environ={**context.environ, "SBCTL_DOWNLOAD_HOSTS": "127.0.0.1"})
        wanted = asked(data, url=f"http://127.0.0.1:{server.server_port}/release.tar.gz")
        answer = install_engine(allowed, wanted.model_copy(update={"delivery": "pull"}))
        assert answer["digest"] == sha256_bytes(data)
        other = asked(data, url=f"http://127.0.0.1:{server.server_port}/x", sha256="0" * 64, tag="b9906")
        with pytest.raises(SbctlError, match="digest"):
            install_engine(allowed, other.model_copy(update={"delivery": "pull"}))
    finally:
        server.shutdown()
        server.server_close()


def test_other_bytes_than_the_digest_says_are_refused(context: NodeContext) -> None:
    data = archive()
    put(context, data)
    (context.paths.blobs / sha256_bytes(data)).write_bytes(data + b"x")
    with pytest.raises(HostError) as caught:
        install_engine(context, asked(data))
    assert caught.value.code == "put.digest_mismatch"


def test_a_release_of_an_untried_tag_is_driven_by_its_own_help(context: NodeContext) -> None:
    data = archive(version="9999 (3fa1c2)")
    put(context, data)
    install_engine(context, asked(data, tag="b9999"))
    site = EngineSite(context.paths.engines, "", Machine("Linux", "x86_64", "glibc-2.36"))
    build = find_engine(EngineWish("binary", "b9999"), site).build
    assert build is not None
    assert build.known_flags
    assert "--parallel" in build.known_flags
    assert not build.has_unix_sockets, "nobody saw that it can"


TOOL = """#!/bin/sh
echo "$@" >> {log}
case "$1" in --build) mkdir -p "$2/bin"; cp {server} "$2/bin/llama-server";; esac
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with a driver, a compiler, and a cmake that hands out the stand-in."""
    folder = tmp_path / "tools"
    folder.mkdir()
    server = tmp_path / "llama-server"
    beside = b'os.path.abspath(sys.argv[0]) + ".control.json"'
    server.write_bytes(SERVER.replace(beside, repr(f"{server}.control.json").encode()))
    Path(f"{server}.control.json").write_text(json.dumps({"help_file": str(HELP)}))
    for name in ("cmake", "nvcc", "g++", "make", "nvidia-smi"):
        (folder / name).write_text(TOOL.format(log=folder / "log", server=server))
        (folder / name).chmod(0o755)
    monkeypatch.setattr(build_tools, "BUILD_DIRECTORIES", (str(folder), "/usr/bin", "/bin"))
    return folder


def test_the_source_is_built_for_cuda_on_the_host(context: NodeContext, tools: Path) -> None:
    data = archive(inside="llama.cpp-b9905")
    put(context, data)
    request = asked(data, acceleration="cuda", is_source=True, filename="llama.cpp-b9905.tar.gz")
    install_engine(context, request)
    configured, built = (tools / "log").read_text().splitlines()
    assert "-DGGML_CUDA=ON" in configured
    assert "-DLLAMA_BUILD_NUMBER=9905" in configured
    assert "-DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF" in configured, "a build fetches nothing"
    assert "--target llama-server" in built
    site = EngineSite(context.paths.engines, "", Machine("Linux", "x86_64", "glibc-2.36"))
    build = find_engine(EngineWish("binary", "b9905", acceleration="cuda"), site).build
    assert build is not None
    assert (build.version, build.acceleration) == ("b9905+cuda", "cuda")


def test_a_host_without_the_tools_is_told_which(context: NodeContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build_tools, "BUILD_DIRECTORIES", ("/nonexistent",))
    data = archive(inside="llama.cpp-b9905")
    put(context, data)
    with pytest.raises(EngineError) as caught:
        install_engine(context, asked(data, acceleration="cuda", is_source=True))
    assert caught.value.code == "engine.cannot_build"
    for what in ("driver", "nvcc", "cmake", "compiler"):
        assert what in caught.value.message


def test_a_failed_build_says_what_the_tool_said(context: NodeContext, tools: Path) -> None:
    (tools / "cmake").write_text("#!/bin/sh\necho 'no CUDA toolset'\nexit 1\n")
    data = archive(inside="llama.cpp-b9905")
    put(context, data)
    with pytest.raises(SbctlError, match=r"configuring llama\.cpp failed: no CUDA toolset"):
        install_engine(context, asked(data, acceleration="cuda", is_source=True))


def test_neither_wheel_nor_archive_is_a_refusal(context: NodeContext) -> None:
    request = EngineInstall(engine="llama_cpp", launch="binary", version="b1", delivery="push")
    with pytest.raises(EngineError, match="neither"):
        install_engine(replace(context), request)

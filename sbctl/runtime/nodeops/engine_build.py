"""llama.cpp from its source, for CUDA: the build with its deadlines (SBproxy, "CUDA source build").

Not tried on hardware: no machine with a GPU ran this.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

from sbctl.base import fs
from sbctl.base.errors import EngineError
from sbctl.engines import build_tools
from sbctl.engines.model import PROGRAM_PATH
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.runtime.nodeops.programs import run_program

__all__ = ["build_server"]

_CONFIGURE_DEADLINE_S: Final = 300.0
_BUILD_DEADLINE_S: Final = 3600.0
_OPTIONS: Final = (
    "-DGGML_CUDA=ON", "-DGGML_NATIVE=OFF", "-DLLAMA_CURL=OFF", "-DCMAKE_BUILD_TYPE=Release", "-DBUILD_SHARED_LIBS=OFF",
    "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_EXAMPLES=OFF", "-DLLAMA_OPENSSL=OFF",
    # The user interface would be fetched from a network while building.
    "-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF",
)  # fmt: skip


def build_server(context: NodeContext, source: Path, target: Path, *, tag: str) -> None:
    """`target`/llama-server, built from `source`. Raises EngineError `engine.cannot_build`, `engine.install_failed`."""
    lacking = build_tools.missing_tools()
    if lacking:
        raise EngineError(
            "engine.cannot_build",
            f"llama.cpp cannot be built for CUDA here: {', '.join(lacking)} missing",
            next_step="install what is missing on this host, or use acceleration: cpu",
        )
    build = source / "sbctl-build"
    environ = {"PATH": os.pathsep.join(build_tools.BUILD_DIRECTORIES), "HOME": str(source), "TMPDIR": str(source)}
    cmake = build_tools.find_tool("cmake") or "cmake"
    number = f"-DLLAMA_BUILD_NUMBER={tag.removeprefix('b')}"
    jobs = str(max(1, (os.cpu_count() or 1) - 1))
    steps = (
        ("configuring", (cmake, "-S", str(source), "-B", str(build), *_OPTIONS, number), _CONFIGURE_DEADLINE_S),
        ("building", (cmake, "--build", str(build), "--target", "llama-server", "-j", jobs), _BUILD_DEADLINE_S),
    )
    for doing, argv, deadline_s in steps:
        context.cancellation.check()
        context.report(0, None, f"{doing} llama.cpp {tag} for CUDA")
        done = run_program(argv, deadline_s=deadline_s, environ=environ, cwd=source)
        if done.returncode:
            raise EngineError(
                "engine.install_failed",
                f"{doing} llama.cpp failed: {done.tail() or f'status {done.returncode}'}",
                next_step="check the CUDA toolkit and the compiler on this host, then run sbctl apply again",
            )
    fs.ensure_directory(target, mode=0o755)
    shutil.copyfile(build / PROGRAM_PATH, target / Path(PROGRAM_PATH).name)
    (target / Path(PROGRAM_PATH).name).chmod(0o755)

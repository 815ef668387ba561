"""What a host must have to build llama.cpp for CUDA (SBproxy, "CUDA source build")."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Final

__all__ = ["BUILD_DIRECTORIES", "find_tool", "missing_tools"]

BUILD_DIRECTORIES: Final = ("/usr/local/cuda/bin", "/usr/local/bin", "/usr/bin", "/bin")
_DRIVER: Final = Path("/proc/driver/nvidia/version")


def find_tool(*names: str) -> str | None:
    """The first of these programs that a build would find."""
    found = (shutil.which(name, path=os.pathsep.join(BUILD_DIRECTORIES)) for name in names)
    return next((program for program in found if program is not None), None)


def missing_tools(driver: Path = _DRIVER) -> tuple[str, ...]:
    """What a host lacks to build for CUDA; empty when it can."""
    lacking = [] if driver.exists() or find_tool("nvidia-smi") else ["the NVIDIA driver"]
    wanted = {"nvcc (the CUDA toolkit)": ("nvcc",), "cmake": ("cmake",), "a C++ compiler": ("c++", "g++", "clang++")}
    wanted |= {"make or ninja": ("ninja", "make")}
    return (*lacking, *(what for what, names in wanted.items() if find_tool(*names) is None))

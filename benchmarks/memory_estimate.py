"""How wrong the memory estimate is: the same geometry given to `engines.fit` and to llama.cpp itself, which answers without allocating.

    python benchmarks/memory_estimate.py [--python PYTHON] [MODEL…]

PYTHON is an interpreter that has the wheel `xllamacpp` (an installed engine: <opt>/engines/llama_cpp/<version>/bin/python); by default the
one that runs this. The files are headers over holes, so a model of 20 GB takes a few KiB of disk. Weights are not compared: the engine's
figure leaves out those that it repacks for the processor.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from sbctl.artifacts.formats.architectures import read_shape
from sbctl.base.limits import MIB
from sbctl.engines.fit import LaunchShape, need_of
from tests.simulators.gguf_files import MODELS

_LAUNCHES: Final = ((4096, 1, "f16"), (8192, 4, "q8_0"), (32_768, 1, "f16"))
_ASK: Final = """
import sys, xllamacpp
path, context, slots, kind = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4].upper()
params = xllamacpp.CommonParams()
params.model.path, params.hostnames, params.port = path, ["127.0.0.1"], 0
params.n_ctx, params.n_parallel, params.kv_unified = context * slots, slots, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.n_batch, params.n_ubatch, params.n_gpu_layers = 2048, 512, 0
params.fit_params, params.verbosity, params.warmup, params.ui = True, 5, False, False
params.cache_type_k = params.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + kind)
xllamacpp.Server(params)
"""
_ENGINE_TIMEOUT_S: Final = 120.0


def engine_figures(python: str, path: Path, context: int, slots: int, kind: str) -> tuple[int, float] | None:
    """MiB of context and of compute with output, as the engine counts them; None when it ended before it told."""
    argv = [python, "-c", _ASK, str(path), str(context), str(slots), kind]
    told: list[str] = []
    with subprocess.Popen(
        argv, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, errors="replace"
    ) as asked:
        assert asked.stderr is not None
        for line in asked.stderr:
            told.append(line)
            if "projected to use" in line or "encountered an error" in line:
                break
        asked.kill()
    text = "".join(told)
    table = re.search(r"Host\s*\|\s*\d+ =\s*\d+ \+\s*(\d+) \+\s*\d+", text)
    compute = re.findall(r"(?:compute|output) buffer size = +([\d.]+)", text)
    return None if table is None else (int(table[1]), sum(float(size) for size in compute[-2:]))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("models", nargs="*", default=sorted(MODELS))
    given = parser.parse_args()
    print(f"{'model':18} {'launch':>14}   context MiB: engine, estimate   compute MiB: engine, at most   ratio")
    for name in given.models:
        with tempfile.TemporaryDirectory() as directory:
            path = MODELS[name].write(Path(directory) / f"{name}.gguf")
            shape = read_shape([path])
            assert shape is not None
            for context, slots, kind in _LAUNCHES:
                figures = engine_figures(given.python, path, context, slots, kind)
                launch = f"{context}x{slots} {kind}"
                if figures is None:
                    print(f"{name:18} {launch:>14}   the engine ended before it told")
                    continue
                need = need_of(shape, LaunchShape(context, slots, kind, kind))
                output = slots * 4 * (shape.vocabulary + shape.embedding)
                compute = (need.compute + output) / MIB
                ratio = compute / figures[1]
                print(
                    f"{name:18} {launch:>14}   {figures[0]:19} {(need.context - output) / MIB:9.1f}   "
                    f"{figures[1]:19.1f} {compute:9.1f}   {ratio:5.2f}"
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())

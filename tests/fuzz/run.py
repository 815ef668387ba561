"""Knock at doors for a while; what falls out is kept, so that every later run tries it first.

    .venv/bin/python tests/fuzz/run.py --seconds 120 [DOOR …] [--seed N]

Ends with 1 when something fell out: the input stands under tests/fuzz/corpus/<door>/ by its digest, the error on standard output.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import tempfile
import time
import traceback
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from sbctl.base.digests import sha256_bytes  # noqa: E402
from tests.fuzz.door import CORPUS, Door  # noqa: E402
from tests.fuzz.doors import DOORS  # noqa: E402
from tests.fuzz.mutation import mutants  # noqa: E402


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("doors", nargs="*", metavar="DOOR")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each door")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--different", type=int, default=5, help="stop at a door after so many different errors")
    asked = parser.parse_args(arguments)
    # What takes memory without a bound is a finding, and not the end of the machine.
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    fell = 0
    for name in asked.doors or DOORS:
        fell += knocked(DOORS[name], asked.seconds, asked.seed, asked.different)
    return 1 if fell else 0


def knocked(door: Door, seconds: float, seed: int, different: int) -> int:
    """How many different errors fell out."""
    source = random.Random(seed)
    seeds = [*door.seeds(), *(path.read_bytes() for path in door.corpus())]
    errors: dict[str, bytes] = {}
    done, end_s = 0, time.monotonic() + seconds
    with tempfile.TemporaryDirectory() as folder, door.open(Path(folder)) as call:
        for data in mutants(seeds, source):
            if time.monotonic() > end_s or len(errors) >= different:
                break
            done += 1
            try:
                door.knock(call, data)
            except Exception:
                frames = traceback.extract_tb(sys.exc_info()[2])
                place = next(
                    (f"{frame.filename}:{frame.lineno}" for frame in reversed(frames) if "/sbctl/" in frame.filename),
                    "?",
                )
                what = f"{sys.exc_info()[0]} at {place}"
                if what not in errors:
                    errors[what] = data
                    print(f"{door.name}: {traceback.format_exc(limit=-6)}\n  {data[:300]!r}", flush=True)
    directory = CORPUS / door.kept[-1].split("/")[1] if "/" in door.kept[-1] else CORPUS
    for data in errors.values():
        directory.mkdir(parents=True, exist_ok=True)
        (directory / f"found_{sha256_bytes(data)[:16]}").write_bytes(data)
    print(f"{door.name}: {done} inputs, {len(errors)} errors, seed {seed}", flush=True)
    return len(errors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

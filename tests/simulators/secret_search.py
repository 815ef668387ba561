"""Looks for secrets on a whole host: every file, command line and environment, without the secrets on the command line that looks.

The tests themselves, which say the secrets and which hosts of the lab see wherever they lie, are left out.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final

__all__ = ["search_program"]

_CHECKOUT: Final = str(Path(__file__).resolve().parents[2])
_SEARCH: Final = """
import base64, json, os
words = [base64.b64decode(word) for word in json.loads(WORDS)]
found = []
for top in ("/etc", "/var", "/opt", "/run", "/tmp", "/root", "/home", "/usr/local", "/proc"):
    for folder, folders, files in os.walk(top):
        folders[:] = [one for one in folders if one not in ("task", "map_files", "cgroup") and os.path.join(folder, one) != CHECKOUT]
        for name in files:
            path = os.path.join(folder, name)
            if top == "/proc" and name not in ("cmdline", "environ"):
                continue
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 1 << 25:
                    with open(path, "rb") as file:
                        data = file.read()
                    found += [path for word in words if word in data]
            except OSError:
                pass
print(json.dumps(sorted(found)))
"""


def search_program(words: Iterable[bytes]) -> str:
    """A Python program that prints, as JSON, the files and /proc entries that hold one of the words."""
    hidden = json.dumps([base64.b64encode(word).decode() for word in words])
    return _SEARCH.replace("WORDS", repr(hidden)).replace("CHECKOUT", repr(_CHECKOUT))

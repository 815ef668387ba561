"""Resource providers of sbctl: one package per kind, listed in `providers.registry`.

`providers` is a plain name that another distribution may also install; the command line checks `SBCTL_API` before it uses them.
"""

from __future__ import annotations

from typing import Final

__all__ = ["SBCTL_API"]

SBCTL_API: Final = "0.1.0"
"""Equal to `sbctl.__version__` of the sbctl that these providers were shipped with."""

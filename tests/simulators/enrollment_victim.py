"""An enrollment server that dies by SIGKILL at one line: `python -m tests.simulators.enrollment_victim LINE DIR PORT`. Lines: before-issue (the token is
burnt, nothing is issued), after-issue (issued, not remembered with the token)."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from sbctl.runtime.main import main
from sbctl.trust.authority import Authority
from sbctl.trust.token_store import TokenStore


def _die(*_arguments: Any, **_words: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    line, directory, port = sys.argv[1:]
    if line == "before-issue":
        Authority.issue = _die  # type: ignore[method-assign]
    else:
        TokenStore.issued = _die  # type: ignore[method-assign]
    sys.exit(main(["authority", "--dir", directory, "--listen", f"127.0.0.1:{port}"]))

"""A node in a directory with an installed runtime, and its node interface as a process: what the control side sees, without SSH."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sbctl import __version__
from sbctl.base.errors import error_from_wire
from sbctl.node.frames import read_frame, write_frame
from sbctl.node.paths import NodePaths

__all__ = ["NodeChannelProcess", "lay_out_node"]

ROOT = Path(__file__).resolve().parents[2]


def lay_out_node(prefix: Path, lineage: str, host: str = "local") -> NodePaths:
    """A claimed host with this checkout installed as its runtime: an environment whose path leads here."""
    paths = NodePaths(prefix / "etc", prefix / "state", prefix / "cache", prefix / "opt")
    paths.etc.mkdir(parents=True)
    paths.marker.write_text(f'{{"lineage": "{lineage}", "host": "{host}"}}\n')
    home = paths.version(__version__)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True, timeout=60)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    [site] = (home / "lib").glob("python*/site-packages")
    (site / "checkout.pth").write_text("\n".join([str(ROOT), *packages]) + "\n")
    program = home / "bin" / "sbctl-runtime"
    program.write_text("import sys\nfrom sbctl.runtime.main import main\nsys.exit(main())\n")
    return paths


class NodeChannelProcess:
    """`with` ends the process. `call` raises what the host answers."""

    def __init__(self, paths: NodePaths) -> None:
        home = paths.version(__version__)
        env = {"SBCTL_NODE_PREFIX": str(paths.etc.parent), "HOME": str(paths.etc.parent), "PATH": os.environ["PATH"]}
        for name in ("SBCTL_PACKAGE_INDEX", "SSL_CERT_FILE", "SSL_CERT_DIR", "HTTPS_PROXY"):
            if name in os.environ:
                env[name] = os.environ[name]
        env["SBCTL_FETCH_ENVIRONMENT"] = "operator"
        argv = [str(home / "bin" / "python"), "-I", str(home / "bin" / "sbctl-runtime"), "node", "--stdio"]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env, cwd="/", bufsize=0
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.stdin, self.stdout = self.process.stdin, self.process.stdout
        self.hello = read_frame(self.stdout.read)
        self.progress: list[dict[str, Any]] = []
        self._number = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.stdin.closed:
            self.stdin.close()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.stdout.close()

    def send(self, method: str, params: Mapping[str, Any], secrets: Mapping[str, bytes] | None = None) -> None:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": dict(params)}
        if secrets:
            message["secrets"] = {name: base64.b64encode(value).decode() for name, value in secrets.items()}
        write_frame(self.stdin.write, message)

    def call(
        self, method: str, params: Mapping[str, Any] | None = None, secrets: Mapping[str, bytes] | None = None
    ) -> dict[str, Any]:
        self.send(method, params or {}, secrets)
        self.progress = []
        while True:
            frame = read_frame(self.stdout.read)
            assert frame is not None, "the node interface ended"
            assert frame["id"] == self._number
            if "progress" in frame:
                self.progress.append(frame["progress"])
            elif "error" in frame:
                raise error_from_wire(frame["error"])
            else:
                return dict(frame["result"])

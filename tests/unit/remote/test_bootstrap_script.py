"""What the bootstrap does to a host's disk: claims it once, gives it up whole, takes blobs only by digest, installs all or nothing."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import stat
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sbctl.base.errors import HostError, LockedError, RefusedError, SbctlError
from sbctl.base.flock import held
from sbctl.node.paths import NodePaths, node_paths
from sbctl.remote import bootstrap_script
from sbctl.remote.bootstrap import (
    FACTS,
    WORKER_PROGRAM,
    compose_command,
    compose_facts,
    compose_worker,
    new_marker,
    read_answer,
)
from sbctl.remote.transport import Completed

pytestmark = pytest.mark.flow

MINE = {"lineage": "lineage-1", "host": "gpu-a"}


@pytest.fixture
def paths() -> Iterator[NodePaths]:
    """In memory where there is room for it: what is tested here is not how fast a disk syncs."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None) as directory:
        yield node_paths(os.getuid(), {"SBCTL_NODE_PREFIX": f"{directory}/node"})


@pytest.fixture
def perform(paths: NodePaths) -> Callable[..., Mapping[str, Any]]:
    env = {"SBCTL_NODE_PREFIX": str(paths.etc.parent)}
    return lambda command, params: bootstrap_script.perform(command, params, env, os.getuid())


def _refusal(perform: Callable[..., Any], command: str, params: Mapping[str, Any]) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        perform(command, params)
    return caught.value


class TestClaim:
    def test_a_free_host_is_claimed_and_claiming_again_changes_nothing(self, paths: NodePaths, perform: Any) -> None:
        assert perform("mark", MINE) == {"marker": MINE}
        before = paths.marker.stat()
        assert perform("mark", MINE) == {"marker": MINE}
        assert paths.marker.stat().st_ino == before.st_ino
        assert json.loads(paths.marker.read_text()) == MINE

    @pytest.mark.parametrize(
        ("other", "code"),
        [
            ({"lineage": "lineage-2", "host": "gpu-a"}, "host.other_lineage"),
            ({**MINE, "host": "gpu-b"}, "host.other_host"),
        ],
    )
    def test_a_host_of_another_fleet_or_name_is_refused(
        self, paths: NodePaths, perform: Any, other: Any, code: str
    ) -> None:
        perform("mark", other)
        error = _refusal(perform, "mark", MINE)
        assert isinstance(error, RefusedError)
        assert error.code == code
        assert json.loads(paths.marker.read_text()) == other

    def test_a_damaged_marker_is_nobodys_to_overwrite(self, paths: NodePaths, perform: Any) -> None:
        perform("mark", MINE)
        paths.marker.write_text("{")
        assert _refusal(perform, "mark", MINE).code == "host.marker_damaged"
        assert paths.marker.read_text() == "{"

    def test_two_operators_cannot_claim_at_once(self, paths: NodePaths, perform: Any) -> None:
        paths.etc.mkdir(parents=True)
        with held(paths.etc / "marker.lock"):
            assert isinstance(_refusal(perform, "mark", MINE), LockedError)
        assert not paths.marker.exists()


class TestGiveUp:
    def _fill(self, paths: NodePaths, perform: Any) -> None:
        perform("mark", MINE)
        for file in (
            paths.models / "m/blob",
            paths.cache / "other/x",
            paths.state / "logs/x",
            paths.opt / "engines/e/x",
        ):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()

    def test_nothing_of_ours_is_left(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        assert perform("unmark", {"lineage": "lineage-1"}) == {}
        assert not paths.etc.parent.exists()

    def test_weights_stay_when_asked_for(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        perform("unmark", {"lineage": "lineage-1", "keep_weights": True})
        assert [
            path.relative_to(paths.etc.parent).as_posix() for path in paths.etc.parent.rglob("*") if path.is_file()
        ] == ["cache/models/m/blob"]

    def test_the_operators_own_cache_beside_it_is_not_ours_to_remove(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        (paths.cache / "operator/wheels").mkdir(parents=True)
        perform("unmark", {"lineage": "lineage-1"})
        assert sorted(os.listdir(paths.cache)) == ["operator"]

    def test_a_host_of_another_fleet_is_left_alone(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        assert _refusal(perform, "unmark", {"lineage": "lineage-2"}).code == "host.other_lineage"
        assert paths.marker.exists()

    def test_a_host_with_a_runtime_is_refused(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        (paths.version("0.1.0") / "bin").mkdir(parents=True)
        (paths.version("0.1.0") / "bin/sbctl-runtime").touch()
        assert _refusal(perform, "unmark", {"lineage": "lineage-1"}).code == "host.not_empty"
        assert paths.marker.exists()

    def test_giving_up_twice_is_giving_up_once(self, paths: NodePaths, perform: Any) -> None:
        self._fill(paths, perform)
        for _ in range(2):
            assert perform("unmark", {"lineage": "lineage-1"}) == {}


class TestBlobs:
    CONTENT = b"weights"
    DIGEST = hashlib.sha256(CONTENT).hexdigest()

    def _begin(self, perform: Any) -> Path:
        begun = perform("blob_begin", {"sha256": self.DIGEST, "size_bytes": len(self.CONTENT)})
        assert begun["complete"] is False
        return Path(begun["part"])

    def _finish(self, perform: Any) -> Any:
        return perform("blob_finish", {"sha256": self.DIGEST, "size_bytes": len(self.CONTENT)})

    def test_a_verified_upload_gets_its_name_and_is_not_asked_for_again(self, paths: NodePaths, perform: Any) -> None:
        self._begin(perform).write_bytes(self.CONTENT)
        assert self._finish(perform) == {"path": str(paths.blobs / self.DIGEST)}
        assert (paths.blobs / self.DIGEST).read_bytes() == self.CONTENT
        assert perform("blob_begin", {"sha256": self.DIGEST, "size_bytes": len(self.CONTENT)})["complete"] is True

    @pytest.mark.parametrize("content", [b"", b"weight", b"weightS", b"weights "])
    def test_other_bytes_are_removed_and_never_named(self, paths: NodePaths, perform: Any, content: bytes) -> None:
        part = self._begin(perform)
        part.write_bytes(content)
        with pytest.raises(HostError) as caught:
            self._finish(perform)
        assert caught.value.code == "put.digest_mismatch"
        assert os.listdir(paths.blobs) == []

    def test_E9_only_we_can_enter_the_directory_that_uploads_go_to(self, paths: NodePaths, perform: Any) -> None:
        self._begin(perform)
        assert stat.S_IMODE(paths.staging.stat().st_mode) == 0o700
        assert stat.S_IMODE(paths.blobs.stat().st_mode) == 0o700

    def test_E9_a_symbolic_link_in_place_of_the_upload_is_refused(
        self, paths: NodePaths, perform: Any, tmp_path: Path
    ) -> None:
        (tmp_path / "elsewhere").write_bytes(self.CONTENT)
        self._begin(perform).symlink_to(tmp_path / "elsewhere")
        assert _refusal(perform, "blob_finish", {"sha256": self.DIGEST, "size_bytes": 7}).code == "disk.symlink_refused"
        assert not (paths.blobs / self.DIGEST).exists()

    def test_E10_what_cannot_fit_is_refused_before_a_byte_is_sent(self, perform: Any) -> None:
        error = _refusal(perform, "blob_begin", {"sha256": self.DIGEST, "size_bytes": 2**62})
        assert error.code == "disk.full"
        assert error.next_step

    @pytest.mark.parametrize("digest", ["../../etc/passwd", "A" * 64, "a" * 63, "", "a" * 64 + "\n"])
    def test_a_name_that_is_no_digest_is_refused(self, perform: Any, digest: str) -> None:
        assert _refusal(perform, "blob_begin", {"sha256": digest, "size_bytes": 1}).code == "put.invalid"


def _wheel(name: str, members: Mapping[str, bytes | tuple[bytes, int]]) -> tuple[str, bytes]:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, content in members.items():
            data, mode = content if isinstance(content, tuple) else (content, 0o100644)
            member = zipfile.ZipInfo(path)
            member.external_attr = mode << 16
            archive.writestr(member, data)
    return name, buffer.getvalue()


def _runtime_wheel(version: str, says: str | None = None) -> tuple[str, bytes]:
    module = f"def main():\n    print('sbctl-runtime {says or version}')\n"
    info = f"fake_runtime-{version}.dist-info"
    members = {
        "fake_runtime.py": module.encode(),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: fake-runtime\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": b"[console_scripts]\nsbctl-runtime = fake_runtime:main\n",
    }
    record = "".join(f"{name},,\n" for name in members) + f"{info}/RECORD,,\n"
    return _wheel(f"fake_runtime-{version}-py3-none-any.whl", {**members, f"{info}/RECORD": record.encode()})


@pytest.fixture(scope="session")
def uv_wheel() -> tuple[str, bytes]:
    program = Path(sys.executable).with_name("uv").read_bytes()
    return _wheel("uv-9.9.9-py3-none-any.whl", {"uv-9.9.9.data/scripts/uv": (program, 0o100755)})


class TestInstall:
    def _put(self, perform: Any, wheel: tuple[str, bytes], digest: str | None = None) -> dict[str, str]:
        name, content = wheel
        sha256 = hashlib.sha256(content).hexdigest()
        begun = perform("blob_begin", {"sha256": sha256, "size_bytes": len(content)})
        if not begun["complete"]:
            Path(begun["part"]).write_bytes(content)
            perform("blob_finish", {"sha256": sha256, "size_bytes": len(content)})
        return {"filename": name, "sha256": digest or sha256}

    def _install(self, perform: Any, uv: tuple[str, bytes], wheel: tuple[str, bytes], version: str = "1.2.3") -> Any:
        listed = self._put(perform, wheel)
        params = {"version": version, "python": sys.executable, "uv": self._put(perform, uv), "wheels": [listed]}
        return perform("install", params)

    def test_an_installation_runs_names_its_version_and_uses_up_what_was_sent(
        self, paths: NodePaths, perform: Any, uv_wheel: Any
    ) -> None:
        wheel = _runtime_wheel("1.2.3")
        assert self._install(perform, uv_wheel, wheel) == {"path": str(paths.version("1.2.3")), "installed": True}
        assert os.listdir(paths.opt) == ["1.2.3"]
        assert os.listdir(paths.blobs) == []
        program = [paths.version("1.2.3") / "bin/python", "-I", paths.version("1.2.3") / "bin/sbctl-runtime"]
        assert subprocess.run(program, capture_output=True, check=True, text=True).stdout == "sbctl-runtime 1.2.3\n"
        assert self._install(perform, uv_wheel, wheel)["installed"] is False
        broken = paths.version("1.2.3") / "lib"
        broken.rename(paths.version("1.2.3") / "lib-gone")
        assert self._install(perform, uv_wheel, wheel)["installed"] is True

    @pytest.mark.parametrize(
        ("wheel", "version", "code"),
        [
            (_runtime_wheel("1.2.3", "0.0.1"), "1.2.3", "runtime.install_failed"),
            (_wheel("fake_runtime-1.2.3-py3-none-any.whl", {}), "1.2.3", "runtime.install_failed"),
            (_wheel("nonsense.whl", {}), "1.2.3", "runtime.install_failed"),
            (_runtime_wheel("1.2.3"), "../1.2.3", "runtime.install_failed"),
        ],
        ids=["another version", "no runtime in it", "no wheel", "no version"],
    )
    def test_a_failure_leaves_no_directory(
        self, paths: NodePaths, perform: Any, uv_wheel: Any, wheel: Any, version: str, code: str
    ) -> None:
        with pytest.raises(SbctlError) as caught:
            self._install(perform, uv_wheel, wheel, version)
        assert caught.value.code == code
        assert not paths.opt.exists() or os.listdir(paths.opt) == []

    def test_F23_what_a_killed_installation_left_is_removed_by_the_next(
        self, paths: NodePaths, perform: Any, uv_wheel: Any
    ) -> None:
        left = paths.opt / ".sbctl-tmp-0123456789abcdef"
        (left / "environment").mkdir(parents=True)
        self._install(perform, uv_wheel, _runtime_wheel("1.2.3"))
        assert os.listdir(paths.opt) == ["1.2.3"]

    def test_an_installation_that_still_runs_is_waited_for(self, paths: NodePaths, perform: Any, uv_wheel: Any) -> None:
        paths.state.mkdir(parents=True)
        left = paths.opt / ".sbctl-tmp-0123456789abcdef"
        left.mkdir(parents=True)
        with held(paths.install_lock):
            error = _refusal(perform, "install", {"version": "1.2.3", "deadline_s": 0})
        assert (error.code, error.retryable) == ("host.locked", True)
        assert left.is_dir()

    def test_E10_a_disk_that_fills_up_is_named_though_a_write_names_no_file(
        self, paths: NodePaths, perform: Any, uv_wheel: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def full(*_args: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr("shutil.copyfileobj", full)
        with pytest.raises(SbctlError) as caught:
            self._install(perform, uv_wheel, _runtime_wheel("1.2.3"))
        assert (caught.value.code, caught.value.place) == ("disk.full", str(paths.opt))
        assert os.listdir(paths.opt) == []

    def test_a_wheel_that_was_not_sent_is_named(self, paths: NodePaths, perform: Any, uv_wheel: Any) -> None:
        absent = {"filename": "fake_runtime-1.2.3-py3-none-any.whl", "sha256": "0" * 64}
        params = {"version": "1.2.3", "python": sys.executable, "uv": self._put(perform, uv_wheel), "wheels": [absent]}
        error = _refusal(perform, "install", params)
        assert error.code == "put.missing"
        assert "fake_runtime" in error.message

    @pytest.mark.parametrize(
        "members",
        [
            {},
            {"uv-1.data/scripts/uvx": b"x"},
            {"../uv-1.data/scripts/uv": b"x"},
            {"uv-1.data/scripts/uv": (b"/bin/sh", 0o120777)},
            {"uv-1.data/scripts/uv": b"x", "uv-2.data/scripts/uv": b"y"},
        ],
        ids=["empty", "another program", "outside", "a link", "two"],
    )
    def test_a_wheel_without_exactly_one_plain_uv_is_refused_and_runs_nothing(
        self, paths: NodePaths, perform: Any, members: Any
    ) -> None:
        with pytest.raises(HostError) as caught:
            self._install(perform, _wheel("uv-1-py3-none-any.whl", members), _runtime_wheel("1.2.3"))
        assert caught.value.code == "runtime.install_failed"
        assert os.listdir(paths.opt) == []

    def test_a_blob_that_changed_after_it_was_verified_is_not_run(
        self, paths: NodePaths, perform: Any, uv_wheel: Any
    ) -> None:
        listed, uv = self._put(perform, _runtime_wheel("1.2.3")), self._put(perform, uv_wheel)
        blob = paths.blobs / uv["sha256"]
        blob.chmod(0o644)
        with blob.open("r+b") as file:
            file.write(b"XX")
        params = {"version": "1.2.3", "python": sys.executable, "uv": uv, "wheels": [listed]}
        assert _refusal(perform, "install", params).code == "put.digest_mismatch"


class TestText:
    """The same commands as text on the standard input of an interpreter that knows nothing of us."""

    def _run(self, paths: NodePaths, command: str, params: Mapping[str, Any], noise: bytes = b"") -> Mapping[str, Any]:
        marker = new_marker()
        argv, text = ["-I", "-"], compose_facts(params, marker)
        if command != FACTS:
            argv, text = ["-I", "-c", WORKER_PROGRAM], compose_worker(marker) + compose_command(command, params)
        done = subprocess.run(
            [sys.executable, *argv],
            input=text,
            capture_output=True,
            env={"SBCTL_NODE_PREFIX": str(paths.etc.parent), "PATH": "/usr/bin:/bin", "LC_ALL": "C"},
            check=False,
        )
        return read_answer(Completed(done.returncode, noise + done.stdout, done.stderr), marker, place="gpu-a")

    def test_facts_and_commands_answer_behind_the_marker_whatever_a_shell_prints_before(self, paths: NodePaths) -> None:
        told = self._run(paths, FACTS, {}, noise=b"Welcome!\n{}\nno newline at the end")
        assert told["paths"]["etc"] == str(paths.etc)
        assert self._run(paths, "mark", MINE) == {"marker": MINE}
        assert self._run(paths, FACTS, {})["marker"] == MINE

    def test_errors_keep_their_family_and_name_the_host(self, paths: NodePaths) -> None:
        self._run(paths, "mark", {**MINE, "lineage": "lineage-2"})
        with pytest.raises(RefusedError) as caught:
            self._run(paths, "mark", MINE)
        assert caught.value.code == "host.other_lineage"
        assert (caught.value.place or "").startswith("gpu-a: ")

    @pytest.mark.parametrize("value", ["ü–\u202e", "'\"\\\n$(id)`", '"""', "{sources}"])
    def test_any_text_in_a_parameter_arrives_as_it_is(self, paths: NodePaths, value: str) -> None:
        assert self._run(paths, "mark", {"lineage": value, "host": "h"})["marker"]["lineage"] == value

    def test_a_fault_of_the_script_is_an_answer_not_a_silence(self, paths: NodePaths) -> None:
        with pytest.raises(HostError) as caught:
            self._run(paths, "no such command", {})
        assert caught.value.code == "host.bootstrap_failed"

    @pytest.mark.parametrize(
        ("done", "code"),
        [
            (Completed(127, b"", b"sh: python3: not found"), "host.no_python"),
            (Completed(1, b"", b"SyntaxError: invalid syntax"), "host.bootstrap_failed"),
            (Completed(0, b"This account is disabled.\n", b""), "remote.lost"),
        ],
    )
    def test_a_host_that_runs_no_python_says_why(self, done: Completed, code: str) -> None:
        with pytest.raises(SbctlError) as caught:
            read_answer(done, new_marker(), place="gpu-a")
        assert caught.value.code == code

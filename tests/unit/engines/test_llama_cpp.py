"""The command line of llama.cpp: everything that surprises is written out; what a program does not know is left out or refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sbctl.artifacts.model import ArtifactFacts, ArtifactFile, artifact_id
from sbctl.base.errors import EngineError
from sbctl.engines import llama_wheel_launcher as launcher
from sbctl.engines.llama_cpp import default_threads, weight_file
from sbctl.engines.model import Adapter, EngineAddress, EngineBuild, LaunchSpec
from tests.simulators.llama_launches import launch_spec

WHEEL = EngineBuild("llama_cpp", "wheel", "1", ("/e/bin/python", "-I", "/e/launcher.py"), Path("/e"))
BINARY = EngineBuild("llama_cpp", "binary", "b1", ("/usr/bin/llama-server",), Path("/usr/bin/llama-server"), ours=False)
SOCKET = EngineAddress(unix_path=Path("/run/e.sock"))
ENVIRON = {
    "HOME": "/root",
    "PATH": "/evil",
    "LD_PRELOAD": "/evil.so",
    "LD_LIBRARY_PATH": "/opt/cuda",
    "LLAMA_ARG_HOST": "0.0.0.0",
    "LLAMA_API_KEY": "x",
    "CUDA_INJECTION64_PATH": "/evil.so",
    "PYTHONPATH": "/evil",
    "TZ": "UTC",
}


def spec(build: EngineBuild = WHEEL, address: EngineAddress = SOCKET, **changes: object) -> LaunchSpec:
    arguments = {
        "alias": "chat",
        "context_length": 1024,
        "slots": 4,
        "physical_cores": 8,
        "environ": ENVIRON,
        **changes,
    }
    return launch_spec(build, weights=Path("/m/w.gguf"), address=address, **arguments)


def test_the_whole_command_line() -> None:
    assert spec().argv == (
        *("/e/bin/python", "-I", "/e/launcher.py"),
        *("--model", "/m/w.gguf", "--alias", "chat", "--host", "/run/e.sock"),
        *("--ctx-size", "4096", "--parallel", "4", "--no-kv-unified"),
        *("--threads", "7", "--threads-batch", "7", "--threads-http", "8"),
        *("--batch-size", "2048", "--ubatch-size", "512", "--n-gpu-layers", "0"),
        *("--flash-attn", "auto", "--load-mode", "auto", "--fit", "off", "--cache-ram", "0"),
        *("--ctx-checkpoints", "4"),
        *("--no-context-shift", "--offline", "--no-ui", "--warmup", "--metrics", "--slots"),
    )


def test_a_loopback_port_is_named_with_its_host() -> None:
    argv = spec(BINARY, EngineAddress(port=4711)).argv
    assert argv[argv.index("--host") + 1] == "127.0.0.1"
    assert argv[argv.index("--port") + 1] == "4711"


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (3, 2), (64, 63)])
def test_one_core_stays_free(cores: int, threads: int) -> None:
    assert default_threads(cores) == threads


@pytest.mark.parametrize(
    ("extra", "flag", "value"),
    [
        (["--threads", "3"], "--threads", "3"),
        (["--threads=3"], "--threads-batch", "3"),
        (["--batch-size", "64"], "--batch-size", "64"),
        (["--ubatch-size=32"], "--ubatch-size", "32"),
        (["--seed", "7"], "--seed", "7"),
        (["--flash-attn"], "--flash-attn", "on"),
        (["--no-mmap"], "--load-mode", "none"),
        (["--mlock"], "--load-mode", "mmap+mlock"),
        (["--mlock", "--no-mmap"], "--load-mode", "mlock"),
    ],
)
def test_an_extra_argument_takes_the_place_of_a_default(extra: list[str], flag: str, value: str) -> None:
    argv = spec(threads=2, extra_args=extra).argv
    assert argv.count(flag) == 1
    assert argv[argv.index(flag) + 1] == value


def test_what_is_not_listed_is_refused_at_launch_too() -> None:
    with pytest.raises(EngineError) as caught:
        spec(extra_args=["--host=0.0.0.0"])
    assert caught.value.code == "engine.unsafe_argument"


def test_the_environment_is_built_from_empty() -> None:
    assert set(spec().env) == {"PATH", "HOME", "TZ"}
    assert spec().env["PATH"].startswith("/usr/local/sbin")
    assert set(spec(BINARY).env) == {"PATH", "HOME", "TZ", "LD_LIBRARY_PATH"}


OLD = frozenset(
    {"--model", "--host", "--port", "--ctx-size", "--parallel", "--threads", "--no-mmap", "--mlock", "--no-webui"}
)


@pytest.mark.parametrize(("extra", "expected"), [([], []), (["--no-mmap"], ["--no-mmap"]), (["--mlock"], ["--mlock"])])
def test_an_older_program_gets_the_flags_it_knows(extra: list[str], expected: list[str]) -> None:
    build = EngineBuild("llama_cpp", "binary", "b1", ("/s",), Path("/s"), known_flags=OLD)
    argv = spec(build, EngineAddress(port=1), extra_args=extra).argv
    assert {argument for argument in argv if argument.startswith("--")} <= OLD
    assert "--no-webui" in argv
    assert [flag for flag in argv if flag in ("--no-mmap", "--mlock")] == expected


def test_a_program_without_the_needed_flags_is_incompatible() -> None:
    build = EngineBuild("llama_cpp", "binary", "b1", ("/s",), Path("/s"), known_flags=frozenset({"--model"}))
    with pytest.raises(EngineError) as caught:
        spec(build, EngineAddress(port=1))
    assert caught.value.code == "engine.incompatible"
    assert "--parallel" in caught.value.message


def test_the_launcher_maps_every_flag_that_is_written() -> None:
    argv = spec(extra_args=["--seed", "1", "--mlock", "--flash-attn"]).argv[3:]
    given = launcher.read_arguments(argv)
    assert given["--ctx-size"] == 4096
    assert given["--load-mode"] == "mmap+mlock"


LISTED = ["--model", "m", "--host", "/e.sock", "--ctx-size", "1", "--parallel", "1", "--threads", "1"]


@pytest.mark.parametrize(
    ("more", "part"),
    [
        (["--api-key", "x"], "not a flag"),
        (["-m", "x"], "not a flag"),
        (["--ctx", "1"], "not a flag"),
        (["--metrics=1"], "takes no value"),
        (["--port"], "needs a value"),
        (["--port", "x"], "whole number"),
        (["--port", "-1"], "whole number"),
        (["--fit", "maybe"], "one of on, off"),
        (["--threads", "2"], "given twice"),
        (["m"], "not a flag"),
    ],
)
def test_the_launcher_refuses_the_rest_in_a_sentence(more: list[str], part: str) -> None:
    with pytest.raises(launcher.Refused, match=part):
        launcher.read_arguments([*LISTED, *more])


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost", "", "[::1]", "10.0.0.1", "e.sock", "/e"])
def test_the_launcher_listens_on_a_socket_or_loopback_only(host: str) -> None:
    with pytest.raises(launcher.Refused, match="--host"):
        launcher.read_arguments(["--model", "m", "--host", host, *LISTED[4:]])


def test_the_launcher_exits_64_before_it_loads_anything() -> None:
    with pytest.raises(SystemExit) as caught:
        launcher.main(["--nope"])
    assert caught.value.code == 64


def test_a_socket_has_a_name_that_llama_cpp_takes_for_one() -> None:
    with pytest.raises(ValueError, match="for a socket only"):
        spec(WHEEL, EngineAddress(unix_path=Path("/run/e")))


def test_an_address_is_one_of_the_two() -> None:
    for arguments in (
        {},
        {"unix_path": Path("/e.sock"), "port": 1},
        {"unix_path": Path("/" + "x" * 103 + ".sock")},
    ):
        with pytest.raises(ValueError, match="socket"):
            EngineAddress(**arguments)  # type: ignore[arg-type]


def facts(*paths: str, format_name: str = "gguf") -> ArtifactFacts:
    files = tuple(ArtifactFile(path=path, sha256="1" * 64, size_bytes=1) for path in paths)
    return ArtifactFacts(
        artifact=artifact_id(format_name, files),
        format=format_name,  # type: ignore[arg-type]
        files=files,
        source="file:/x",
        model="m",
        variant="v",
        context_length=1,
    )


@pytest.mark.parametrize(
    ("paths", "expected"),
    [
        (["w.gguf"], "w.gguf"),
        (["a/w.gguf", "config.json"], "a/w.gguf"),
        (["w-00002-of-00002.gguf", "w-00001-of-00002.gguf"], "w-00001-of-00002.gguf"),
    ],
)
def test_which_file_is_the_model(paths: list[str], expected: str) -> None:
    assert weight_file(facts(*paths)) == expected


@pytest.mark.parametrize(
    "paths",
    [
        ["config.json"],
        ["a.gguf", "b.gguf"],
        ["w-00001-of-00002.gguf"],
        ["w-00001-of-00002.gguf", "v-00002-of-00002.gguf"],
        ["w-00001-of-00002.gguf", "x.gguf"],
    ],
)
def test_weights_that_do_not_make_one_model_are_refused(paths: list[str]) -> None:
    with pytest.raises(EngineError) as caught:
        weight_file(facts(*paths))
    assert caught.value.code == "engine.artifact_unusable"


@pytest.mark.parametrize("slots", [1, 7])
def test_fault_24_slots_are_always_set_and_share_nothing(slots: int) -> None:
    argv = spec(slots=slots, context_length=512).argv
    assert argv[argv.index("--parallel") + 1] == str(slots)
    assert argv[argv.index("--ctx-size") + 1] == str(512 * slots)
    assert "--no-kv-unified" in argv
    assert "--kv-unified" not in argv


@pytest.mark.parametrize("address", [EngineAddress(port=4711), EngineAddress(unix_path=Path("/run/e.sock"))])
def test_fault_34_the_address_is_always_written_out(address: EngineAddress) -> None:
    argv = spec(BINARY, address).argv
    host = argv[argv.index("--host") + 1]
    assert host == ("127.0.0.1" if address.port else "/run/e.sock")
    assert ("--port" in argv) == (address.port is not None)


@pytest.mark.flow
def test_fault_31_the_runtime_loads_no_compute_library() -> None:
    code = (
        "import sys, sbctl.runtime.daemon, sbctl.runtime.node_provisioner;"
        "print([name for name in ('torch', 'xllamacpp', 'pynvml', 'cupy', 'numpy') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_adapters_are_named_with_their_strength() -> None:
    argv = spec(adapters=(Adapter(Path("/w/a.gguf"), 0.5), Adapter(Path("/w/b.gguf"), 1.0))).argv
    assert argv[argv.index("--lora-scaled") + 1] == "/w/a.gguf:0.5,/w/b.gguf:1"
    with pytest.raises(EngineError) as caught:
        spec(adapters=(Adapter(Path("/w:x/a.gguf"), 1.0),))
    assert caught.value.code == "engine.artifact_unusable"


@pytest.mark.parametrize(("mode", "flag"), [("embedding", "--embeddings"), ("rerank", "--rerank")])
def test_a_text_for_a_vector_or_a_score_is_computed_in_one_piece(mode: str, flag: str) -> None:
    argv = spec(mode=mode, context_length=4096, slots=2, extra_args=["--pooling", "cls"]).argv
    assert flag in argv
    assert [argv[argv.index(name) + 1] for name in ("--batch-size", "--ubatch-size", "--pooling")] == [
        "4096",
        "4096",
        "cls",
    ]
    old = EngineBuild("llama_cpp", "binary", "b1", ("/s",), Path("/s"), known_flags=OLD)
    with pytest.raises(EngineError, match="the deployment needs it"):
        spec(old, EngineAddress(port=1), mode=mode)


@pytest.mark.parametrize(
    ("devices", "placed", "taken"),
    [
        ((), ["--n-gpu-layers", "999"], ("all",)),
        (("0",), ["--n-gpu-layers", "999"], ("0",)),
        (("0", "1"), ["--n-gpu-layers", "999", "--split-mode", "row", "--tensor-split", "1,1"], ("0", "1")),
    ],
)
def test_a_build_for_cuda_gets_its_devices(devices: tuple[str, ...], placed: list[str], taken: tuple[str, ...]) -> None:
    build = EngineBuild("llama_cpp", "binary", "b9905", ("/s",), Path("/s"), acceleration="cuda")
    made = spec(build, EngineAddress(port=1), devices=devices)
    start = made.argv.index("--n-gpu-layers")
    assert list(made.argv[start : start + len(placed)]) == placed
    assert made.env.get("CUDA_VISIBLE_DEVICES") == (",".join(devices) or None)
    assert made.devices == taken


def test_a_vulkan_build_is_split_over_all_that_there_is_in_equal_parts() -> None:
    build = EngineBuild("llama_cpp", "binary", "b9905", ("/s",), Path("/s"), acceleration="vulkan")
    argv = spec(build, EngineAddress(port=1), devices=("GPU-a", "GPU-b")).argv
    assert [argv[argv.index(flag) + 1] for flag in ("--split-mode", "--tensor-split")] == ["layer", "1,1"]
    assert "CUDA_VISIBLE_DEVICES" not in spec(build, EngineAddress(port=1), devices=("GPU-a",)).env

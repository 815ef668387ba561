"""What the launcher admits: exactly what our own runtime asks for, and nothing beside it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError, RefusedError, SbctlError
from sbctl.engines.model import Adapter, EngineAddress, EngineBuild
from sbctl.runtime.launcher.properties import Machine, start_command, unit_properties
from sbctl.runtime.launcher.site import engine_socket, read_site, site_document
from sbctl.runtime.launcher.spec import EngineSpec, machine_bytes, read_spec, token_of
from sbctl.runtime.launcher.trusted_path import why_untrusted
from tests.simulators.llama_launches import launch_spec
from tests.simulators.unit_world import TOKEN, Place, binary_request, make_place, short_directory, wheel_request

Edit = Callable[[dict[str, Any], Place], None]
MACHINE = Machine(252)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with short_directory() as root:
        yield make_place(root)


def admitted(document: object, place: Place) -> EngineSpec:
    return read_spec(document, place.site, sockets=place.sockets, owner=os.geteuid())


def argument(flag: str, value: str) -> Edit:
    def edit(document: dict[str, Any], _place: Place) -> None:
        argv = document["argv"]
        if flag in argv:
            argv[argv.index(flag) + 1] = value
        else:
            argv += [flag, value]

    return edit


def field(name: str, value: Any) -> Edit:
    return lambda document, _place: document.update({name: value})


def word(position: int, value: str) -> Edit:
    return lambda document, _place: document["argv"].__setitem__(position, value)


def program_inside(*parts: str) -> Edit:
    return lambda document, place: document["argv"].__setitem__(0, str(place.site.engines.joinpath(*parts)))


def without(*flags: str) -> Edit:
    def edit(document: dict[str, Any], _place: Place) -> None:
        for flag in flags:
            at = document["argv"].index(flag)
            del document["argv"][at : at + 2]

    return edit


def on_devices(devices: str, split: str = "") -> Edit:
    def edit(document: dict[str, Any], place: Place) -> None:
        document["env"]["CUDA_VISIBLE_DEVICES"] = devices
        if split:
            argument("--tensor-split", split)(document, place)

    return edit


HOSTILE: dict[str, Edit] = {
    "devices by their numbers": on_devices("0,1", "1,1"),
    "no device": on_devices(""),
    "a device twice": on_devices("GPU-a,GPU-a", "1,1"),
    "more devices than parts": on_devices("GPU-a,GPU-b"),
    "fewer devices than parts": on_devices("GPU-a", "1,1"),
    "another program": word(0, "/bin/sh"),
    "a relative program": word(0, "bin/python"),
    "a program beside the engines": program_inside("..", "bin", "llama-server"),
    "a program above a version": program_inside("llama_cpp", "bin", "python"),
    "another file of the engine": program_inside("llama_cpp", "9.9", "bin", "python3"),
    "a version that climbs": program_inside("llama_cpp", "..", "bin", "python"),
    "another script": word(3, "/tmp/evil.py"),
    "python without isolation": word(1, "-c"),
    "python with code": word(2, "-c"),
    "a flag that is not listed": argument("--chat-template-file", "/etc/shadow"),
    "a lora": argument("--lora", "/tmp/x"),
    "an api key": argument("--api-key", "x"),
    "tools": argument("--tools", "all"),
    "listening everywhere": argument("--host", "0.0.0.0"),
    "another engine's socket": argument("--host", "/run/sbctl/engines/ffffffffffffffff/engine.sock"),
    "weights from elsewhere": argument("--model", "/etc/passwd.gguf"),
    "weights by climbing": lambda document, place: argument("--model", f"{place.site.weights[0]}/../x.gguf")(
        document, place
    ),
    "weights that are no weights": lambda document, place: argument("--model", f"{place.site.weights[0]}/x.py")(
        document, place
    ),
    "another alias": argument("--alias", "other"),
    "a flag twice": lambda document, _place: document["argv"].extend(["--threads", "2"]),
    "a flag without its value": lambda document, _place: document["argv"].append("--seed"),
    "a number that is none": argument("--ctx-size", "-1"),
    "too many threads": argument("--threads", "5000"),
    "a flag that must be there": without("--host"),
    "a flag glued to its value": lambda document, _place: document["argv"].append("--seed=1"),
    "a newline": argument("--alias", "chat\nExecStartPre=/bin/sh"),
    "a specifier": argument("--alias", "%h"),
    "an expansion": argument("--alias", "$HOME"),
    "a space": argument("--alias", "a b"),
    "a quote": argument("--alias", 'a"b'),
    "a backslash": argument("--alias", "a\\x20b"),
    "a semicolon": argument("--alias", ";"),
    "no words": field("argv", []),
    "a word that is a number": field("argv", [1]),
    "too many words": field("argv", ["x"] * 300),
    "a preload": field("env", {"LD_PRELOAD": "/tmp/x.so"}),
    "libraries from elsewhere": field("env", {"LD_LIBRARY_PATH": "/tmp"}),
    "a llama setting by environment": field("env", {"LLAMA_ARG_HOST": "0.0.0.0"}),
    "an environment with a newline": field("env", {"LANG": "C\nX=1"}),
    "a path of its own": field("env", {"PATH": "/tmp"}),
    "an environment that is a list": field("env", ["LANG=C"]),
    "an environment of numbers": field("env", {"LANG": 1}),
    "a deployment with a slash": field("deployment", "../x"),
    "a deployment with a newline": field("deployment", "chat\n"),
    "no deployment": field("deployment", ""),
    "a token with capitals": field("token", "0123456789ABCDEF"),
    "a short token": field("token", "abc"),
    "a token that climbs": field("token", "../../../../../x"),
    "a generation that is text": field("generation", "1"),
    "a generation that is true": field("generation", True),
    "a negative replica": field("replica", -1),
    "two addresses": field("port", 4000),
    "no address": field("unix_path", None),
    "a socket elsewhere": field("unix_path", "/run/sbctl/launcher.sock"),
    "too little memory": field("memory_bytes", 1),
    "more memory than the machine has": field("memory_bytes", 2**50),
    "memory that is true": field("memory_bytes", True),
    "a field more": field("user", "root"),
    "a property": field("properties", ["User=root"]),
}


def test_what_our_runtime_asks_for_is_admitted(place: Place) -> None:
    spec = admitted(wheel_request(place), place)
    assert spec.unit == f"sbctl-engine-chat-g1-r0-{TOKEN}.service"
    assert token_of(spec.unit) == TOKEN
    assert set(spec.env) == {"LANG", "PATH", "HOME", "TMPDIR"}
    assert admitted(binary_request(place), place).kind == "binary"


@pytest.mark.parametrize("launch", ["wheel", "binary", "release"])
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"extra_args": ("--seed", "7", "--mlock", "--flash-attn")},
        {"extra_args": ("--threads=3", "--no-mmap", "--batch-size", "64"), "kv_quant": "int8"},
        {"mode": "embedding", "extra_args": ("--pooling", "mean")},
        {"mode": "rerank"},
        {"adapters": 2},
    ],
)
def test_every_command_line_that_we_write_is_admitted(place: Place, launch: str, more: dict[str, Any]) -> None:
    prefix: tuple[str, ...] = (str(place.program),)
    if launch == "wheel":
        prefix = (str(place.home / "bin" / "python"), "-I", "-B", str(place.home / "llama_wheel_launcher.py"))
    elif launch == "release":
        (place.home / "bin" / "llama-server").write_text("")
        prefix = (str(place.home / "bin" / "llama-server"),)
    root = place.site.weights[0] / "snapshots"
    adapters = tuple(Adapter(root / f"{number}.gguf", number / 2) for number in range(more.get("adapters", 0)))
    build = EngineBuild("llama_cpp", "wheel" if launch == "wheel" else "binary", "b9905", prefix, place.home)
    behind_socket = launch != "binary"
    spec = launch_spec(
        build,
        weights=root / "x" / "m.gguf",
        address=EngineAddress(unix_path=engine_socket(TOKEN, place.sockets))
        if behind_socket
        else EngineAddress(port=4000),
        alias="chat",
        context_length=4096,
        slots=4,
        physical_cores=4,
        environ={"LANG": "C"},
        **{**more, "adapters": adapters},
    )
    asked = wheel_request(place) if behind_socket else binary_request(place)
    found = admitted({**asked, "argv": list(spec.argv)}, place)
    assert found.argv == spec.argv
    assert found.kind == ("wheel" if launch == "wheel" else "binary")


def test_an_adapter_from_elsewhere_is_refused(place: Place) -> None:
    for value in (
        "/etc/x.gguf:1",
        f"{place.site.weights[0]}/x.gguf",
        f"{place.site.weights[0]}/x.gguf:nan",
        "x.gguf:1",
    ):
        document = wheel_request(place)
        argument("--lora-scaled", value)(document, place)
        with pytest.raises(RefusedError, match="lora-scaled"):
            admitted(document, place)


@pytest.mark.parametrize("edit", HOSTILE.values(), ids=HOSTILE)
def test_F21_a_hostile_request_is_refused(place: Place, edit: Edit) -> None:
    document = wheel_request(place)
    edit(document, place)
    with pytest.raises(RefusedError) as caught:
        admitted(document, place)
    assert caught.value.code == "launcher.refused"


@pytest.mark.parametrize("port", [0, 22, 65_536, "4000", None, True])
def test_F21_a_port_is_one_that_anybody_may_have(place: Place, port: Any) -> None:
    with pytest.raises(RefusedError):
        admitted({**binary_request(place), "port": port}, place)


@pytest.mark.parametrize("document", [None, [], "x", {}, {"argv": ["/bin/sh"]}])
def test_a_request_of_another_shape_is_refused(place: Place, document: object) -> None:
    with pytest.raises(RefusedError):
        admitted(document, place)


@pytest.mark.parametrize(
    "unit", ["ssh.service", "sbctl-engine-x.service", "sbctl-engine-a-g1-r0-0123456789abcdef.service\n", "--all", ""]
)
def test_only_engine_units_have_a_token(unit: str) -> None:
    with pytest.raises(RefusedError):
        token_of(unit)


@given(st.text(), st.sampled_from(["argv", "deployment", "env", "token", "unix_path"]))
def test_nothing_that_systemd_reads_otherwise_reaches_it(place: Place, text: str, where: str) -> None:
    document = wheel_request(place)
    if where == "argv":
        document["argv"] = [*document["argv"], "--alias", text]  # type: ignore[misc]
    else:
        document[where] = {"LANG": text} if where == "env" else text
    try:
        command = start_command(admitted(document, place), MACHINE, "systemd-run")
    except RefusedError:
        return
    assert not any(char in part for part in command for char in "\n\r\0%$\"\\'")


@pytest.mark.parametrize(
    ("machine", "present", "absent"),
    [
        (
            MACHINE,
            {"PrivateNetwork=yes", "PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "ProtectProc=invisible"},
            {"IPAddressDeny=any"},
        ),
        (
            Machine(252, ("/dev/dri/renderD128",), ("render",)),
            {"DevicePolicy=closed", "DeviceAllow=/dev/dri/renderD128 rw", "SupplementaryGroups=render"},
            {"PrivateDevices=yes", "MemoryDenyWriteExecute=yes", "ProcSubset=pid"},
        ),
        (
            Machine(245),
            {"PrivateNetwork=yes", "NoNewPrivileges=yes"},
            {"ProtectProc=invisible", "PrivateIPC=yes", "ProcSubset=pid"},
        ),
    ],
)
def test_an_engine_gets_what_its_machine_has(
    place: Place, machine: Machine, present: set[str], absent: set[str]
) -> None:
    properties = set(unit_properties(admitted(wheel_request(place), place), machine))
    assert present <= properties
    assert not absent & properties
    assert {"User=sbctl-engine", "CapabilityBoundingSet=", "LimitCORE=0", "ProtectSystem=strict"} <= properties


def test_no_engine_may_have_the_whole_machine_whatever_the_runtime_says(place: Place) -> None:
    spec = admitted({**wheel_request(place), "memory_bytes": None}, place)
    assert 0 < spec.memory_bytes < machine_bytes()
    assert {f"MemoryMax={spec.memory_bytes}", "MemorySwapMax=0"} <= set(unit_properties(spec, MACHINE))


def test_an_engine_with_a_port_has_loopback_and_that_port_only(place: Place) -> None:
    spec = admitted({**binary_request(place), "memory_bytes": 2**30}, place)
    properties = unit_properties(spec, MACHINE)
    assert "PrivateNetwork=yes" not in properties
    assert {
        "IPAddressDeny=any",
        "IPAddressAllow=localhost",
        "SocketBindAllow=ipv4:tcp:4000",
        "MemoryMax=1073741824",
    } <= set(properties)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda place: (place.home / "llama_wheel_launcher.py").chmod(0o777), "written by others"),
        (lambda place: place.home.chmod(0o777), "written by others"),
        (lambda place: (place.home / "llama_wheel_launcher.py").unlink(), "cannot be read"),
        (lambda place: _replace_by_loop(place.home / "llama_wheel_launcher.py"), "link"),
        (lambda place: _replace_by_directory(place.home / "llama_wheel_launcher.py"), "not a file"),
    ],
)
def test_a_program_that_others_can_change_is_refused(tmp_path: Path, spoil: Callable[[Place], Any], word: str) -> None:
    with short_directory() as root:
        place = make_place(root)
        spoil(place)
        with pytest.raises(RefusedError, match=word):
            admitted(wheel_request(place), place)


def _replace_by_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def _replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files of others")
def test_every_step_of_the_way_to_a_program_counts(tmp_path: Path) -> None:
    with short_directory() as root:
        theirs = root / "theirs"
        theirs.mkdir(mode=0o755)
        (theirs / "program").write_text("")
        (root / "link").symlink_to("theirs/../theirs/program")
        assert why_untrusted(root / "link") is None
        os.chown(theirs, 4711, 4711)
        assert "belongs to user 4711" in str(why_untrusted(root / "link"))
        os.chown(theirs, 0, 0)
        os.lchown(root / "link", 4711, 4711)
        assert "link" in str(why_untrusted(root / "link"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("{", "json.invalid"),
        ("[]", "launcher.site_invalid"),
        ('{"schema_version": 2}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "x", "weights": [], "programs": []}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "/", "weights": [], "programs": []}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "/e/../x", "weights": [], "programs": []}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "/e", "weights": {}, "programs": []}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "/e", "weights": [], "programs": [], "away_s": 0}', "launcher.site_invalid"),
        ('{"schema_version": 1, "engines": "/e", "weights": [], "programs": [], "more": 0}', "launcher.site_invalid"),
    ],
)
def test_a_damaged_list_admits_nothing(tmp_path: Path, text: str, code: str) -> None:
    path = tmp_path / "launcher.json"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(SbctlError) as caught:
        read_site(path, owner=os.geteuid())
    assert caught.value.code == code


def test_a_list_that_others_can_write_admits_nothing(tmp_path: Path) -> None:
    import json

    path = tmp_path / "launcher.json"
    path.write_text(json.dumps(site_document(weights=[Path("/w")], programs=[], engines=Path("/e"), away_s=5)))
    path.chmod(0o644)
    assert read_site(path, owner=os.geteuid()).away_s == 5
    path.chmod(0o666)
    with pytest.raises(InputError, match="somebody else"):
        read_site(path, owner=os.geteuid())
    (tmp_path / "link").symlink_to(path)
    with pytest.raises(InputError):
        read_site(tmp_path / "link", owner=os.geteuid())


@pytest.mark.parametrize(("devices", "split"), [("GPU-8a1c0f2e-1b2c", ""), ("GPU-a,GPU-b", "1,1"), ("MIG-a/1/0", "")])
def test_devices_go_to_an_engine_by_their_ids(place: Place, devices: str, split: str) -> None:
    document = binary_request(place)
    on_devices(devices, split)(document, place)
    assert admitted(document, place).env["CUDA_VISIBLE_DEVICES"] == devices

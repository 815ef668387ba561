"""Flag tables: each was taken from a build of exactly that source, and every door reads the same table."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from sbctl.engines import llama_wheel_launcher
from sbctl.engines.flag_tables import (
    CACHE_TYPES,
    FLAG_VALUES,
    REFUSED_FLAGS,
    flag_table,
    help_digest,
    help_flags,
    kv_cache_type,
)
from sbctl.engines.flags import ALLOWED_FLAGS, check_extra_args
from sbctl.engines.model import EngineBuild
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT
from tests.simulators.llama_launches import launch_spec

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "engines"
HELPS = {version: (FIXTURES / f"llama_server_{version}_help.txt").read_text() for version in ("b9905", "b11434")}


@pytest.mark.parametrize("version", HELPS)
def test_fault_17_a_build_is_known_by_what_its_help_names(version: str) -> None:
    table = flag_table(version)
    assert table is not None
    flags = help_flags(HELPS[version])
    assert table.help_digest == help_digest(flags)
    assert table.flags <= flags, "nothing is written that the build does not know"
    assert help_digest(flags | {"--rpc"}) == table.help_digest, "an option of the build is no other build"
    assert help_digest(flags - {"--parallel"}) != table.help_digest


@pytest.mark.parametrize("version", [*HELPS, LLAMA_CPP_WHEEL_DEFAULT])
def test_fault_33_each_version_gets_the_loading_flags_that_it_has(version: str) -> None:
    build = EngineBuild("llama_cpp", "binary", version, ("/s",), Path("/s"))
    argv = launch_spec(build, extra_args=["--no-mmap"]).argv
    assert ("--no-mmap" in argv, "--load-mode" in argv) == ((True, False) if version == "b9905" else (False, True))
    assert {part for part in argv[1:] if part.startswith("--")} <= flag_table(version).flags  # type: ignore[union-attr]


def test_the_wheel_s_launcher_maps_exactly_its_table() -> None:
    table = flag_table(LLAMA_CPP_WHEEL_DEFAULT)
    assert table is not None
    assert table.help_digest is None
    assert table.flags == llama_wheel_launcher.FLAGS.keys() & FLAG_VALUES.keys()
    assert llama_wheel_launcher.CACHE_TYPES == CACHE_TYPES


def test_what_is_refused_exists_and_is_refused_with_its_reason() -> None:
    known = help_flags("".join(HELPS.values())) | {"--rpc"}
    assert REFUSED_FLAGS.keys() <= known
    assert not REFUSED_FLAGS.keys() & ALLOWED_FLAGS["llama_cpp"].keys()
    for flag, reason in REFUSED_FLAGS.items():
        assert check_extra_args("llama_cpp", [f"{flag}=x"]) == [f'"{flag}=x" may not be passed to llama_cpp: {reason}']


@pytest.mark.parametrize(("quant", "kind"), [("auto", None), ("f16", "f16"), ("fp8", "q8_0"), ("int8", "q8_0"), ("int4", "q4_0")])  # fmt: skip
def test_attention_cache_types(quant: str, kind: str | None) -> None:
    assert kv_cache_type(quant) == kind
    argv = launch_spec(EngineBuild("llama_cpp", "binary", "b9905", ("/s",), Path("/s")), kv_quant=quant).argv
    found = dict(itertools.pairwise(argv))
    assert (found.get("--cache-type-k"), found.get("--cache-type-v")) == (kind, kind)
    assert found["--flash-attn"] == ("on" if kind in ("q8_0", "q4_0") else "auto"), "quantised values need it"

"""extra_args: what is on the list passes, everything else is refused in a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import EngineError
from sbctl.engines.flags import ALLOWED_FLAGS, ExtraFlag, check_extra_args, parse_extra_args

ACCEPTED = [
    ("llama_cpp", [], ()),
    ("llama_cpp", ["--flash-attn"], (ExtraFlag("--flash-attn", None),)),
    ("llama_cpp", ["--threads", "4"], (ExtraFlag("--threads", "4"),)),
    ("llama_cpp", ["--threads=4"], (ExtraFlag("--threads", "4"),)),
    ("llama_cpp", ["--batch_size=64"], (ExtraFlag("--batch-size", "64"),)),
    (
        "llama_cpp",
        ["--no-mmap", "--seed", "0", "--mlock"],
        (ExtraFlag("--no-mmap", None), ExtraFlag("--seed", "0"), ExtraFlag("--mlock", None)),
    ),
    ("vllm", ["--dtype", "bfloat16"], (ExtraFlag("--dtype", "bfloat16"),)),
    ("sglang", ["--schedule-conservativeness=0.3"], (ExtraFlag("--schedule-conservativeness", "0.3"),)),
    ("mistralrs", ["--prefix-cache-n", "16"], (ExtraFlag("--prefix-cache-n", "16"),)),
]

REFUSED = [
    ("llama_cpp", ["--host=0.0.0.0"], "may not be passed"),
    ("llama_cpp", ["-t", "4"], "may not be passed"),
    ("llama_cpp", ["--thread", "4"], "only a beginning of --threads"),
    ("llama_cpp", ["--threads"], "needs a value"),
    ("llama_cpp", ["--threads="], "needs a value"),
    ("llama_cpp", ["--threads", "--mlock"], "needs a value"),
    ("llama_cpp", ["--threads=-1"], "does not start with -"),
    ("llama_cpp", ["--threads", "0"], "from 1 to 1024"),
    ("llama_cpp", ["--threads", "٣"], "a whole number"),
    ("llama_cpp", ["--threads", "4\n"], "a whole number"),
    ("llama_cpp", ["--seed", str(2**32)], "a whole number"),
    ("llama_cpp", ["--mlock=1"], "takes no value"),
    ("llama_cpp", ["--mlock", "--mlock"], "given twice"),
    ("llama_cpp", ["--threads", "1", "--threads=2"], "given twice"),
    ("llama_cpp", ["4"], "may not be passed"),
    ("llama_cpp", [""], "may not be passed"),
    ("llama_cpp", ["--"], "may not be passed"),
    ("llama_cpp", ["--MLOCK"], "may not be passed"),
    ("llama_cpp", ["--mlock"] * 65, "at most 64"),
    ("vllm", ["--dtype", "int8"], "one of auto"),
    ("sglang", ["--schedule-conservativeness", "nan"], "0 or more"),
    ("sglang", ["--mem-fraction-static", ".9"], "may not be passed"),
    ("tgi", ["--x"], "takes no extra arguments"),
]


@pytest.mark.parametrize(("engine", "args", "expected"), ACCEPTED)
def test_listed_arguments_pass_in_their_order(engine: str, args: list[str], expected: tuple[ExtraFlag, ...]) -> None:
    assert check_extra_args(engine, args) == []
    assert parse_extra_args(engine, args) == expected


@pytest.mark.parametrize(("engine", "args", "part"), REFUSED)
def test_everything_else_is_refused_with_a_reason(engine: str, args: list[str], part: str) -> None:
    sentences = check_extra_args(engine, args)
    assert sentences
    assert part in sentences[0]
    with pytest.raises(EngineError) as caught:
        parse_extra_args(engine, args)
    assert caught.value.code == "engine.unsafe_argument"


def test_every_refused_argument_gets_its_own_sentence() -> None:
    sentences = check_extra_args("llama_cpp", ["--host", "0.0.0.0", "--threads", "2", "--api-key=x", "--mlock=yes"])
    assert len(sentences) == 3


def test_control_characters_of_a_refused_argument_are_shown_escaped() -> None:
    assert "\x1b" not in check_extra_args("llama_cpp", ["--\x1b[31m"])[0]


@given(st.lists(st.text(max_size=24), max_size=6))
def test_what_is_accepted_is_always_on_the_list(args: list[str]) -> None:
    if not check_extra_args("llama_cpp", args):
        assert all(flag.flag in ALLOWED_FLAGS["llama_cpp"] for flag in parse_extra_args("llama_cpp", args))

"""An ssh_config is read for five values, as ssh reads them, and nothing in it runs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbctl.base.errors import InputError
from sbctl.config.ssh_config import SshConfigAnswer, SshHop, parse_ssh_config, read_ssh_config


def _ask(text: str, name: str = "gpu-a") -> SshConfigAnswer:
    return parse_ssh_config(text).lookup(name, home="/home/me", local_user="me")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", SshConfigAnswer()),
        ("Host gpu-a\n HostName 10.0.0.1\n User ops\n Port 2222\n", SshConfigAnswer("10.0.0.1", "ops", 2222)),
        ("hOsT=gpu-*\nUSER = ops\nport=22", SshConfigAnswer("", "ops", 22)),
        ("User first\nHost *\nUser second", SshConfigAnswer("", "first")),
        ("Host *\nPort 1\nHost gpu-a\nPort 2", SshConfigAnswer("", "", 1)),
        ("Host other\nUser ops", SshConfigAnswer()),
        ("Host gpu-* !gpu-a\nUser ops", SshConfigAnswer()),
        ("Host !gpu-b gpu-?\nUser ops", SshConfigAnswer("", "ops")),
        ("Host *\nHostName %h.corp", SshConfigAnswer("gpu-a.corp")),
        ("Host *\nHostName 100%%", SshConfigAnswer()),
        ('Host *\nIdentityFile "%d/my keys/%u@%h"', SshConfigAnswer(identity_file="/home/me/my keys/me@gpu-a")),
        ("IdentityFile one\nIdentityFile two", SshConfigAnswer(identity_file="one")),
        ("IdentityFile none", SshConfigAnswer()),
        ("ProxyJump bastion", SshConfigAnswer(jumps=(SshHop("bastion"),))),
        ("ProxyJump hop@a:2022,ssh://b", SshConfigAnswer(jumps=(SshHop("a", "hop", 2022), SshHop("b")))),
        ("ProxyJump [::1]:22,fe80::1", SshConfigAnswer(jumps=(SshHop("::1", "", 22), SshHop("fe80::1")))),
        ("ProxyJump none\nHost gpu-a\nProxyJump b", SshConfigAnswer()),
        ("ProxyCommand none", SshConfigAnswer()),
        ("# x\n\nProxyCommand nc %h %p", SshConfigAnswer(command_line=3)),
        ("ProxyJump b\nProxyCommand nc %h", SshConfigAnswer(jumps=(SshHop("b"),))),
        ("ProxyCommand nc %h\nProxyJump b", SshConfigAnswer(command_line=1)),
        (
            "ForwardAgent yes\nLocalCommand rm -rf /\nPermitLocalCommand yes\nUser ops # mine",
            SshConfigAnswer("", "ops"),
        ),
        ("Host\ngpu-a\nUser ops", SshConfigAnswer()),
    ],
)
def test_what_is_taken(text: str, expected: SshConfigAnswer) -> None:
    assert _ask(text) == expected
    assert _ask(text.replace("\n", "\r\n")) == expected


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('Match exec "touch /tmp/owned"\nUser root\nHost gpu-a\nPort 7', 1, "Match"),
        ("Match all\nHostName evil\nHost gpu-a\nPort 7", 1, "Match"),
        ("Include ~/.ssh/conf.d/*\nPort 7", 1, "Include"),
        ("Port 70000\nPort 7", 1, "Port"),
        ("Port seven\nPort 7", 1, "Port"),
        ("User -oProxyCommand=x\nPort 7", 1, "User"),
        ("User a@b\nPort 7", 1, "User"),
        ("HostName\nPort 7", 1, "hostname has no value"),
        ("IdentityFile ~/%C\nPort 7", 1, "token"),
        ("HostName %h%\nPort 7", 1, "token"),
        ("ProxyJump a,,b\nPort 7", 1, "ProxyJump"),
        ("ProxyJump -x\x1b[31m\nPort 7", 1, "no terminal"),
    ],
)
def test_what_is_not_followed_is_listed_with_its_line(text: str, line: int, words: str) -> None:
    read = parse_ssh_config(text)
    assert [(at, words in sentence) for at, sentence in read.ignored] == [(line, True)]
    assert read.lookup("gpu-a", home="/", local_user="me") == SshConfigAnswer(port=7)


def test_E14_nothing_that_a_file_names_is_ever_run(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    path = tmp_path / "config"
    lines = [
        'Match exec "touch {0}"',
        "Host *",
        "ProxyCommand touch {0}",
        "LocalCommand touch {0}",
        "KnownHostsCommand touch {0}",
    ]
    path.write_text("\n".join(lines).format(owned))
    read_ssh_config(path).lookup("gpu-a", home="/", local_user="me")
    assert not owned.exists()


@pytest.mark.parametrize("flaw", ["missing", "directory", "too large"])
def test_a_file_that_is_none_is_an_error(tmp_path: Path, flaw: str) -> None:
    path = tmp_path / "config"
    if flaw == "directory":
        path.mkdir()
    elif flaw == "too large":
        path.write_bytes(b"#" * (256 * 1024 + 1))
    with pytest.raises(InputError) as caught:
        read_ssh_config(path)
    assert caught.value.code.startswith("file.")


WORDS = st.sampled_from(
    ["Host", "HostName", "User", "Port", "IdentityFile", "ProxyJump", "ProxyCommand", "Match", "*", "gpu-?", "!b", "%h", "%", '"', "=",
     "#", ",", "@", ":", "[", "]", "22", "none", "\n", "\t", " ", "\0", "é", "ssh://"]
)  # fmt: skip


@given(st.lists(st.one_of(WORDS, st.text(max_size=4)), max_size=40).map("".join), st.text(max_size=12))
def test_no_text_breaks_the_reader_and_no_answer_could_be_an_option(text: str, name: str) -> None:
    answer = _ask(text, name)
    for value in (answer.user, *(hop.user for hop in answer.jumps)):
        assert not value.startswith("-")
    for value in (answer.address, *(hop.host for hop in answer.jumps)):
        assert "\n" not in value
        assert "%" not in value
    assert 0 <= answer.port <= 65535


def test_ssh_itself_answers_the_same(tmp_path: Path) -> None:
    """Sampled by hand from what `ssh -G` prints, where ssh is there to be asked."""
    text = "Host a* !ab\n User one\n Port 2\nHost *b\n HostName %h.corp\n User two\nHost *\n User rest\n"
    path = tmp_path / "config"
    path.write_text(text)
    for name in ("a", "ab", "b", "abc", "xb"):
        answer = _ask(text, name)
        try:
            shown = subprocess.run(
                ["ssh", "-G", "-F", str(path), name], capture_output=True, text=True, check=True, timeout=60
            )
        except FileNotFoundError:
            pytest.skip("there is no ssh to compare with")
        theirs = dict(line.split(" ", 1) for line in shown.stdout.splitlines() if " " in line)
        assert (answer.user, answer.port or 22, answer.address or name) == (
            theirs["user"], int(theirs["port"]), theirs["hostname"],
        )  # fmt: skip

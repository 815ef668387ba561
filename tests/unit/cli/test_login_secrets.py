"""What logins ask for: once, up front, never without a terminal, never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import InputError, SbctlError
from sbctl.cli.login_secrets import LoginSecrets, has_terminal


def _secrets(tmp_path: Path, answers: list[str], *, terminal: bool = True, **environ: str) -> LoginSecrets:
    def ask(question: str) -> str:
        asked.append(question)
        return answers.pop(0)

    asked: list[str] = []
    secrets = LoginSecrets(tmp_path, environ, ask=ask, can_ask=lambda _environ: terminal)
    secrets.asked = asked  # type: ignore[attr-defined]
    return secrets


def test_one_question_serves_every_host_of_the_same_login(tmp_path: Path) -> None:
    secrets = _secrets(tmp_path, ["pw-ops", "pw-gpu", "open"])
    jump = Jump("bastion", "b", identity_file="~/.ssh/id", passphrase="prompt")
    fleet = [
        Connection("ssh", "a", user="ops", become="sudo", become_password="prompt", jumps=(jump,)),
        Connection("ssh", "b", user="ops", become="sudo", become_password="prompt", jumps=(jump,)),
        Connection("ssh", "c", user="gpu", become="sudo", become_password="prompt"),
        Connection("ssh", "d", user="x", become="sudo", become_password="env:PW"),
        Connection("local"),
    ]
    prepared = secrets.prepared(fleet)
    assert secrets.asked == [  # type: ignore[attr-defined]
        "the sudo password of ops",
        "the passphrase of ~/.ssh/id",
        "the sudo password of gpu",
    ]
    assert prepared("prompt", "the sudo password of ops").reveal() == b"pw-ops"
    assert len(secrets.asked) == 3  # type: ignore[attr-defined]


def test_a_reference_is_read_where_it_points_and_needs_no_terminal(tmp_path: Path) -> None:
    (tmp_path / "pw").write_text("from-file\n")
    secrets = _secrets(tmp_path, [], terminal=False, PW="from-env")
    assert secrets("env:PW", "x").reveal() == b"from-env"
    assert secrets(f"file:{tmp_path}/pw", "x").reveal() == b"from-file"


@pytest.mark.parametrize(
    ("answer", "terminal", "code"),
    [("", True, "secret.empty"), ("a\nb", True, "secret.bad_value"), ("pw", False, "secret.no_terminal")],
)
def test_what_cannot_be_a_password_is_refused_without_showing_it(
    tmp_path: Path, answer: str, terminal: bool, code: str
) -> None:
    with pytest.raises(SbctlError) as caught:
        _secrets(tmp_path, [answer], terminal=terminal)("prompt", "the sudo password of ops")
    assert caught.value.code == code
    assert "a\nb" not in str(caught.value)


def test_a_second_line_could_reach_the_program_behind_sudo_and_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        _secrets(tmp_path, [], PW="one\ntwo")("env:PW", "the sudo password of ops")
    assert caught.value.code == "secret.bad_value"


def test_under_ci_nobody_is_asked() -> None:
    assert not has_terminal({"CI": "true"})

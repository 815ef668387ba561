"""A file that a command is given and cannot read: the error names the file and says what to give instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ExitCode, SbctlError
from sbctl.base.naming import naming
from sbctl.cli.app import app

pytestmark = pytest.mark.flow


@pytest.mark.parametrize("command", [("show",), ("state", "push"), ("bundle", "show"), ("pack", "show")])
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"\xff\xfe", b'{"payloadType": "x", "payload": "AA==", "signatures": []}', b'{"a": 1, "a": 2}'],
)
def test_a_file_that_is_something_else_is_named_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...], content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "sb.yml").write_text("proxy: {http_bind_port: 8080}\n")
    given = tmp_path / "given"
    given.write_bytes(content)
    with pytest.raises(SbctlError) as caught:
        app(args=[*command, str(given)], prog_name="sbctl", standalone_mode=False)
    error = caught.value
    assert (error.exit_code, error.place, bool(error.next_step)) == (ExitCode.INVALID, str(given), True), error


def test_an_error_that_says_where_and_what_to_do_keeps_both() -> None:
    with pytest.raises(SbctlError) as caught, naming("outside", next_step="give up"):
        raise SbctlError("x.y", "no", place="inside", next_step="go on")
    assert (caught.value.place, caught.value.next_step) == ("inside", "go on")

"""What the pages print is what happens."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.main import get_command

from sbctl.cli.app import app
from tests.simulators.doc_pages import Command, Session, blocks_of, sbctl_lines

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/README.md"))
)
SERVED = {"README.md", "docs/operations.md", "examples/quickstart/README.md"}
"""Pages that apply something; the others touch no host but this one, and only to look."""


def _accepts(arguments: list[str]) -> None:
    """Parse without running. Raises what the parser raises."""
    command = get_command(app)
    pending = [command]
    while pending:
        one = pending.pop()
        pending.extend(getattr(one, "commands", {}).values())
        one.callback = None if getattr(one, "commands", None) else (lambda **_options: 0)
    command.main(args=arguments, prog_name="sbctl", standalone_mode=False)


@pytest.mark.parametrize("page", PAGES)
def test_the_command_line_takes_every_printed_command(page: str) -> None:
    for number, arguments in sbctl_lines(ROOT / page):
        try:
            _accepts(arguments)
        except Exception as error:
            raise AssertionError(f"{page}:{number}: sbctl {' '.join(arguments)}: {error}") from error


def test_a_command_that_does_not_exist_would_be_seen() -> None:
    with pytest.raises(Exception, match="--no-such-flag"):
        _accepts(["plan", "--no-such-flag"])


def _runs(page: str, session: Session) -> None:
    directory = (ROOT / page).parent.relative_to(ROOT)
    if directory.parts[:1] == ("examples",):
        session.run_in(directory.as_posix())
    for block in blocks_of(ROOT / page):
        if block.file is not None:
            session.write(block.file, block.body)
        elif block.is_run:
            for command in block.commands():
                try:
                    session.run(command, interrupted="interrupted" in block.words)
                except AssertionError as error:
                    raise AssertionError(f"{page}:{block.number}: {error}") from None


IN_THE_LAB = {"examples/lab/README.md", "examples/cluster-symmetric/README.md"}
"""Run by test_examples, where hosts can be booted."""
RUN = sorted(page for page in set(PAGES) - SERVED - IN_THE_LAB if any(block.is_run for block in blocks_of(ROOT / page)))


@pytest.mark.parametrize("page", RUN)
def test_the_page_runs_as_printed(page: str, sessions: Callable[[], Session]) -> None:
    _runs(page, sessions())


@pytest.mark.engine
@pytest.mark.parametrize("page", sorted(SERVED))
def test_the_page_runs_and_serves_as_printed(page: str, sessions: Callable[[], Session]) -> None:
    _runs(page, sessions())


@pytest.mark.parametrize("page", PAGES)
def test_links_inside_the_project_lead_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)|(?:href|src)=\"([^\"]+)\"", text):
        link = (target[0] or target[1]).partition("#")[0]
        if link and "://" not in link and not link.startswith("mailto:"):
            assert ((ROOT / page).parent / link).exists(), f"{page} links to {link}"


@pytest.mark.parametrize(
    ("line", "shown", "agrees"),
    [
        ("echo 'in 7 s,   done'", "in 12.5 s, done", True),
        ("echo 'in 7 s, done'", "in 7 s, failed", False),
        ("printf 'a\\nb\\nc\\n'", "a\n…\nc", True),
        ("printf 'a\\nb\\nc\\n'", "a\nc", False),
        ("printf 'a\\nb\\nc\\n'", "a\n…", True),
        ("echo anything", "", True),
        ("false", "", False),
    ],
)
def test_output_is_compared_loosely_and_still_compared(
    line: str, shown: str, agrees: bool, sessions: Callable[[], Session]
) -> None:
    session = sessions()
    if agrees:
        session.run(Command(line, shown, 0))
    else:
        with pytest.raises(AssertionError):
            session.run(Command(line, shown, 0))

"""A secret that is not there is told before any host is touched."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sbctl.base.errors import InputError
from sbctl.cli.needed_secrets import refuse_missing_secrets


def _refuse(tmp_path: Path, *references: str, blocked: bool = False, **environ: str) -> None:
    held = {reference: {"reference": reference, "fingerprint": None} for reference in references}
    step = SimpleNamespace(params={"runtime": {"sent_secrets": held}, "admin_password": None})
    config = SimpleNamespace(
        path=str(tmp_path / "sb.yml"), secrets={"hf": SimpleNamespace(reference="env:HF")}, inline_secrets={}
    )
    change = SimpleNamespace(blocked=blocked, steps=(step,))
    found = SimpleNamespace(config=config, plan=SimpleNamespace(actionable=(change,)))
    refuse_missing_secrets(cast("Any", SimpleNamespace(environ=environ)), cast("Any", found))


@pytest.mark.parametrize(
    ("reference", "code"),
    [("env:NOPE", "secret.unset"), ("secret:hf", "secret.unset"), ("file:./nope.key", "secret.unreadable")],
)
def test_one_that_cannot_be_read_here_is_told_before_anything_is_begun(
    tmp_path: Path, reference: str, code: str
) -> None:
    with pytest.raises(InputError) as missing:
        _refuse(tmp_path, reference)
    assert missing.value.code == code
    _refuse(tmp_path, reference, blocked=True)


def test_what_is_there_or_comes_from_elsewhere_is_nobodys_matter(tmp_path: Path) -> None:
    _refuse(tmp_path, "env:KEY", "secret:hf", "exec:false", "node-file:/nope", KEY="k", HF="t")

"""Ways to ask one question of sb.yml in one line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

MINIMAL = """\
proxy:
  model_host:
    deployments:
      chat: {model: smollm2-135m-instruct, variant: q4_1}
origins:
  localhost:
    action:
      type: ai_proxy
      providers: [{name: local, provider_type: managed_model, deployment: chat, models: [smollm2]}]
"""


@pytest.fixture
def minimal() -> str:
    return MINIMAL


@pytest.fixture
def load_text(tmp_path: Path) -> Load:
    def run(
        text: str, environ: Mapping[str, str] | None = None, keyed: Callable[[bytes], str] | None = None
    ) -> CompiledConfig:
        path = tmp_path / "sb.yml"
        path.write_text(text, encoding="utf-8")
        return load(path, environ=environ or {}, keyed=keyed)

    return run


@pytest.fixture
def findings_of(load_text: Load) -> Findings:
    """Every error of a file; empty when it loads."""

    def run(text: str, environ: Mapping[str, str] | None = None) -> tuple[Diagnostic, ...]:
        try:
            load_text(text, environ)
        except ConfigError as error:
            return error.diagnostics
        return ()

    return run

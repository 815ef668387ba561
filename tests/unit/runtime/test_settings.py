"""What the daemon reads at start, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.digests import sha256_bytes
from sbctl.base.errors import SbctlError
from sbctl.runtime.settings import admin_password, load_settings, load_trust, prepare_directories
from sbctl.trust.bundle import DeploymentMember
from sbctl.trust.verifier import trust_digest
from tests.simulators.runtime_world import LINEAGE, Operator, content, prepare_node


def test_configuration_trust_and_password_as_the_node_interface_writes_them(tmp_path: Path) -> None:
    operator = Operator()
    paths = prepare_node(tmp_path, operator)
    settings = load_settings(paths, None)
    assert settings.config_sha256 == sha256_bytes(paths.runtime_config.read_bytes())
    assert settings.cache_directory == paths.models
    assert load_trust(paths) == (operator.trust, trust_digest(operator.trust))
    assert admin_password(paths, {}).reveal() == b"correct horse"


def test_a_missing_trust_set_is_none_and_a_missing_password_is_made_once(tmp_path: Path) -> None:
    paths = prepare_node(tmp_path, Operator())
    paths.trust.unlink()
    (paths.secrets / "admin_password").unlink()
    assert load_trust(paths) == (None, None)
    made = admin_password(paths, {})
    assert len(made.reveal()) >= 32
    assert admin_password(paths, {}) == made
    assert (paths.secrets / "admin_password").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "json.invalid"),
        ("{}", "runtime.config_invalid"),
        ('{"lineage":"x","host":"local","http_bind_port":70000}', "runtime.config_invalid"),
        ('{"lineage":"x","host":"local","shell":"/bin/sh"}', "runtime.config_invalid"),
        ('{"lineage":"x","host":"a","host":"b"}', "json.invalid"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused_by_name(tmp_path: Path, text: str, code: str) -> None:
    paths = prepare_node(tmp_path, Operator())
    paths.runtime_config.write_text(text)
    with pytest.raises(SbctlError) as caught:
        load_settings(paths, None)
    assert caught.value.code == code


@pytest.mark.parametrize("text", ["", "{}", "\udcff"])
def test_a_damaged_trust_set_is_never_read_as_none(tmp_path: Path, text: str) -> None:
    paths = prepare_node(tmp_path, Operator())
    paths.trust.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(SbctlError):
        load_trust(paths)


def test_a_file_by_hand_carries_runtime_and_content(
    tmp_path: Path, make_member: Callable[..., DeploymentMember]
) -> None:
    paths = prepare_node(tmp_path, Operator())
    desired = content({"q": make_member()})
    file = tmp_path / "mine.json"
    file.write_text(
        json.dumps({"runtime": {"lineage": LINEAGE, "host": "local"}, "content": desired.model_dump(mode="json")})
    )
    settings = load_settings(paths, file)
    assert settings.started_by_hand
    assert settings.content == desired
    file.write_text(json.dumps({"runtime": {"lineage": LINEAGE, "host": "local"}, "more": 1}))
    with pytest.raises(SbctlError, match="more"):
        load_settings(paths, file)
    file.write_text("{")
    with pytest.raises(SbctlError) as refused:
        load_settings(paths, file)
    assert (refused.value.code, refused.value.place) == ("json.invalid", str(file))


def test_a_directory_that_others_may_write_is_refused(tmp_path: Path) -> None:
    paths = prepare_node(tmp_path, Operator())
    prepare_directories(paths, (paths.engine_records,))
    assert paths.engine_records.stat().st_mode & 0o777 == 0o700
    paths.engine_records.chmod(0o777)
    with pytest.raises(SbctlError) as caught:
        prepare_directories(paths, (paths.engine_records,))
    assert caught.value.code == "runtime.unsafe_directory"


def test_a_credential_of_the_service_manager_comes_before_the_file(tmp_path: Path) -> None:
    paths = prepare_node(tmp_path / "node", Operator())
    (tmp_path / "admin_password").write_bytes(b"handed over")
    assert admin_password(paths, {"CREDENTIALS_DIRECTORY": str(tmp_path)}).reveal() == b"handed over"

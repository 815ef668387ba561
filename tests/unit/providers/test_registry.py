"""The registry and what every kind promises alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import providers
from providers.comparison import Blocked, worst_downtime
from providers.engine_policy import engine_policy
from providers.registry import PROVIDERS
from sbctl import __version__
from sbctl.base.connection import Connection
from sbctl.base.digests import canonical_json, fingerprint
from sbctl.base.errors import ConfigError, StateError
from sbctl.base.ids import KINDS, Address
from sbctl.base.truths import Recorded
from sbctl.config.compiled import CompiledConfig
from sbctl.plan.inputs import MergesSpecs, RestoresSpecs
from sbctl.provider import in_todays_form
from sbctl.trust.bundle import DeploymentMember, OriginMember, member_digest
from tests.simulators.provider_world import QUICKSTART, ProviderWorld


@pytest.fixture
def config(tmp_path: Path) -> CompiledConfig:
    world = ProviderWorld(tmp_path)
    return world.configure(QUICKSTART)


def test_every_kind_has_one_provider_in_creation_order() -> None:
    assert tuple(PROVIDERS) == KINDS
    assert all(provider.kind == kind for kind, provider in PROVIDERS.items())


def test_the_providers_belong_to_this_sbctl() -> None:
    assert __version__ == providers.SBCTL_API


def test_only_a_bundle_is_merged_and_only_signed_kinds_are_restored() -> None:
    assert [kind for kind, provider in PROVIDERS.items() if isinstance(provider, MergesSpecs)] == ["bundle"]
    assert [kind for kind, provider in PROVIDERS.items() if isinstance(provider, RestoresSpecs)] == [
        "certificate",
        "runtime",
        "store",
        "enrollment",
        "bundle",
    ]


def test_specs_are_plain_data_and_fingerprints_are_of_them(config: CompiledConfig) -> None:
    for provider in PROVIDERS.values():
        for one in provider.desired(config):
            canonical_json(one.spec)
            assert one.fingerprint == fingerprint(one.spec), one.address


def test_the_fingerprint_of_a_member_is_the_digest_its_runtime_reports(config: CompiledConfig) -> None:
    import json

    (deployment,) = PROVIDERS["deployment"].desired(config)
    (origin,) = PROVIDERS["origin"].desired(config)
    assert deployment.fingerprint == member_digest(DeploymentMember.model_validate_json(json.dumps(deployment.spec)))
    assert origin.fingerprint == member_digest(OriginMember.model_validate_json(json.dumps(origin.spec)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_newer_record_is_refused_and_todays_is_kept(kind: str) -> None:
    address = Address(kind, "h")
    kept = Recorded(address, {"a": 1}, 1, "f" * 64, {}, "h", Connection("local"))
    assert in_todays_form({address: kept}, PROVIDERS) == {address: kept}
    with pytest.raises(StateError) as caught:
        in_todays_form({address: replace(kept, record_version=2)}, PROVIDERS)
    assert caught.value.code == "state.too_new"


def test_members_are_what_the_bundle_says(config: CompiledConfig) -> None:
    (bundle,) = PROVIDERS["bundle"].desired(config)
    (deployment,) = PROVIDERS["deployment"].desired(config)
    assert bundle.spec["deployments"]["chat"] is deployment.spec
    assert {str(address) for address in bundle.after} == {
        "runtime.local",
        "engine.local/llama_cpp",
        "artifact.local/smollm2-135m-instruct:q4_1",
    }
    assert deployment.member_of == bundle.address


def test_prevent_destroy_marks_what_it_matches(tmp_path: Path) -> None:
    config = ProviderWorld(tmp_path).configure(QUICKSTART + 'fleet: {prevent_destroy: ["artifact.*", "host.local"]}\n')
    marked = [
        one.address.kind for provider in PROVIDERS.values() for one in provider.desired(config) if one.prevent_destroy
    ]
    assert marked == ["host", "artifact"]


def test_a_catalog_edit_that_no_deployment_uses_changes_no_spec(config: CompiledConfig) -> None:
    for kind in ("artifact", "deployment", "bundle"):
        for one in PROVIDERS[kind].desired(config):
            text = canonical_json(one.spec).decode()
            assert '"catalog_digest":null' in text
            assert text.count('"catalog_digest":') == text.count('"catalog_digest":null')


def test_an_engine_that_hosts_cannot_launch_is_an_error_of_the_file(config: CompiledConfig) -> None:
    from dataclasses import replace

    host = config.hosts["local"]
    chat = host.deployments["chat"]
    container = chat.engine_policy.model_copy(update={"launch": "container"})
    for broken in (replace(chat, engine="vllm"), replace(chat, engine_policy=container)):
        hosts = {"local": replace(host, deployments={"chat": broken})}
        for kind in ("engine", "deployment", "bundle"):
            with pytest.raises(ConfigError) as caught:
                list(PROVIDERS[kind].desired(replace(config, hosts=hosts)))
            assert caught.value.code == "config.not_yet"
            assert caught.value.diagnostics[0].span == chat.span


@pytest.mark.parametrize(
    ("engine", "says"),
    [
        ({"launch": "wheel"}, "computes on the processor"),
        ({"launch": "binary", "acceleration": "auto"}, "computes on the processor"),
        ({"launch": "binary", "acceleration": "cuda"}, None),
        ({"launch": "binary", "acceleration": "vulkan"}, None),
    ],
)
def test_a_replica_spans_devices_only_where_its_engine_computes_on_them(
    config: CompiledConfig, engine: dict[str, str], says: str | None
) -> None:
    from dataclasses import replace

    chat = config.hosts["local"].deployments["chat"]
    wide = replace(
        chat,
        engine_policy=chat.engine_policy.model_copy(update=engine),
        model=chat.model.model_copy(update={"tensor_parallel": 2}),
    )
    if says is None:
        assert engine_policy(wide).computes_on_devices
    else:
        with pytest.raises(ConfigError, match=says):
            engine_policy(wide)


def test_a_block_is_one_sentence() -> None:
    assert Blocked("a.b", "it is so", "do that").sentence == "it is so; do that"
    assert Blocked("a.b", "it is so").sentence == "it is so"


def test_the_worst_downtime_wins() -> None:
    assert worst_downtime([]) == "none"
    assert worst_downtime(["queue", "none", "refuse"]) == "refuse"

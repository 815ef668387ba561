"""From a file to `CompiledConfig`: merging, variables, who runs what, the digest, and the endpoint that must not stand open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError, Diagnostic, InputError, RefusedError
from sbctl.base.secret import Secret, keyed_fingerprint
from sbctl.config.compiled import CompiledConfig, PublicRoute
from sbctl.config.load import load
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]
KEY = "SHA256:" + "a" * 43


def keyed(value: bytes) -> str:
    return keyed_fingerprint(b"k" * 32, Secret(value))


def test_the_quickstart_loads() -> None:
    path = Path(__file__).parents[3] / "examples" / "quickstart" / "sb.yml"
    config = load(path, environ={}, keyed=keyed)
    host = config.hosts["local"]
    deployment = host.deployments["chat"]
    assert deployment.artifact.model == "smollm2-135m-instruct"
    assert deployment.engine == "llama_cpp"
    assert (deployment.engine_policy.launch, deployment.engine_policy.version) == ("wheel", LLAMA_CPP_WHEEL_DEFAULT)
    assert (deployment.context_length, deployment.max_concurrency, deployment.cold_start) == (8192, 2, "wait")
    assert host.origins["localhost"].routes == (PublicRoute("smollm2", "chat"),)
    assert host.admin_password is None
    assert config.fleet_name == "quickstart"
    assert config.signers is None
    assert deployment.span is not None
    assert deployment.span.line > 1


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"file\.missing"):
        load(tmp_path / "sb.yml", environ={})


def test_the_default_engine_is_the_pinned_wheel_and_a_written_one_is_kept(load_text: Load, minimal: str) -> None:
    assert load_text(minimal).hosts["local"].deployments["chat"].engine_policy.launch == "wheel"
    text = minimal.replace(
        "model_host:", "model_host:\n    engines: {llama_cpp: {version: b9905, sha256: '" + "AB" * 32 + "'}}"
    )
    policy = load_text(text).hosts["local"].deployments["chat"].engine_policy
    assert (policy.launch, policy.version, policy.sha256) == ("binary", "b9905", "ab" * 32)


def test_a_deployments_own_engine_fields_come_first(load_text: Load, minimal: str) -> None:
    text = minimal.replace("variant: q4_1", "variant: q4_1, engine_version: b9415").replace(
        "model_host:", "model_host:\n    engines: {llama_cpp: {version: b9905}}"
    )
    assert load_text(text).hosts["local"].deployments["chat"].engine_policy.version == "b9415"


FLEET = f"""\
fleet:
  groups: {{l4: {{labels: {{accelerator: l4}}, vars: {{port: 8001, disk: d1}}}}}}
  hosts:
    gw: {{address: local, roles: [gateway]}}
    a: {{address: 10.0.0.1, host_key: "{KEY}", group: l4}}
    b: {{address: 10.0.0.2, host_key: "{KEY}", group: l4, vars: {{port: 8002}}}}
    c: {{address: 10.0.0.3, host_key: "{KEY}", group: l4}}
proxy:
  http_bind_port: ${{port:-8080}}
  model_host:
    cache: {{directory: "/data/${{disk:-none}}"}}
    deployments:
      chat: {{model: smollm2-135m-instruct, required_labels: {{accelerator: l4}}}}
      other: {{model: qwen3-8b, required_labels: {{accelerator: l4}}}}
origins:
  localhost:
    action:
      type: ai_proxy
      providers:
        - {{name: one, provider_type: managed_model, deployment: chat, models: [x, y], default_model: y}}
        - {{name: two, provider_type: managed_model, deployment: other}}
"""


def test_vars_feed_each_host_and_alike_hosts_share(load_text: Load) -> None:
    config = load_text(FLEET, {"port": "9999", "disk": "env"})
    gateway, a, b, c = config.hosts.values()
    assert [host.proxy.http_bind_port for host in (gateway, a, b, c)] == [9999, 8001, 8002, 8001]
    assert gateway.model_host.cache.directory == "/data/env"
    assert a.model_host.cache.directory == "/data/d1"
    assert a.proxy is c.proxy
    assert a.deployments is c.deployments
    assert a.proxy is not b.proxy


def test_only_matching_workers_run_and_serve(load_text: Load) -> None:
    config = load_text(FLEET)
    assert config.hosts["gw"].deployments == {}
    assert config.hosts["gw"].origins == {}
    assert set(config.hosts["a"].deployments) == {"chat", "other"}
    origin = config.hosts["a"].origins["localhost"]
    assert origin.routes == (PublicRoute("x", "chat"), PublicRoute("y", "chat"), PublicRoute("other", "other"))
    assert origin.default_model == "y"
    assert any("is no worker" in note.message for note in config.notes)


def test_an_origin_serves_what_its_host_runs(load_text: Load) -> None:
    config = load_text(FLEET.replace("qwen3-8b, required_labels: {accelerator: l4}", "qwen3-8b"))
    assert config.hosts["gw"].deployments == {}
    text = FLEET.replace("roles: [gateway]", "roles: [gateway, worker]").replace(
        "qwen3-8b, required_labels: {accelerator: l4}", "qwen3-8b"
    )
    gateway = load_text(text).hosts["gw"]
    assert gateway.origins["localhost"].routes == (PublicRoute("other", "other"),)
    assert gateway.origins["localhost"].default_model is None


def test_a_deployment_that_no_host_can_run_is_a_finding(findings_of: Findings) -> None:
    (finding,) = findings_of(
        FLEET.replace("qwen3-8b, required_labels: {accelerator: l4}", "qwen3-8b, required_labels: {accelerator: h100}")
    )
    assert finding.code == "config.no_matching_host"
    assert "accelerator: h100" in finding.message
    only_gateways = FLEET.replace("groups: {l4: {", "groups: {l4: {roles: [gateway], ")
    assert {each.code for each in findings_of(only_gateways)} == {"config.no_matching_host"}


def test_a_group_that_nobody_takes_is_checked_too(findings_of: Findings, minimal: str) -> None:
    fleet = "fleet: {groups: {spare: {vars: {p: 1}, proxy: {http_bind_port: '${p}', admni: {}}}}}\n"
    (finding,) = findings_of(fleet + minimal)
    assert finding.label == 'did you mean "admin"?'


def test_an_overlay_error_stands_where_it_was_written(findings_of: Findings, minimal: str) -> None:
    fleet = "fleet:\n  hosts:\n    me:\n      address: local\n      proxy: {model_host: {deployments: {chat: {replicas: 0}}}}\n"
    (finding,) = findings_of(fleet + minimal)
    assert finding.span is not None
    assert (finding.span.line, finding.message) == (5, '"replicas" must be at least 1')


def test_an_overlay_of_one_field_keeps_the_rest(load_text: Load, minimal: str) -> None:
    fleet = "fleet: {hosts: {me: {address: local, proxy: {model_host: {deployments: {chat: {max_concurrency: 8}}}}}}}\n"
    deployment = load_text(fleet + minimal).hosts["me"].deployments["chat"]
    assert (deployment.max_concurrency, deployment.artifact.variant) == (8, "q4_1")


def test_errors_in_fleet_do_not_hide_those_of_proxy(findings_of: Findings) -> None:
    text = """\
fleet:
  defaults: {vars: {a: 1}}
  groups: {g: {vars: {b: 8080}}}
  hosts: {x: {adress: local, vars: {c: 1}}}
proxy: {http_bind_port: '${b}', admin: {port: '${c}', prt: 1}}
"""
    assert [each.code for each in findings_of(text)] == [
        "config.missing_field",
        "config.unknown_field",
        "config.unknown_field",
    ]


def test_an_emptied_fleet_and_an_emptied_map(load_text: Load) -> None:
    assert load_text("fleet: {hosts: {}}\n").hosts == {}
    (host,) = load_text("proxy: {model_host: {deployments: {}}}\n").hosts.values()
    assert not host.deployments


class TestDigest:
    def test_comments_order_and_notes_do_not_change_it(self, load_text: Load, minimal: str) -> None:
        before = load_text(minimal).digest
        for text in (
            "# a comment\n" + minimal,
            minimal.replace(
                "model: smollm2-135m-instruct, variant: q4_1", "variant: q4_1, model: smollm2-135m-instruct"
            ),
            minimal + "access_log: {}\n",
            minimal.replace("variant: q4_1", "variant: q4_1, replicas: 1"),
        ):
            assert load_text(text).digest == before, text

    def test_whatever_matters_changes_it(self, load_text: Load, minimal: str) -> None:
        password = "fleet: {name: f}\nproxy:\n  admin: {password: '%s'}\n"
        texts = [
            minimal,
            minimal.replace("variant: q4_1", "variant: q4_1, replicas: 2"),
            minimal.replace("variant: q4_1", "variant: q4_1, max_concurrency: 2"),
            minimal.replace("[smollm2]", "[other]"),
            minimal.replace("proxy:", "proxy:\n  http_bind_port: 8081"),
            minimal.replace("proxy:\n", password % "a"),
            minimal.replace("proxy:\n", password % "b"),
            minimal.replace("proxy:\n", password % "env:PW"),
            "fleet: {name: other}\n" + minimal,
            "fleet: {prevent_destroy: ['artifact.*']}\n" + minimal,
            "fleet: {runtime: {version: 0.2.0}}\n" + minimal,
            "fleet: {hosts: {me: {address: local}}}\n" + minimal,
            "fleet: {hosts: {me: {address: local, keep: [weights]}}}\n" + minimal,
            f"fleet: {{api_keys: {{a: {{sha256: '{'a' * 64}'}}}}}}\n" + minimal,
        ]
        digests = [load_text(text, {"PW": "x"}, keyed).digest for text in texts]
        assert len(set(digests)) == len(digests)

    def test_a_secret_behind_a_reference_matters_once_it_can_be_known(self, load_text: Load, minimal: str) -> None:
        text = minimal.replace("proxy:\n", "proxy:\n  admin: {password: 'env:PW'}\n")
        assert load_text(text, {"PW": "a"}, keyed).digest != load_text(text, {"PW": "b"}, keyed).digest
        assert load_text(text, {"PW": "a"}).digest == load_text(text, {"PW": "b"}).digest


class TestOpenEndpoint:
    def opened(self, fleet: str, minimal: str, address: str = "0.0.0.0") -> str:
        return f"{fleet}\n" + minimal.replace("proxy:\n", f"proxy:\n  bind_address: '{address}'\n")

    @pytest.mark.parametrize("address", ["0.0.0.0", "10.0.0.5", "::", "::ffff:10.0.0.5"])
    def test_off_loopback_without_keys_is_refused(self, load_text: Load, minimal: str, address: str) -> None:
        with pytest.raises(RefusedError) as caught:
            load_text(self.opened("", minimal, address))
        assert caught.value.code == "config.open_endpoint"
        assert caught.value.next_step is not None
        assert "api_keys" in caught.value.next_step

    @pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.53", "::1", "::ffff:127.0.0.1"])
    def test_loopback_is_no_open_endpoint(self, load_text: Load, minimal: str, address: str) -> None:
        load_text(self.opened("", minimal, address))

    @pytest.mark.parametrize(
        "fleet", ["fleet: {public: true}", f"fleet: {{api_keys: {{a: {{sha256: '{'a' * 64}'}}}}}}"]
    )
    def test_keys_or_an_explicit_word_open_it(self, load_text: Load, minimal: str, fleet: str) -> None:
        load_text(self.opened(fleet, minimal))

    def test_an_empty_list_of_keys_is_none(self, load_text: Load, minimal: str) -> None:
        with pytest.raises(RefusedError):
            load_text(self.opened("fleet: {api_keys: {}}", minimal))

    def test_one_overlay_is_enough(self, load_text: Load, minimal: str) -> None:
        fleet = "fleet: {hosts: {me: {address: local, proxy: {bind_address: 0.0.0.0}}}}"
        with pytest.raises(RefusedError, match="me"):
            load_text(f"{fleet}\n" + minimal)

    def test_an_invalid_file_is_invalid_first(self, load_text: Load, minimal: str) -> None:
        with pytest.raises(ConfigError):
            load_text(self.opened("", minimal) + "bogus: 1\n")


class TestPassword:
    def test_a_written_value_is_a_reference_and_stays_in_memory(self, load_text: Load, minimal: str) -> None:
        config = load_text(minimal.replace("proxy:\n", "proxy:\n  admin: {password: hunter2}\n"), {}, keyed)
        reference = config.hosts["local"].admin_password
        assert reference is not None
        assert reference.reference == "inline:/proxy/admin/password"
        assert reference.fingerprint == keyed(b"hunter2")
        assert "hunter2" not in repr(config)
        assert config.hosts["local"].proxy.admin.password is None
        assert config.inline_secrets[reference.reference].reveal() == b"hunter2"

    def test_a_variable_that_looks_like_a_reference_is_a_value(self, load_text: Load, minimal: str) -> None:
        text = minimal.replace("proxy:\n", "proxy:\n  admin: {password: '${PW}'}\n")
        reference = load_text(text, {"PW": "env:OTHER"}).hosts["local"].admin_password
        assert reference is not None
        assert reference.reference == "inline:/proxy/admin/password"
        numeric = load_text(text, {"PW": "00123"})
        assert numeric.inline_secrets["inline:/proxy/admin/password"].reveal() == b"00123"
        plain = load_text(text, {"PW": "123"})
        assert plain.inline_secrets["inline:/proxy/admin/password"].reveal() == b"123"

    def test_hosts_with_different_values_get_different_references(self, load_text: Load, minimal: str) -> None:
        fleet = f"""\
fleet:
  hosts:
    a: {{address: local, vars: {{PW: one}}}}
    b: {{address: 10.0.0.1, host_key: "{KEY}", vars: {{PW: two}}}}
"""
        config = load_text(fleet + minimal.replace("proxy:\n", "proxy:\n  admin: {password: '${PW}'}\n"))
        references = [host.admin_password.reference for host in config.hosts.values() if host.admin_password]
        assert references == ["inline:/proxy/admin/password", "inline:/proxy/admin/password@b"]
        assert [config.inline_secrets[each].reveal() for each in references] == [b"one", b"two"]

    @pytest.mark.parametrize(
        ("written", "reference", "known"),
        [
            ("env:PW", "env:PW", True),
            ("env:NOPE", "env:NOPE", False),
            ("exec:true", "exec:true", False),
            ("node-file:/etc/pw", "node-file:/etc/pw", False),
            ("secret:pw", "env:PW", True),
        ],
    )
    def test_references(self, load_text: Load, minimal: str, written: str, reference: str, known: bool) -> None:
        text = "secrets: {pw: 'env:PW'}\n" + minimal.replace(
            "proxy:\n", f"proxy:\n  admin: {{password: '{written}'}}\n"
        )
        found = load_text(text, {"PW": "x"}, keyed).hosts["local"].admin_password
        assert found is not None
        assert (found.reference, found.fingerprint is not None) == (reference, known)

    def test_an_unknown_secret_is_a_finding(self, findings_of: Findings, minimal: str) -> None:
        text = "secrets: {admin: 'env:PW'}\n" + minimal.replace(
            "proxy:\n", "proxy:\n  admin: {password: 'secret:admn'}\n"
        )
        (finding,) = findings_of(text)
        assert (finding.code, finding.label) == ("config.unknown_secret", 'did you mean "admin"?')


def test_signers_are_checked_and_kept(load_text: Load, findings_of: Findings, minimal: str) -> None:
    good = "ed25519:11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="
    config = load_text(f"fleet: {{trust: {{signers: {{ops: '{good}'}}}}}}\n" + minimal)
    assert config.signers == {"ops": good}
    weak = "ed25519:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
    (finding,) = findings_of(f"fleet: {{trust: {{signers: {{ops: '{weak}'}}}}}}\n" + minimal)
    assert finding.code == "config.key.weak"
    (finding,) = findings_of("fleet: {trust: {signers: {ops: abc}}}\n" + minimal)
    assert "public key" in finding.message


@pytest.mark.parametrize(
    ("required", "code"), [(">=0.0.1", None), (">=99", "config.unsupported_version"), ("soon", "config.bad_value")]
)
def test_required_sbctl(findings_of: Findings, minimal: str, required: str, code: str | None) -> None:
    found = findings_of(f"required_sbctl: '{required}'\n" + minimal)
    assert [each.code for each in found] == ([code] if code else [])
    if code == "config.unsupported_version":
        assert required in found[0].message


def test_an_api_key_for_a_model_that_nobody_serves(findings_of: Findings, minimal: str) -> None:
    fleet = f"fleet: {{api_keys: {{a: {{sha256: '{'a' * 64}', models: [smollm]}}}}}}\n"
    (finding,) = findings_of(fleet + minimal)
    assert finding.label == 'did you mean "smollm2"?'


def test_the_name_of_a_fleet_comes_from_its_directory(tmp_path: Path, minimal: str) -> None:
    for directory, name in (("my fleet!", "my-fleet"), ("…", "fleet")):
        path = tmp_path / directory / "sb.yml"
        path.parent.mkdir()
        path.write_text(minimal)
        assert load(path, environ={}).fleet_name.rstrip("-") == name


class TestLicenses:
    def licensed(self, minimal: str, word: str = "") -> str:
        model = "model: llama-3.1-8b-instruct, variant: q4_k_m"
        return minimal.replace("model: smollm2-135m-instruct, variant: q4_1", model + word)

    @pytest.mark.parametrize("word", ["", ", accept_license: mit"])
    def test_a_restrictive_licence_must_be_accepted_by_name(self, load_text: Load, minimal: str, word: str) -> None:
        with pytest.raises(RefusedError) as caught:
            load_text(self.licensed(minimal, word))
        assert caught.value.code == "config.license_not_accepted"
        assert "accept_license: llama3.1" in (caught.value.next_step or "")
        assert "sb.yml:" in (caught.value.place or "")

    @pytest.mark.parametrize("word", [", accept_license: llama3.1", ", accept_license: Llama3.1"])
    def test_the_word_opens_it(self, load_text: Load, minimal: str, word: str) -> None:
        assert load_text(self.licensed(minimal, word)).hosts["local"].deployments

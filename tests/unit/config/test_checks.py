"""Rules between fields, what comes later, and what other planes restrict: each refused by its own sentence, at its own place."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from sbctl.base.errors import Diagnostic
from sbctl.config.compiled import CompiledConfig
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT

Load = Callable[..., CompiledConfig]
Findings = Callable[..., tuple[Diagnostic, ...]]

IMAGE = "repo/engine@sha256:" + "a" * 64
DIGEST = "b" * 64

SCRYPT = f"$scrypt$ln=15,r=8,p=1${'A' * 22}${'B' * 43}"


def proxy(
    *,
    engines: str = "{}",
    deployment: str = "model: smollm2-135m-instruct, variant: q4_1",
    model_host: str = "",
    top: str = "",
) -> str:
    return f"""\
proxy:
  {top or "http_bind_port: 8080"}
  model_host:
    {model_host or "authority: file_managed"}
    engines: {engines}
    deployments:
      chat: {{{deployment}}}
"""


MODEL = "model: smollm2-135m-instruct, variant: q4_1"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (proxy(engines="{llama_cpp: {launch: container}}"), "config.conflict", "needs image"),
        (proxy(engines=f"{{llama_cpp: {{image: '{IMAGE}'}}}}"), "config.conflict", "image goes with launch: container"),
        (proxy(engines="{llama_cpp: {shm_size_gib: 4}}"), "config.conflict", "shm_size_gib goes with"),
        (proxy(engines="{llama_cpp: {shm_size_gib: 2000}}"), "config.out_of_range", "at most 1024"),
        (proxy(engines="{llama_cpp: {launch: uv}}"), "config.conflict", "for vllm and sglang"),
        (proxy(engines="{vllm: {launch: wheel}}"), "config.conflict", "for llama_cpp"),
        (proxy(engines="{llama_cpp: {launch: wheel, path: /x}}"), "config.conflict", "goes with launch: binary"),
        (proxy(engines=f"{{llama_cpp: {{launch: wheel, sha256: '{DIGEST}'}}}}"), "config.conflict", "digest pinned"),
        (
            proxy(engines="{llama_cpp: {launch: wheel, version: 1.2.3}}"),
            "config.not_pinned",
            "no wheel of version 1.2.3",
        ),
        (proxy(engines="{llama_cpp: {path: llama-server}}"), "config.bad_value", "an absolute path"),
        (proxy(engines="{llama_cpp: {image: repo:tag}}"), "config.bad_value", "an image by digest"),
        (proxy(engines="{llama_cpp: {acceleration: metal}}"), "config.not_available", "acceleration: metal"),
        (
            proxy(engines=f"{{llama_cpp: {{launch: container, image: '{IMAGE}'}}}}"),
            "config.not_available",
            "launch: container",
        ),
        (proxy(deployment="model: smollm2-135m-instruct, replicas: 2"), "config.conflict", "needs variant"),
        (proxy(deployment=MODEL + ", spread_by: [a, a]"), "config.conflict", "lists a label twice"),
        (proxy(deployment=MODEL + ", engine: llama_cpp, tool_call_parser: hermes"), "config.conflict", "vllm only"),
        (proxy(deployment=MODEL + ", swap_space_gib: 4"), "config.conflict", "vllm only"),
        (proxy(deployment=MODEL + ", engine_image: 'vllm:latest'"), "config.conflict", "other than latest"),
        (proxy(deployment=MODEL + ", engine_image: 'reg:5000/vllm'"), "config.conflict", "other than latest"),
        (proxy(deployment=MODEL + ", engine_image: 'vllm:v1'"), "config.not_available", "launch: container"),
        (proxy(deployment=MODEL + ", engine_version: 9.9.9"), "config.not_pinned", "no wheel of version 9.9.9"),
        (proxy(model_host="excluded_devices: [gpu0]"), "config.bad_value", "a device: its number"),
        (proxy(deployment=MODEL + ", tensor_parallel: 65"), "config.out_of_range", "at most 64"),
        (
            proxy(deployment=MODEL + ", engine: llama_cpp, extra_args: ['--host', x]"),
            "config.conflict",
            '"--host" may not',
        ),
        (
            proxy(deployment=MODEL + ", engine: llama_cpp, extra_args: ['--threads=-1']"),
            "config.conflict",
            "--threads needs",
        ),
        (proxy(deployment=MODEL + ", extra_args: ['--mlock']"), "config.conflict", "engine: auto may mean vllm"),
        (
            proxy(deployment=MODEL + ", extra_args: ['--mlock', '--seed=1']"),
            "config.conflict",
            "engine: auto may mean vllm",
        ),
        (proxy(deployment="model: smollm2"), "catalog.unknown_model", 'no model "smollm2"'),
        (proxy(deployment="model: qwen3-8b, variant: q4"), "catalog.unknown_variant", 'no variant "q4"'),
        (proxy(deployment="model: glm-4-flash"), "catalog.no_variant", "listed but not served"),
        (proxy(deployment=MODEL + ", engine: vllm"), "catalog.no_variant", "vllm is asked for"),
        (
            proxy(deployment="model: qwen2.5-0.5b-instruct, variant: bf16, engine: mistralrs"),
            "config.not_available",
            "mistralrs",
        ),
        (proxy(model_host="authority: admin_managed"), "config.rule", "which is not enabled"),
        (proxy(model_host="authority: cluster_authority"), "config.rule", "leaves the deployments to a cluster"),
        (proxy(model_host="cache: {directory: ./m}"), "config.bad_value", "an absolute path"),
        (proxy(model_host="cache: {budget_gib: 0}"), "config.out_of_range", "more than 0"),
        (proxy(model_host="safety_margin: 1"), "config.out_of_range", "less than 1"),
        (proxy(top="admin: {enabled: true, port: 8080}"), "config.duplicate_port", "both 8080"),
        (proxy(top="admin: {enabled: true, bind: 0.0.0.0}"), "config.rule", "off loopback needs TLS"),
        (
            proxy(top="admin: {enabled: true, allow_ips: [10.0.0.0/8], password: changeme}"),
            "config.rule",
            "everybody knows",
        ),
        (proxy(top="admin: {enabled: true, tls: {cert: gone.pem, key: k}}"), "file.missing", "admin.tls.cert"),
        (proxy(top="admin: {bind: localhost}"), "config.bad_value", "an IP address"),
        (proxy(top="admin: {operators: [{username: a, password_hash: b}]}"), "config.bad_value", "not one of scrypt"),
        (
            proxy(top=f"admin: {{operators: [{{username: admin, password_hash: '{SCRYPT}'}}]}}"),
            "config.conflict",
            "two",
        ),
        (proxy(top="cluster: {cluster_id: c}"), "config.rule", "certificates"),
        ("fleet: {identity: {mode: manual}}\n" + proxy(), "config.rule", "needs ca_file"),
        ("fleet: {identity: {validity_days: 826}}\n" + proxy(), "config.out_of_range", "825"),
        (proxy(top="cluster: {cluster_id: c, replication: {factor: 9}}"), "config.out_of_range", "at most 8"),
        ("include: [x.yml]\n" + proxy(), "file.missing", "x.yml cannot be included"),
        ("fleet: {update: {max_unavailable: 0}}\n" + proxy(), "config.bad_value", "a number of hosts"),
        ("fleet: {update: {max_unavailable: 101%}}\n" + proxy(), "config.bad_value", "a share of them"),
        ("fleet: {update: {canary: gpu-x}}\n" + proxy(), "config.unknown_host", '"gpu-x" is no host'),
        ("fleet: {ssh: {become: su}}\n" + proxy(), "config.bad_value", "become"),
        ("fleet: {ssh: {become: {password: hunter2}}}\n" + proxy(), "config.bad_value", "never the secret itself"),
        ("fleet: {defaults: {ssh: {host_keys: f}}}\n" + proxy(), "config.rule", "host_keys is one for the fleet"),
        ("fleet: {hosts: {a: {address: local, ssh: {jumps: {}}}}}\n" + proxy(), "config.rule", "jumps is one for"),
        ("fleet: {groups: {a: {roles: [authority]}}}\n" + proxy(), "config.not_available", "role authority"),
        ("fleet: {runtime: {python: python3}}\n" + proxy(), "config.bad_value", "an absolute path"),
        ("fleet: {runtime: {python: {path: x}}}\n" + proxy(), "config.missing_field", 'needs "sha256"'),
        ("fleet: {prevent_destroy: [all]}\n" + proxy(), "config.bad_value", "an address pattern"),
        ("fleet: {api_keys: {a: {sha256: short}}}\n" + proxy(), "config.bad_value", "64 hex"),
    ],
)
def test_refusals(findings_of: Findings, text: str, code: str, words: str) -> None:
    found = findings_of(text)
    assert any(each.code == code and words in each.message for each in found), found
    assert all(each.span is not None for each in found)


@pytest.mark.parametrize(
    "text",
    [
        proxy(engines="{llama_cpp: {launch: binary, version: b9905, acceleration: auto}}"),
        proxy(engines="{llama_cpp: {path: /usr/local/bin/llama-server}}"),
        proxy(engines=f"{{llama_cpp: {{launch: wheel, version: '{LLAMA_CPP_WHEEL_DEFAULT}', acceleration: cpu}}}}"),
        proxy(deployment=f"{MODEL}, engine_version: '{LLAMA_CPP_WHEEL_DEFAULT}', tensor_parallel: 1"),
        proxy(engines="{llama_cpp: {version: b9905, acceleration: cuda}}", deployment=MODEL + ", tensor_parallel: 4"),
        proxy(model_host="excluded_devices: [0, '1', GPU-8a1c0f2e-0000-1111-2222-333344445555]"),
        proxy(deployment="model: smollm2-135m-instruct, replicas: 2, heterogeneous_variants: true"),
        proxy(deployment=MODEL + ", engine: llama_cpp, extra_args: ['--threads=4', --mlock, --seed, '1']"),
        proxy(deployment=MODEL + ", extra_args: ['--seed', '1']"),
        proxy(top="admin: {bind: '::1', allow_ips: [127.0.0.0/8, '::1', not-an-ip]}"),
        proxy(top="admin: {enabled: false, port: 8080}"),
        proxy(top="admin: {rate_limit_per_minute: 100}"),
        proxy(top=f"admin: {{operators: [{{username: a, password_hash: '{SCRYPT}', role: read_only}}]}}"),
        "fleet: {prevent_destroy: ['artifact.*', deployment.local/chat]}\n" + proxy(),
        proxy(top="cluster:"),
    ],
)
def test_what_is_fine(load_text: Load, text: str) -> None:
    load_text(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (proxy(engines="{llama_cpp: {}, vllm: {launch: uv, version: 0.10.0}}"), "no deployment uses the engine vllm"),
        (proxy(deployment=MODEL + ", spread_by: [zone]"), "spread_by has no effect"),
        (proxy(top="admin: {max_log_entries: 5}"), "proxy.admin.max_log_entries is kept"),
        (proxy(top="admin: {cors_origins: ['https://x']}"), "proxy.admin.cors_origins is kept"),
        (proxy(top="admin: {enabled: true, allow_ips: [10.0.0.0/8]}"), "listens on loopback, where nobody"),
        (proxy(top="admin: {enabled: true, allow_ips: [here]}"), '"here" is no address and no network'),
        (
            proxy(top=f"admin: {{operators: [{{username: a, password_hash: '{SCRYPT}', tenant: x}}]}}"),
            "an operator's tenant is kept, and restricts nothing",
        ),
        (proxy(top="metrics: {enabled: true}"), "proxy.metrics is kept"),
        ("access_log: {}\n" + proxy(), "access_log is kept"),
    ],
)
def test_notes_do_not_stop_anything(load_text: Load, text: str, words: str) -> None:
    assert any(words in note.message for note in load_text(text).notes)


def origins(body: str) -> str:
    return (
        "proxy: {model_host: {deployments: {chat: {model: smollm2-135m-instruct}, other: {model: qwen3-8b}}}}\n"
        f"origins:\n{body}"
    )


def ai(providers: str, extra: str = "", name: str = "h") -> str:
    return f"  '{name}':\n    action: {{type: ai_proxy, providers: [{providers}]{extra}}}\n"


def managed(deployment: str = "chat", fields: str = "", name: str = "local") -> str:
    return f"{{name: {name}, provider_type: managed_model, deployment: {deployment}{fields}}}"


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        (ai(managed("chta")), "config.unknown_deployment", 'no deployment "chta"'),
        (ai(managed(fields=", base_url: 'http://x'")), "config.conflict", "base_url does not go"),
        (ai(managed(fields=", api_key: k")), "config.conflict", "api_key does not go"),
        (ai(managed(fields=", models: [a, a]")), "config.conflict", "lists a name twice"),
        (ai(managed(fields=", models: [gpt], default_model: gtp")), "config.unknown_model", '"gtp" is not among'),
        (ai(managed(fields=", serve: {models: []}")), "config.conflict", "serve does not go with deployment"),
        (ai("{name: l, serve: {models: []}}"), "config.missing_field", "lists the models"),
        (ai("{name: l, serve: 5}"), "config.wrong_type", '"serve" must be a map'),
        (ai("{name: l, deployment: chat}"), "config.missing_field", 'needs "provider_type"'),
        (ai("{name: l, deployment: chat, provider_type: openai}"), "config.bad_value", "managed_model"),
        (ai("{provider_type: managed_model, deployment: chat}"), "config.missing_field", 'needs "name"'),
        (ai("5"), "config.wrong_type", "a map of fields"),
        (ai(""), "config.conflict", "no providers"),
        ("  h: {action: {type: ai_prox}}\n", "config.bad_value", '"type" must be ai_proxy'),
        ("  h: {action: {}}\n", "config.missing_field", 'needs "type"'),
        ("  h: {}\n", "config.missing_field", 'needs "action"'),
        ("  h: 5\n", "config.wrong_type", "a map of fields"),
        ("  h: {action: {type: ai_proxy, providers: 5}}\n", "config.wrong_type", "a list"),
        (ai(managed(), name="h:8080"), "config.bad_key", "without a port"),
        (ai(managed(), name="a b"), "config.bad_key", "a host name or an IP address"),
        (ai(managed()) + ai(managed(), name="H"), "config.conflict", "the same hostname"),
        (
            ai(managed(fields=", models: [m]")) + ai(managed("other", ", models: [m]"), name="g"),
            "config.conflict",
            "leads model",
        ),
        (
            ai(managed(fields=", models: [m]") + ", " + managed("other", ", models: [m]", "b")),
            "config.conflict",
            "nothing says which of them",
        ),
        (ai(managed(), ", guardrails: {input: [x]}"), "config.unenforced", "guardrails"),
        (ai(managed(fields=", enabled: false")), "config.unenforced", "enabled"),
        (ai(managed()) + "    force_ssl: true\n", "config.unenforced", "force_ssl"),
        (ai(managed()) + "    authentication: {type: api_key}\n", "config.unenforced", "authentication"),
        (ai(managed()) + "    policies: [{type: waf}]\n", "config.unenforced", "policies"),
        (ai(managed()) + "    polices: []\n", "config.unknown_field", "polices"),
    ],
)
def test_origins_that_are_refused(findings_of: Findings, text: str, code: str, words: str) -> None:
    found = findings_of(origins(text))
    assert any(each.code == code and words in each.message for each in found), found


@pytest.mark.parametrize(
    "text",
    [
        ai(managed()),
        ai(managed(), name="::1"),
        ai(managed(), name="127.0.0.1"),
        ai(managed(fields=", models: [m]")) + ai(managed(fields=", models: [m]"), name="g"),
        ai(managed(fields=", models: [m]") + ", " + managed(fields=", models: [m]", name="b")),
        ai(
            managed() + ", {name: openai, api_key: '${OPENAI_API_KEY}', models: [gpt]}",
            ", routing: {strategy: fallback_chain}",
        ),
        ai(managed(), ", guardrails: {}"),
        ai(managed(fields=", enabled: true, weight: 2")),
        ai(managed()) + "    force_ssl: false\n    policies: []\n    authentication: {enabled: false}\n",
        ai("{name: openai, api_key: '${NOPE}'}", ", guardrails: {input: [x]}"),
        "  h: {action: {type: static, body: '${NOPE}'}, force_ssl: true}\n",
    ],
)
def test_origins_that_are_fine(load_text: Load, text: str) -> None:
    load_text(origins(text))


@pytest.mark.parametrize("entry", ["origins.*.policies", "policies", "origins.*", "*.policies"])
def test_accepted_restrictions_are_notes(load_text: Load, entry: str) -> None:
    text = f"fleet: {{accept_unenforced: ['{entry}']}}\n" + origins(ai(managed()) + "    policies: [{type: waf}]\n")
    assert any(note.message == "origins.*.policies is kept, and not managed by sbctl" for note in load_text(text).notes)


@pytest.mark.parametrize(
    ("routing", "words"),
    [("fallback", 'did you mean "fallback_chain"'), ("round_robin", "with routing: fallback_chain it stands in")],
)
def test_a_chain_that_is_none_is_said(load_text: Load, routing: str, words: str) -> None:
    other = "{name: other, base_url: 'https://api.example.com/v1', models: [chat]}"
    text = origins(ai(f"{managed()}, {other}", f", routing: {routing}"))
    assert any(words in note.message for note in load_text(text).notes)


def test_each_kind_of_foreign_block_is_named_once(load_text: Load) -> None:
    text = origins(ai(managed()) + "    cors: {}\n" + ai(managed(), name="g") + "    cors: {}\n")
    assert [note.message for note in load_text(text).notes].count(
        "origins.*.cors is kept, and not managed by sbctl"
    ) == 1


def test_a_refusal_shows_the_way_to_accept_it(findings_of: Findings) -> None:
    (finding,) = findings_of(origins(ai(managed()) + "    policies: [{type: waf}]\n"))
    assert finding.message == "origins.h.policies restricts access, and sbctl does not enforce it yet"
    assert finding.notes == ('remove it, or accept that with fleet.accept_unenforced: ["origins.*.policies"]',)


def test_a_top_level_restriction(findings_of: Findings, load_text: Load) -> None:
    text = "rate_limits: {default: 5}\n" + proxy()
    assert [each.code for each in findings_of(text)] == ["config.unenforced"]
    load_text("fleet: {accept_unenforced: [rate_limits]}\n" + text)

"""`proxy.cluster`: what makes hosts one cluster, and every way in which they would be none."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import ConfigError
from sbctl.config.cluster_shape import peer_address
from sbctl.config.compiled import CompiledConfig
from sbctl.config.load import load

PIN = "SHA256:" + "A" * 43
ROLES = {"gw-1": "gateway", "gw-2": "gateway", "auth": "authority", "gpu-1": "worker", "gpu-2": "worker"}


def written(
    roles: dict[str, str] = ROLES,
    *,
    identity: str = "identity: {directory: ./cluster}, ",
    cluster: str = "",
    model_host: str = "",
    deployment: str = "",
    host: str = "",
    proxy: str = "cluster: {cluster_id: prod%s}",
) -> str:
    hosts = ", ".join(
        f'{name}: {{address: 10.0.0.{at}, host_key: "{PIN}", roles: [{role}], labels: {{n: "{name}"}}{host if name == "gpu-2" else ""}}}'
        for at, (name, role) in enumerate(roles.items(), 1)
    )
    joined = proxy % cluster if "%s" in proxy else proxy
    return (
        f"fleet: {{{identity}ssh: {{identity_file: /k}}, hosts: {{{hosts}}}}}\n"
        f"proxy:\n  http_bind_port: 8080\n  {joined}\n"
        f"  model_host: {{{model_host}deployments: {{chat: {{model: smollm2-135m-instruct, variant: q4_1, replicas: 2{deployment}}}}}}}\n"
        "origins: {localhost: {action: {type: ai_proxy, providers: [{name: p, provider_type: managed_model, deployment: chat, models: [m]}]}}}\n"
    )


def loaded(directory: Path, text: str) -> CompiledConfig:
    path = directory / "sb.yml"
    path.write_text(text)
    return load(path, environ={})


def refused(directory: Path, text: str) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        loaded(directory, text)
    return [one.message for one in caught.value.diagnostics if one.severity == "error"]


def test_hosts_become_nodes_by_their_names_roles_and_labels(tmp_path: Path) -> None:
    config = loaded(tmp_path, written())
    cluster = config.cluster
    assert cluster is not None
    assert (cluster.cluster_id, config.fleet_name) == ("prod", "prod")
    assert (cluster.authorities, cluster.gateways, cluster.workers) == (("auth",), ("gw-1", "gw-2"), ("gpu-1", "gpu-2"))
    assert list(cluster.deployments) == ["chat"]
    assert cluster.deployments["chat"].model.replicas == 2
    assert {name: list(host.origins) for name, host in config.hosts.items()} == {
        "gw-1": ["localhost"], "gw-2": ["localhost"], "auth": [], "gpu-1": [], "gpu-2": [],
    }  # fmt: skip
    assert peer_address(config.hosts["gpu-2"]) == ("0.0.0.0", 9443, "10.0.0.5")


def test_hosts_that_are_everything_at_once_are_a_cluster_too(tmp_path: Path) -> None:
    config = loaded(tmp_path, written(dict.fromkeys(("a", "b", "c"), "gateway, worker, authority")))
    assert config.cluster is not None
    assert config.cluster.authorities == config.cluster.workers == ("a", "b", "c")


@pytest.mark.parametrize("authority", ["", "authority: cluster_authority, ", "authority: file_managed, "])
def test_who_owns_the_deployments_may_be_said_or_left_out(tmp_path: Path, authority: str) -> None:
    assert loaded(tmp_path, written(model_host=authority)).cluster is not None


def test_where_a_worker_is_reached_may_be_written(tmp_path: Path) -> None:
    own = ', proxy: {cluster: {model_bind: "10.0.0.5:9500", model_endpoint: "https://gpu-2.internal:9500"}}'
    config = loaded(tmp_path, written(host=own))
    assert peer_address(config.hosts["gpu-2"]) == ("10.0.0.5", 9500, "gpu-2.internal")


def test_a_port_that_no_member_needs_may_be_another_s(tmp_path: Path) -> None:
    assert loaded(tmp_path, written(cluster=", store: {cluster_port: 8080}")).cluster is not None


def test_labels_spread_without_a_note(tmp_path: Path) -> None:
    config = loaded(tmp_path, written(deployment=", spread_by: [zone]"))
    assert not [note for note in config.notes if "spread_by" in note.message or "serves nothing" in note.message]


REFUSED = {
    "no identity": (written(identity=""), "certificates"),
    "no authority": (written({"a": "gateway", "b": "worker"}), "one authority, or three"),
    "two authorities": (
        written({"a": "gateway, authority", "b": "worker, authority"}),
        "this one has 2 (a, b)",
    ),
    "no gateway": (written({"a": "authority", "b": "worker"}), "nobody answers its API"),
    "no worker": (
        written({"a": "authority, gateway"}, deployment=""),
        "nobody runs its models",
    ),
    "another cluster": (written(host=", proxy: {cluster: {cluster_id: other}}"), "one for the whole cluster"),
    "another store": (written(host=", proxy: {cluster: {store: {port: 5000}}}"), "one for the whole cluster"),
    "somebody outside": (
        written(proxy="model_host: {}").replace("  model_host: {}\n", "").replace(
            'labels: {n: "gpu-2"}', 'labels: {n: "gpu-2"}, proxy: {cluster: {cluster_id: prod}}'
        ),
        "not in the cluster of the others",
    ),
    "another name": (written(host=", proxy: {cluster: {node_id: gpu-9}}"), "node_id of gpu-2"),
    "another role": (written(cluster=", roles: [worker]"), "roles of gw-1"),
    "other labels": (written(host=", proxy: {cluster: {labels: {zone: b}}}"), "labels of gpu-2"),
    "the admin API as owner": (written(model_host="authority: admin_managed, "), "not the admin API"),
    "a bind without a port": (written(host=", proxy: {cluster: {model_bind: 10.0.0.5}}"), "not an address with a port"),
    "an endpoint without TLS": (
        written(host=', proxy: {cluster: {model_endpoint: "http://10.0.0.5:9443"}}'),
        "model_endpoint is an origin",
    ),
    "an endpoint elsewhere": (
        written(host=', proxy: {cluster: {model_endpoint: "https://10.0.0.5:9444"}}'),
        "has port 9444",
    ),
    "a worker on loopback": (written(host=", data_address: 127.0.0.1"), "which is themselves"),
    "a store at the port of the API": (
        written(cluster=", store: {port: 8080}"),
        "auth would listen twice on port 8080: http_bind_port and cluster.store.port",
    ),
    "a store that is asked where it serves": (
        written(cluster=", store: {monitor_port: 4222}"),
        "port 4222: cluster.store.port and cluster.store.monitor_port",
    ),
    "members at the port of gateways": (
        written(dict.fromkeys("abc", "gateway, worker, authority"), cluster=", store: {cluster_port: 9443}"),
        "port 9443: cluster.model_bind and cluster.store.cluster_port",
    ),
    "a worker at the port of the API": (
        written(host=', proxy: {cluster: {model_bind: "0.0.0.0:8080"}}'),
        "gpu-2 would listen twice on port 8080: http_bind_port and cluster.model_bind",
    ),
    "one deployment, two meanings": (
        written(host=", proxy: {model_host: {deployments: {chat: {max_context: 1024}}}}"),
        "not the same on gpu-1 and on gpu-2",
    ),
    "a canary whose store waits for another": (
        written(
            dict.fromkeys(("a", "b", "c"), "gateway, worker, authority"),
            identity="identity: {directory: ./cluster}, update: {canary: b}, ",
        ),
        "its store changes only after that of a",
    ),
    "an owner without a cluster": (
        written(proxy="https_bind_port: null", model_host="authority: cluster_authority, "),
        "leaves the deployments to a cluster",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_cluster_is_refused_with_a_sentence(tmp_path: Path, case: str) -> None:
    text, sentence = REFUSED[case]
    assert any(sentence in message for message in refused(tmp_path, text))


def test_without_a_cluster_nothing_is_one(tmp_path: Path) -> None:
    config = loaded(tmp_path, written({"a": "gateway, worker"}, proxy="https_bind_port: null"))
    assert config.cluster is None
    assert config.fleet_name != "prod"

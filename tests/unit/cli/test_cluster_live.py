"""`sbctl cluster status` of a cluster that runs: whom it asks, what it puts on top, how it ends, and that a large one is read in time."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from sbctl.base.errors import HostError, RefusedError, SbctlError, UnreachableError
from sbctl.cli import cluster_looks
from sbctl.cli.app import app
from sbctl.cli.cluster_live import asked_hosts, live_status
from sbctl.config.compiled import CompiledConfig
from sbctl.node.cluster_status import ClusterStatus
from sbctl.node.messages import Method
from sbctl.views.cluster_live_views import alerts, live_body, live_exit_code, live_text

pytestmark = pytest.mark.flow

NODE = {
    "node_id": "w1",
    "health": "healthy",
    "unhealthy": False,
    "unhealthy_reasons": [],
    "snapshot_age_ms": 400,
    "model_eligible": True,
    "roles": ["worker"],
    "replicas": [{"deployment": "chat", "deployment_generation": 3, "slot": 0, "state": "ready"}],
}
DEPLOYMENT = {
    "deployment_id": "chat",
    "model": "m",
    "generation": 3,
    "desired_replicas": 2,
    "placed_replicas": 2,
    "ready_replicas": 2,
    "phase": "stable",
    "target_ready": True,
    "assignments": [{"node_id": "w1", "slot": 0, "generation": 3}, {"node_id": "w1", "slot": 1, "generation": 3}],
}


def told(**changed: Any) -> dict[str, Any]:
    return {
        "cluster_id": "prod",
        "local_node_id": "a",
        "generated_at_unix_ms": 1_790_000_000_000,
        "deployments": [DEPLOYMENT],
        "nodes": [NODE],
        "store": {"state": "connected", "since": "2026-11-29T12:00:00Z", "server": "a"},
        "deployment_authority": {"active_revision": 12, "signer_node_id": "a"},
        "lease_epoch": 7,
        "is_authority": True,
        **changed,
    }


def read(**changed: Any) -> ClusterStatus:
    return ClusterStatus.model_validate(told(**changed))


class Lines:
    """Hosts that answer with a document or an error."""

    def __init__(self, answers: Mapping[str, Mapping[str, Any] | SbctlError]) -> None:
        self.answers, self.asked = dict(answers), list[str]()

    def ask(self, host: str, work: Callable[[Any], Any]) -> Any:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, SbctlError):
            raise answer

        def call(method: Method, params: Mapping[str, Any], **_: Any) -> Any:
            assert (method, params) == (Method.CLUSTER_STATUS, {})
            return answer

        return work(SimpleNamespace(call=call))

    def close(self) -> None: ...


AWAY = UnreachableError("host.unreachable", "no route")
ALONE = told(local_node_id="b", store={"state": "lost", "since": "2026-11-29T12:00:00Z"})


@pytest.mark.parametrize(
    ("answers", "host", "asked", "silent"),
    [
        ({"a": told(), "b": told()}, "a", ["a"], set()),
        ({"a": AWAY, "b": told()}, "b", ["a", "b"], {"a"}),
        ({"a": ALONE, "b": told()}, "b", ["a", "b"], set()),
        ({"a": ALONE, "b": AWAY}, "a", ["a", "b"], set()),
        ({"a": {"nonsense": 1}, "b": told()}, "b", ["a", "b"], {"a"}),
    ],
)
def test_the_first_that_hears_the_store_is_believed(
    answers: dict[str, Any], host: str, asked: list[str], silent: set[str]
) -> None:
    lines = Lines(answers)
    live = live_status(lines, tuple(answers))
    assert (live.host, lines.asked, set(live.silent)) == (host, asked, silent)


def test_nobody_who_answers_is_exit_7_with_every_reason() -> None:
    with pytest.raises(UnreachableError) as caught:
        live_status(Lines({"a": AWAY, "b": HostError("x", "it is broken")}), ("a", "b"))
    assert caught.value.code == "cluster.no_answer"
    assert "a: no route; b: it is broken" in caught.value.message


def test_where_nothing_is_installed_an_apply_comes_next() -> None:
    bare = HostError("node.missing", "no runtime is installed on the host")
    with pytest.raises(UnreachableError) as caught:
        live_status(Lines({"a": bare, "b": bare}), ("a", "b"))
    assert caught.value.message.endswith(": a, b: no runtime is installed on the host")
    assert "nothing is installed yet: sbctl apply" in (caught.value.next_step or "")


def test_only_authorities_and_gateways_are_asked() -> None:
    cluster = SimpleNamespace(authorities=("a",), gateways=("a", "g"), workers=("w",))
    config = cast("CompiledConfig", SimpleNamespace(cluster=cluster))
    assert asked_hosts(config, None) == ("a", "g")
    assert asked_hosts(config, "g") == ("g",)
    for asked, code in ((config, "cluster.host_sees_nothing"), (SimpleNamespace(cluster=None), "cluster.none")):
        with pytest.raises(RefusedError) as caught:
            asked_hosts(cast("CompiledConfig", asked), "w")
        assert caught.value.code == code


SHORT = {"reason": "no_room", "facts": {"needed_bytes": 9 << 30, "free_bytes": 4 << 30, "short_bytes": 5 << 30, "place": "host"}}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"store": {"state": "lost", "since": "2026-11-29T12:00:00Z", "problem": "refused"}}, "is not heard since 2026-11-29T12:00:00Z (refused)"),
        ({"store": {"state": "no_quorum", "since": "x"}}, "has no quorum since x"),
        ({"store": {"state": "no_writes", "since": "x"}}, "takes no writes since x"),
        ({"brake": "3 of 4 workers are silent"}, "placement holds back: 3 of 4"),
        ({"problem": "its identity ended"}, "a: its identity ended"),
        ({"local_problems": {"trust": "stale"}}, "a: trust: stale"),
        ({"nodes": [{**NODE, "health": "unhealthy", "unhealthy": True, "unhealthy_reasons": ["snapshot_expired"], "snapshot_age_ms": 185_000}]},
         "w1 is unhealthy (snapshot_expired), heard 3 m 05 s ago"),
        ({"nodes": [{**NODE, "health": "degraded", "unhealthy_reasons": ["behind_active_generation"], "problem": "it stands at 11"}]},
         "w1 is degraded (behind_active_generation), heard 0.4 s ago: it stands at 11"),
        ({"nodes": [{"node_id": "w9"}]}, "w9 is unhealthy (no reason was given), never heard"),
        ({"deployments": [{**DEPLOYMENT, "unplaced_replicas": 1, "rejections": {"w1": SHORT, "w2": SHORT, "w3": {"reason": "of_tomorrow"}}}]},
         "chat: no place for 1 of 2 replicas: w1, w2: needs 9.0 GiB of main memory, has 4.0 GiB free: 5.0 GiB short; w3: of_tomorrow"),
        ({"deployments": [{**DEPLOYMENT, "unplaced_replicas": 2}]}, "no worker is known that could take it"),
        ({"deployments": [{**DEPLOYMENT, "phase": "timed_out", "timed_out": True}]}, "chat: generation 3 was not ready by the deadline"),
        ({"deployments": [{**DEPLOYMENT, "phase": "of_tomorrow", "timed_out": True}]}, "chat: generation 3 of_tomorrow"),
    ],
)  # fmt: skip
def test_what_is_wrong_stands_on_top_and_is_exit_8(changed: dict[str, Any], said: str) -> None:
    status = read(**changed)
    assert any(said in text for text in alerts(status)), alerts(status)
    assert live_exit_code(status, {}) == 8
    first = shown(status).split("\n\n")[0]
    assert first.startswith("! ")
    assert live_body("a", told(**changed), status, {})["exit_code"] == 8


def shown(status: ClusterStatus, silent: Mapping[str, SbctlError] | None = None, *, width: int = 80) -> str:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None).print(live_text("a", status, silent or {}, width=width))
    return out.getvalue()


def test_a_cluster_that_is_well_is_told_in_80_columns() -> None:
    text = shown(read())
    assert alerts(read()) == ()
    assert live_exit_code(read(), {}) == 0
    assert live_exit_code(read(), {"b": AWAY}) == 7
    assert "b gives no answer: no route" in shown(read(), {"b": AWAY})
    for part in ("Cluster prod", "revision 12", "a, epoch 7", "connected, since 2026-11-29T12:00:00Z", "w1 ×2", "2/2"):
        assert part in text
    assert text.rstrip().endswith("1 node: 1 healthy; 2 of 2 replicas ready")
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("width", [40, 60, 80, 110])
def test_each_width_holds_names_and_health_whole_and_foreign_text_obeys_nobody(width: int) -> None:
    foreign = {
        **NODE,
        "node_id": "w2",
        "health": "unhealthy",
        "unhealthy_reasons": ["[b]\x1b[31m\u202e"],
        "problem": "\x1b]8;;x",
    }
    roles = {**NODE, "roles": ["gateway", "worker", "authority"]}
    text = shown(read(nodes=[roles, foreign]), width=width)
    assert not {"\x1b", "\u202e"} & set(text)
    assert max(map(len, text.splitlines())) <= width
    for word in ("w1", "w2", "healthy", "unhealthy", "chat", "2/2"):
        assert any(word in line.split() for line in text.splitlines()), word
    assert ("gateway" in text) == (width >= 72)


def test_while_the_store_is_away_its_silence_is_nobody_elses_and_what_runs_is_counted() -> None:
    silent = {
        **NODE,
        "health": "unhealthy",
        "unhealthy": True,
        "unhealthy_reasons": ["snapshot_expired"],
        "model_eligible": False,
    }
    ill = {**silent, "node_id": "w2", "unhealthy_reasons": ["identity_revoked"], "replicas": []}
    status = read(
        nodes=[silent, ill],
        deployments=[{**DEPLOYMENT, "ready_replicas": 0}],
        store={"state": "no_quorum", "since": "2026-11-29T12:00:00Z"},
    )
    told_of = alerts(status)
    assert len(told_of) == 2
    assert "has no quorum" in told_of[0]
    assert told_of[1].startswith("w2 is unhealthy (identity_revoked)")
    assert "1 of 2 replicas ready" in shown(status)


def test_what_a_node_said_last_is_not_told_as_how_it_is() -> None:
    away = {
        **NODE,
        "node_id": "w2",
        "health": "unhealthy",
        "unhealthy": True,
        "unhealthy_reasons": ["snapshot_expired"],
    }
    never = {"node_id": "w3", "roles": ["worker"], "unhealthy_reasons": ["snapshot_missing"]}
    rows = {line.split()[0]: line for line in shown(read(nodes=[NODE, away, never])).splitlines() if line[:1] == "w"}
    assert "was 1" in rows["w2"]
    assert " ? " in rows["w3"]
    assert "was" not in rows["w1"]


def test_who_left_and_said_so_is_no_alert() -> None:
    status = read(nodes=[NODE, {"node_id": "w2", "removed": True}])
    assert alerts(status) == ()
    assert "removed" in shown(status)


def test_of_a_thousand_nodes_those_that_are_not_well_are_shown() -> None:
    many = [{**NODE, "node_id": f"w{number:04d}"} for number in range(1000)]
    many[990] = {**many[990], "health": "degraded", "unhealthy_reasons": ["clock_skew"]}
    text = shown(read(nodes=many))
    assert "w0990" in text
    assert "and 800 nodes more" in text
    assert "1000 nodes: 999 healthy, 1 degraded" in text


# The command

FLEET = """
fleet:
  name: prod
  identity: {directory: ./cluster}
  hosts:
    a: {address: 10.0.0.1, roles: [gateway, authority]}
    g: {address: 10.0.0.2, roles: [gateway]}
    w1: {address: 10.0.0.3, roles: [worker]}
proxy:
  cluster: {cluster_id: prod}
  model_host:
    deployments:
      chat: {model: qwen2.5-0.5b-instruct, variant: q4_k_m, replicas: 2}
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Lines]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "sb.yml").write_text(FLEET)

    def answer(answers: Mapping[str, Any]) -> Lines:
        lines = Lines(answers)
        monkeypatch.setattr(cluster_looks, "fleet_lines", lambda *_: lines)
        return lines

    return answer


ALL = [{**NODE, "node_id": name} for name in ("a", "g", "w1")]


def sbctl(*words: str) -> int:
    return int(app(args=["cluster", "status", *words], prog_name="sbctl", standalone_mode=False))


def test_the_command_asks_shows_and_ends_as_the_cluster_is(
    asked: Callable[..., Lines], capsys: pytest.CaptureFixture[str]
) -> None:
    lines = asked({"a": told(nodes=ALL), "g": told(nodes=ALL, brake="many are silent")})
    assert sbctl() == 0
    assert "Cluster prod" in capsys.readouterr().out
    assert sbctl("--host", "g", "--format", "json") == 8
    body = json.loads(capsys.readouterr().out)
    assert (body["command"], body["asked"], body["exit_code"]) == ("cluster.status", "g", 8)
    assert body["alerts"][0].startswith("placement holds back: many are silent; ")
    assert lines.asked == ["a", "g"]
    asked({"a": AWAY, "g": told(nodes=ALL)})
    assert sbctl() == 7
    asked({"a": told()})
    assert sbctl() == 8
    shown = capsys.readouterr().out
    assert "! g is unhealthy (snapshot_missing), never heard: it is in sb.yml, and was not" in shown
    assert "w1 is" not in shown
    asked({"a": told(store={"state": "lost", "since": "2026-11-29T12:00:00Z"}), "g": AWAY})
    assert sbctl() == 8
    assert "g is unhealthy" not in capsys.readouterr().out, "nobody is heard without the store"
    for words in (("--identities", "--watch"), ("--dir", "x", "--host", "a")):
        with pytest.raises(SbctlError) as caught:
            sbctl(*words)
        assert caught.value.code == "usage"


def test_watching_goes_on_when_nobody_answers(
    asked: Callable[..., Lines], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = asked({"a": AWAY, "g": AWAY})
    looks = iter([False, True])
    monkeypatch.setattr(cluster_looks, "reader_left", lambda: next(looks))
    monkeypatch.setattr("sbctl.base.clock.SystemClock.sleep_s", lambda *_: lines.answers.update({"a": told(nodes=ALL)}))
    assert sbctl("--watch", "--format", "json") == 0
    shown = capsys.readouterr()
    assert "no authority and no gateway says how the cluster is" in shown.err
    assert json.loads(shown.out)["asked"] == "a"

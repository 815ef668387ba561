"""One step of each kind against a host that is played by hand: what is sent, with which secrets, and when a step refuses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from providers.bundle.spec import digest_of
from providers.registry import PROVIDERS
from sbctl import __version__
from sbctl.base.connection import Connection
from sbctl.base.digests import canonical_json, fingerprint, sha256_file
from sbctl.base.errors import EngineError, HostError, InterruptedBySignal, RefusedError, SbctlError, StalePlanError
from sbctl.base.ids import Address
from sbctl.base.limits import BUNDLE_MAX_BYTES
from sbctl.base.secret import Secret
from sbctl.base.truths import Desired, Recorded
from sbctl.engines.pins import LLAMA_CPP_WHEEL_DEFAULT, library_pins, wheel_pin
from sbctl.engines.release_pins import Machine, archive_pin
from sbctl.node.snapshot import (
    ArtifactState,
    BundleState,
    DeploymentState,
    EngineState,
    HostFacts,
    NodeSnapshot,
    PythonFact,
    ReplicaState,
    RuntimeState,
)
from sbctl.plan.model import Change, Step
from sbctl.provider import PerformContext, Progress
from sbctl.trust.bundle import BUNDLE_PAYLOAD_TYPE, TRUST_PAYLOAD_TYPE, BundleContent, TrustSet, content_digest
from sbctl.trust.envelope import unverified_payload
from sbctl.trust.keys import SigningKey
from sbctl.trust.verifier import trust_digest
from tests.simulators.fleet import ManualClock
from tests.simulators.provider_world import QUICKSTART, ProviderWorld, SimServices

FACTS = HostFacts(arch="x86_64", libc="glibc-2.36", pythons=(PythonFact(path="/usr/bin/python3", version="3.11.2"),))
SERVED = NodeSnapshot(bootstrapped=True, host=FACTS, runtime=RuntimeState(running=True, healthy=True))
PIN = wheel_pin(LLAMA_CPP_WHEEL_DEFAULT, "x86_64", "glibc-2.36")


class PlayedNode:
    """Answers every call with `answer` and remembers it."""

    host = "local"

    def __init__(self, snapshot: NodeSnapshot = SERVED, answer: Mapping[str, Any] | None = None) -> None:
        self.shown = snapshot
        self.answer = answer or {}
        self.calls: list[tuple[str, Mapping[str, Any], Mapping[str, Secret]]] = []
        self.sent: list[str] = []
        self.refuses: SbctlError | None = None

    def snapshot(self, deadline_s: float) -> NodeSnapshot:
        return self.shown

    def call(
        self,
        method: str,
        params: Mapping[str, Any],
        *,
        secrets: Mapping[str, Secret],
        deadline_s: float,
        progress: Progress,
    ) -> Mapping[str, Any]:
        self.calls.append((str(method), json.loads(json.dumps(dict(params))), secrets))
        if self.refuses is not None:
            raise self.refuses
        return self.answer

    def put(self, sha256: str, source: Path, *, deadline_s: float, progress: Progress) -> None:
        self.sent.append(sha256)
        progress(source.stat().st_size, source.stat().st_size)

    def close(self) -> None: ...


class Bench:
    """A provider's step on a played node, with services that sign with a fresh key."""

    def __init__(self, directory: Path) -> None:
        self.revisions = iter(range(1, 100_000))
        self.key = SigningKey.generate()
        self.services = SimServices(
            directory,
            ManualClock(datetime(2026, 11, 29, 12, 0, 30, 500, tzinfo=UTC)),
            self.key,
            lambda _: next(self.revisions),
        )
        self.node = PlayedNode()
        self.seen: list[tuple[int, int | None]] = []
        self.cancelled = False

    def perform(
        self,
        kind: str,
        method: str,
        params: Mapping[str, Any],
        desired: Desired | None = None,
        recorded: Recorded | None = None,
        action: str = "update",
    ) -> Mapping[str, Any]:
        address = Address(kind, "local")
        change = Change(address, action, "", "local", Connection("local"), desired=desired, recorded=recorded)
        context = PerformContext(
            self.node,
            self.services,
            change,
            lambda done, total: self.seen.append((done, total)),
            lambda: self.cancelled,
        )
        return PROVIDERS[kind].perform(Step(f"{address}#1:{method}", method, params, "step"), context)


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
def desired(tmp_path: Path) -> dict[str, Desired]:
    world = ProviderWorld(tmp_path)
    world.configure(QUICKSTART)
    return {one.address.kind: one for one in world.desired()}


def recorded_of(desired: Desired, record: Mapping[str, Any]) -> Recorded:
    return Recorded(desired.address, record, 1, desired.fingerprint, desired.spec, "local", Connection("local"))


# host


def test_marking_says_lineage_and_name(bench: Bench) -> None:
    bench.perform("host", "host.mark", {"lineage": "L", "host": "local"})
    assert bench.node.calls == [("host.mark", {"lineage": "L", "host": "local"}, {})]


def test_giving_up_removes_programs_that_no_record_knows(bench: Bench) -> None:
    bench.node.shown = SERVED.model_copy(update={"runtime": RuntimeState(installed_versions=("0.1.0",))})
    bench.perform("host", "host.unmark", {"lineage": "L", "keep_weights": True})
    assert [(method, params) for method, params, _ in bench.node.calls] == [
        ("runtime.remove", {"lineage": "L"}),
        ("host.unmark", {"lineage": "L", "keep_weights": True}),
    ]


# runtime

INSTALL = {"version": __version__, "python": None}


def test_install_sends_every_wheel_by_digest_and_names_uv(bench: Bench, tmp_path: Path) -> None:
    bench.perform("runtime", "runtime.install", INSTALL)
    ((method, params, secrets),) = bench.node.calls
    assert (method, params["version"], params["python"], secrets) == (
        "runtime.install",
        __version__,
        "/usr/bin/python3",
        {},
    )
    assert params["uv"]["filename"].startswith("uv-")
    assert {wheel["sha256"] for wheel in params["wheels"]} == set(bench.node.sent)
    assert {sha256_file(path) for path in tmp_path.glob("*.whl")} == set(bench.node.sent)
    sizes = [total for _, total in bench.seen[1:]]
    assert len(set(sizes)) == 1
    assert bench.seen[-1][0] == bench.seen[-1][1]


@pytest.mark.parametrize(
    ("pythons", "wanted", "chosen"),
    [
        ((("/usr/bin/python3.13", "3.13.1"), ("/usr/bin/python3.11", "3.11.2")), None, "/usr/bin/python3.11"),
        ((("/usr/bin/python3", "3.9.2"), ("/usr/local/bin/python3.12", "3.12.0")), None, "/usr/local/bin/python3.12"),
        ((("/b/python3.11", "3.11.2"), ("/a/python3.11", "3.11.2")), None, "/a/python3.11"),
        (
            (("/usr/bin/python3.13", "3.13.1"), ("/usr/bin/python3.11", "3.11.2")),
            "/usr/bin/python3.13",
            "/usr/bin/python3.13",
        ),
        ((("/usr/bin/python3.12", "3.12.1"),), "/srv/python3", "/srv/python3"),
        ((), "/srv/python3", "/srv/python3"),
    ],
)
def test_the_oldest_python_that_is_new_enough_or_the_named_one(
    bench: Bench, pythons: tuple[tuple[str, str], ...], wanted: str | None, chosen: str
) -> None:
    facts = FACTS.model_copy(
        update={"pythons": tuple(PythonFact(path=path, version=version) for path, version in pythons)}
    )
    bench.node.shown = SERVED.model_copy(update={"host": facts})
    bench.perform("runtime", "runtime.install", {**INSTALL, "python": wanted})
    assert bench.node.calls[0][1]["python"] == chosen


@pytest.mark.parametrize("version", ["3.9.2", "2.7", "unknown", ""])
def test_a_host_without_a_new_python_is_refused(bench: Bench, version: str) -> None:
    facts = FACTS.model_copy(update={"pythons": (PythonFact(path="/usr/bin/python3", version=version),)})
    bench.node.shown = SERVED.model_copy(update={"host": facts})
    with pytest.raises(RefusedError, match=r"no Python 3\.11") as caught:
        bench.perform("runtime", "runtime.install", INSTALL)
    assert caught.value.code == "host.no_python"


def test_another_version_is_not_delivered(bench: Bench) -> None:
    with pytest.raises(RefusedError) as caught:
        bench.perform("runtime", "runtime.install", {"version": "9.9.9", "python": None})
    assert caught.value.code == "runtime.other_version"


def test_a_wheelhouse_without_uv_is_no_wheelhouse(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    lone = tmp_path / "sbctl_fleet-0.1.0-py3-none-any.whl"
    lone.write_text("wheel")
    monkeypatch.setattr(bench.services, "wheelhouse", lambda *_: {lone.name: lone})
    with pytest.raises(HostError) as caught:
        bench.perform("runtime", "runtime.install", INSTALL)
    assert caught.value.code == "runtime.wheelhouse_incomplete"


def test_a_cancelled_install_stops_between_two_files(bench: Bench) -> None:
    bench.cancelled = True
    with pytest.raises(InterruptedBySignal):
        bench.perform("runtime", "runtime.install", INSTALL)
    assert bench.node.sent == []


def test_activation_signs_the_signer_set_and_sends_the_password_beside(
    bench: Bench, desired: dict[str, Desired]
) -> None:
    spec = desired["runtime"].spec
    bench.services.secrets["env:ADMIN"] = "hunter2"
    params = {
        **{name: spec[name] for name in ("version", "config", "trust")},
        "admin_password": {"reference": "env:ADMIN"},
    }
    bench.perform("runtime", "runtime.activate", params)
    ((_, sent, secrets),) = bench.node.calls
    assert secrets["admin_password"].reveal() == b"hunter2"
    assert "hunter2" not in json.dumps(sent)
    kind, payload = unverified_payload(sent["trust_envelope"], max_bytes=1 << 20)[:2]
    assert kind == TRUST_PAYLOAD_TYPE
    assert TrustSet.model_validate_json(payload).signers == spec["trust"]["signers"]
    assert sent["config"] == spec["config"]


def test_the_record_of_a_runtime_says_what_its_host_must_show(desired: dict[str, Desired]) -> None:
    runtime = desired["runtime"]
    trust = TrustSet(lineage=runtime.spec["config"]["lineage"], **runtime.spec["trust"])
    answered = PROVIDERS["runtime"].record(runtime, {"runtime.local#1:runtime.activate": {"unit_sha256": "11" * 32}})
    assert answered["trust_digest"] == trust_digest(trust)
    assert answered["config_sha256"] == fingerprint(runtime.spec["config"])
    assert answered["unit_sha256"] == "11" * 32
    assert PROVIDERS["runtime"].record(runtime, {})["unit_sha256"] is None


# engine


def install_params(**more: Any) -> dict[str, Any]:
    return {
        "engine": "llama_cpp",
        "project": "xllamacpp",
        "version": PIN.version,
        "python": None,
        "delivery": "pull",
        "wheel": None,
        **more,
    }


def test_a_wheel_that_was_unknown_is_chosen_for_the_host(bench: Bench) -> None:
    bench.node.answer = {"path": "/x", "version": PIN.version, "digest": PIN.sha256}
    answer = bench.perform("engine", "engine.install", install_params())
    assert bench.node.calls[0][1]["wheel"] == {"filename": PIN.filename, "sha256": PIN.sha256}
    assert bench.node.sent == []
    assert answer == {"digests": {PIN.version: PIN.sha256}}


def test_a_pushed_wheel_is_sent_before_it_is_installed(bench: Bench) -> None:
    wheel = {"filename": PIN.filename, "sha256": PIN.sha256}
    bench.perform("engine", "engine.install", install_params(delivery="push", wheel=wheel))
    assert bench.node.sent == [PIN.sha256, *(library.sha256 for library in library_pins("x86_64"))]
    assert bench.node.calls[0][1]["delivery"] == "push"


def test_digests_of_builds_that_stay_are_kept(bench: Bench, desired: dict[str, Desired]) -> None:
    recorded = recorded_of(desired["engine"], {"digests": {"2025.1": "aa" * 32}})
    bench.node.answer = {"digest": PIN.sha256}
    installed = bench.perform("engine", "engine.install", install_params(), recorded=recorded)
    removed = bench.perform("engine", "engine.remove", {"engine": "llama_cpp", "version": "2024.1"}, recorded=recorded)
    spec = {**desired["engine"].spec, "versions": ["2025.1", PIN.version]}
    record = PROVIDERS["engine"].record(replace(desired["engine"], spec=spec), {"1": removed, "2": installed})
    assert record == {"digests": {"2025.1": "aa" * 32, PIN.version: PIN.sha256}}


def test_a_program_is_looked_for_once_the_host_answers(bench: Bench, desired: dict[str, Desired]) -> None:
    look = {"engine": "llama_cpp", "path": None, "versions": []}
    with pytest.raises(RefusedError) as caught:
        bench.perform("engine", "snapshot", look)
    assert caught.value.code == "engine.missing"
    program = EngineState(engine="llama_cpp", launch="binary", version="9905", path="/usr/bin/llama-server", ours=False)
    bench.node.shown = SERVED.model_copy(update={"engines": (program,)})
    answer = bench.perform("engine", "snapshot", look)
    wanted = replace(desired["engine"], spec={"launch": "binary", "path": None, "versions": []})
    assert PROVIDERS["engine"].record(wanted, {"engine.local#1:snapshot": answer}) == {
        "program": "/usr/bin/llama-server (9905)"
    }
    assert PROVIDERS["engine"].record(wanted, {}) == {"program": None}


RELEASE = archive_pin("b9905", Machine("Linux", "x86_64", "glibc-2.36"))


def release_params(*, delivery: str, known: bool = True) -> dict[str, Any]:
    wish = {"launch": "binary", "versions": ["b9905"], "acceleration": "cpu", "sha256": None}
    archive = asdict(RELEASE) if known else None
    return {"engine": "llama_cpp", "version": "b9905", "delivery": delivery, "archive": archive, "wish": wish}


@pytest.mark.parametrize(("delivery", "sent"), [("push", [RELEASE.sha256]), ("pull", [])])
def test_a_release_is_named_by_digest_and_sent_first_where_it_is_pushed(
    bench: Bench, desired: dict[str, Desired], delivery: str, sent: list[str]
) -> None:
    bench.node.answer = {"digest": RELEASE.sha256}
    answer = bench.perform("engine", "engine.install", release_params(delivery=delivery, known=delivery == "push"))
    ((_, asked, _),) = bench.node.calls
    assert (asked["archive"]["sha256"], asked["archive"]["url"]) == (RELEASE.sha256, RELEASE.url)
    assert (asked["launch"], asked["wheel"], asked["delivery"]) == ("binary", None, delivery)
    assert bench.node.sent == sent
    wanted = replace(desired["engine"], spec={"launch": "binary", "path": None, "versions": ["b9905"]})
    assert PROVIDERS["engine"].record(wanted, {"1": answer})["digests"] == {"b9905": RELEASE.sha256}


def test_a_host_that_turns_out_to_have_the_program_is_sent_nothing(bench: Bench, desired: dict[str, Desired]) -> None:
    program = EngineState(
        engine="llama_cpp", launch="binary", version="b9905", path="/usr/bin/llama-server", ours=False
    )
    bench.node.shown = SERVED.model_copy(update={"engines": (program,)})
    answer = bench.perform("engine", "engine.install", release_params(delivery="push"))
    assert bench.node.calls == []
    assert bench.node.sent == []
    wanted = replace(desired["engine"], spec={"launch": "binary", "path": None, "versions": ["b9905"]})
    record = PROVIDERS["engine"].record(wanted, {"engine.local#1:engine.install": answer})
    assert record == {"program": "/usr/bin/llama-server (b9905)"}


# artifact


def test_weights_are_pulled_sent_or_removed(bench: Bench, desired: dict[str, Desired]) -> None:
    facts = desired["artifact"].spec["facts"]
    bench.perform("artifact", "artifact.pull", {"facts": facts})
    bench.perform("artifact", "artifact.import", {"facts": facts})
    bench.perform("artifact", "artifact.remove", {"artifact": facts["artifact"]})
    assert [method for method, _, _ in bench.node.calls] == ["artifact.pull", "artifact.import", "artifact.remove"]
    assert bench.node.calls[0][1]["artifact"] == facts
    assert bench.node.sent == [file["sha256"] for file in facts["files"]]


@pytest.mark.parametrize(("action", "sends"), [("create", False), ("update", True)])
def test_weights_that_a_host_kept_from_an_earlier_life_are_not_sent_again(
    bench: Bench, desired: dict[str, Desired], action: str, sends: bool
) -> None:
    facts = desired["artifact"].spec["facts"]
    kept = ArtifactState(artifact=facts["artifact"], state="ready", size_bytes=1)
    bench.node.shown = SERVED.model_copy(update={"artifacts": (kept,)})
    bench.perform("artifact", "artifact.import", {"facts": facts}, action=action)
    assert [method for method, _, _ in bench.node.calls] == ["artifact.import"]
    assert bool(bench.node.sent) is sends


# bundle


def apply_params(expected: int | None) -> dict[str, Any]:
    return {"scope": "local", "expected_revision": expected}


def held(revision: int, digest: str = "ee" * 32, key_epoch: int = 0) -> NodeSnapshot:
    return SERVED.model_copy(
        update={"bundle": BundleState(revision=revision, content_digest=digest, key_epoch=key_epoch)}
    )


def test_a_bundle_is_numbered_dated_signed_and_complete(bench: Bench, desired: dict[str, Desired]) -> None:
    bundle = desired["bundle"]
    bench.node.answer = {"revision": 1, "content_digest": "ignored", "report": {"deployments": {}}}
    answer = bench.perform("bundle", "bundle.apply", apply_params(None), bundle)
    ((_, sent, _),) = bench.node.calls
    kind, payload = unverified_payload(sent["envelope"], max_bytes=1 << 20)[:2]
    document = json.loads(payload)
    assert (kind, sent["expected_revision"]) == (BUNDLE_PAYLOAD_TYPE, None)
    assert document["issued_at"] == "2026-11-29T12:00:30Z"
    assert (document["revision"], document["scope"], document["expires_at"]) == (1, "local", None)
    content = BundleContent.model_validate_json(json.dumps(document["content"]))
    assert document["content_digest"] == content_digest(content) == digest_of(bundle.spec)
    assert content.deployments["chat"].cold_start == "wait"
    record = PROVIDERS["bundle"].record(bundle, {"bundle.local#1:bundle.apply": answer})
    assert record == {"revision": 1, "content_digest": content_digest(content), "key_epoch": 0}


def test_a_record_whose_answer_was_lost_knows_no_revision(desired: dict[str, Desired]) -> None:
    record = PROVIDERS["bundle"].record(desired["bundle"], {"bundle.local#1:bundle.apply": {}})
    assert (record["revision"], record["content_digest"]) == (None, digest_of(desired["bundle"].spec))


def test_numbers_are_skipped_until_the_node_can_take_one(bench: Bench, desired: dict[str, Desired]) -> None:
    bench.node.shown = held(40)
    bench.perform("bundle", "bundle.apply", apply_params(40), desired["bundle"])
    ((_, sent, _),) = bench.node.calls
    assert json.loads(unverified_payload(sent["envelope"], max_bytes=1 << 20)[1])["revision"] == 41
    assert sent["expected_revision"] == 40


def test_a_node_far_ahead_of_the_state_is_not_caught_up_with(bench: Bench, desired: dict[str, Desired]) -> None:
    bench.node.shown = held(2**53 - 1)
    with pytest.raises(RefusedError) as caught:
        bench.perform("bundle", "bundle.apply", apply_params(2**53 - 1), desired["bundle"])
    assert caught.value.code == "bundle.revision_far_ahead"


@pytest.mark.parametrize(
    ("held_revision", "detail", "expected"),
    [
        (40, {"stage": "start"}, "look at its log; meanwhile the host stays at revision 40"),
        (None, {"stage": "start"}, "look at its log"),
        (40, {}, "look at its log"),
    ],
)
def test_an_engine_that_fails_under_a_new_bundle_is_told_with_what_the_host_goes_on_with(
    bench: Bench, desired: dict[str, Desired], held_revision: int | None, detail: dict[str, str], expected: str
) -> None:
    bench.node.shown = SERVED if held_revision is None else held(held_revision)
    bench.node.refuses = EngineError("engine_early_exit", "it ended", next_step="look at its log", detail=detail)
    with pytest.raises(EngineError, match="it ended") as caught:
        bench.perform("bundle", "bundle.apply", apply_params(held_revision), desired["bundle"])
    assert (caught.value.code, caught.value.next_step) == ("engine_early_exit", expected)


def test_a_bundle_that_came_back_with_its_runtime_is_kept(bench: Bench, desired: dict[str, Desired]) -> None:
    bench.node.shown = held(3, digest_of(desired["bundle"].spec))
    answer = bench.perform("bundle", "bundle.apply", apply_params(None), desired["bundle"])
    assert answer["bundle"]["revision"] == 3
    assert bench.node.calls == []


def test_what_failed_before_its_weights_came_is_started(bench: Bench, desired: dict[str, Desired]) -> None:
    shown = held(3, digest_of(desired["bundle"].spec))
    states = [("chat", "failed"), ("chat", "ready"), ("another", "failed")]
    for name, state in states:
        one = DeploymentState(deployment=name, replicas=(ReplicaState(state=state),))
        bench.node.shown = shown.model_copy(update={"deployments": (one,)})
        assert bench.perform("bundle", "bundle.apply", apply_params(None), desired["bundle"])["bundle"]["revision"] == 3
    ((method, params, _),) = bench.node.calls
    assert (method, params["deployment"], params["action"]) == ("deployment.action", "chat", "load")


@pytest.mark.parametrize("revision", [3, None], ids=["by its number", "by its content: the answer was lost"])
def test_an_older_bundle_that_came_back_is_replaced_when_the_state_knows_it(
    bench: Bench, desired: dict[str, Desired], revision: int | None
) -> None:
    bench.node.shown = held(3)
    recorded = recorded_of(desired["bundle"], {"revision": revision, "content_digest": "ee" * 32, "key_epoch": 0})
    bench.perform("bundle", "bundle.apply", apply_params(None), desired["bundle"], recorded)
    assert bench.node.calls[0][1]["expected_revision"] == 3


@pytest.mark.parametrize(
    ("shown", "expected", "record"),
    [
        (held(4), 3, {"revision": 3}),
        (held(4), None, {"revision": None, "content_digest": "dd" * 32, "key_epoch": 0}),
        (held(4), None, {"revision": None, "content_digest": "ee" * 32, "key_epoch": 1}),
        (held(4), None, None),
        (held(3, key_epoch=1), None, {"revision": 2}),
        (SERVED, 3, {"revision": 3}),
    ],
)
def test_a_bundle_that_changed_since_the_plan_is_not_overwritten(
    bench: Bench, desired: dict[str, Desired], shown: NodeSnapshot, expected: int | None, record: dict[str, Any] | None
) -> None:
    bench.node.shown = shown
    recorded = None if record is None else recorded_of(desired["bundle"], record)
    with pytest.raises(StalePlanError) as caught:
        bench.perform("bundle", "bundle.apply", apply_params(expected), desired["bundle"], recorded)
    assert caught.value.code == "bundle.changed_since_plan"
    assert bench.node.calls == []


@pytest.mark.parametrize(("method", "params"), [("bundle.apply", apply_params(3)), ("snapshot", {})])
def test_a_runtime_that_is_down_is_not_said_to_hold_another_bundle(
    bench: Bench, desired: dict[str, Desired], method: str, params: dict[str, Any]
) -> None:
    bench.node.shown = SERVED.model_copy(update={"runtime": RuntimeState()})
    with pytest.raises(HostError) as caught:
        bench.perform("bundle", method, params, desired["bundle"])
    assert (caught.value.code, caught.value.retryable) == ("runtime.not_healthy", True)
    assert bench.node.calls == []


def test_a_bundle_that_no_runtime_takes_is_refused_here(bench: Bench, desired: dict[str, Desired]) -> None:
    bundle = desired["bundle"]
    chat = bundle.spec["deployments"]["chat"]
    many = {f"chat-{number:x>56}": chat for number in range(BUNDLE_MAX_BYTES // len(canonical_json(chat)))}
    with pytest.raises(RefusedError) as caught:
        bench.perform(
            "bundle", "bundle.apply", apply_params(None), replace(bundle, spec={**bundle.spec, "deployments": many})
        )
    assert caught.value.code == "bundle.too_large"


def test_taking_note_wants_the_content_to_be_there(bench: Bench, desired: dict[str, Desired]) -> None:
    for shown in (SERVED, held(3)):
        bench.node.shown = shown
        with pytest.raises(StalePlanError):
            bench.perform("bundle", "snapshot", {}, desired["bundle"])
    bench.node.shown = held(3, digest_of(desired["bundle"].spec))
    assert bench.perform("bundle", "snapshot", {}, desired["bundle"])["bundle"]["revision"] == 3


def test_acting_on_a_deployment_keeps_what_is_recorded(bench: Bench, desired: dict[str, Desired]) -> None:
    record = {"revision": 7, "content_digest": digest_of(desired["bundle"].spec), "key_epoch": 0}
    load = {"deployment": "chat", "action": "load"}
    answer = bench.perform(
        "bundle", "deployment.action", load, desired["bundle"], recorded_of(desired["bundle"], record)
    )
    assert PROVIDERS["bundle"].record(desired["bundle"], {"1": answer}) == record
    assert bench.perform("bundle", "deployment.action", load, desired["bundle"]) == {}
    bench.perform("bundle", "bundle.clear", {})
    assert bench.node.calls[-1][:2] == ("bundle.clear", {})


# members


@pytest.mark.parametrize("kind", ["deployment", "origin"])
def test_a_member_has_no_steps(bench: Bench, kind: str) -> None:
    with pytest.raises(ValueError, match="applied by its bundle"):
        bench.perform(kind, "bundle.apply", {})


def test_refusals_say_what_to_do(bench: Bench, desired: dict[str, Desired]) -> None:
    bench.node.shown = held(4)
    with pytest.raises(SbctlError) as caught:
        bench.perform("bundle", "bundle.apply", apply_params(3), desired["bundle"])
    assert caught.value.next_step

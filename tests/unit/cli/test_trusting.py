"""`host trust`: nothing is pinned that nobody vouched for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from sbctl.base.connection import Connection, Jump
from sbctl.base.errors import ConfigError, ExitCode, InputError, RefusedError, UnreachableError
from sbctl.base.host_keys import HostKey
from sbctl.cli.trusting import TrustRequest, targets_of, trust_hosts, unnamed_pins
from sbctl.config.host_lock import LockedKey, read_host_lock, write_host_lock
from sbctl.config.known_hosts import parse_known_hosts
from sbctl.views.trust_views import Question, TrustOutcome
from tests.simulators.ssh_keys import ecdsa_key, ed25519_key, rsa_key

A, B, NEW = ed25519_key("a"), ed25519_key("b"), ed25519_key("new")
BASTION = Jump("bastion", "bastion.corp")
FLEET = {
    "me": Connection("local"),
    "gpu-a": Connection("ssh", "10.0.0.1", jumps=(BASTION,)),
    "gpu-b": Connection("ssh", "10.0.0.2", 2222, jumps=(BASTION,)),
    "gw": Connection("ssh", "10.0.0.3"),
}
SHOWN = {"gpu-a": A, "gpu-b": B, "gw": ecdsa_key(1), "bastion": rsa_key(1)}


@dataclass
class Scene:
    """A fleet that shows keys, and somebody who answers."""

    lock: Path
    shown: dict[str, HostKey | UnreachableError] = field(default_factory=lambda: dict(SHOWN))
    questions: list[Question] = field(default_factory=list)
    scanned: list[tuple[Jump, ...]] = field(default_factory=list)
    answer: Callable[[Question], bool] | None = lambda _question: True

    def scan(self, path: tuple[Jump, ...]) -> HostKey:
        self.scanned.append(path)
        found = self.shown[path[-1].name]
        if isinstance(found, UnreachableError):
            raise found
        return found

    def run(self, *names: str, connections: dict[str, Connection] | None = None, **options: object) -> TrustOutcome:
        def ask(question: Question) -> bool:
            self.questions.append(question)
            assert self.answer is not None
            return self.answer(question)

        request = TrustRequest(self.lock, targets_of(connections or FLEET, names), ask if self.answer else None)
        return trust_hosts(replace(request, **options), self.scan)  # type: ignore[arg-type]

    def pins(self, name: str) -> tuple[str, ...]:
        return read_host_lock(self.lock).pins(name)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path / "sb.hosts.lock")


def statuses(outcome: TrustOutcome) -> dict[str, str]:
    return {host.name: host.status for host in outcome.hosts}


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        ((), ["bastion", "gw", "gpu-a", "gpu-b"]),
        (("gpu-*",), ["gpu-a", "gpu-b"]),
        (("gpu-b", "bastion"), ["bastion", "gpu-b"]),
    ],
)
def test_targets_are_hosts_and_jumps_the_near_ones_first(patterns: tuple[str, ...], names: list[str]) -> None:
    assert list(targets_of(FLEET, patterns)) == names


@pytest.mark.parametrize(
    ("pattern", "code", "step"),
    [("gpu-c", "host.unknown", 'did you mean "gpu-'), ("me", "host.local", ""), ("zzz-*", "host.unknown", "host list")],
)
def test_a_name_that_is_none(pattern: str, code: str, step: str) -> None:
    with pytest.raises(InputError) as caught:
        targets_of(FLEET, (pattern,))
    assert caught.value.code == code
    assert step in (caught.value.next_step or "")


def test_each_host_is_asked_for_and_pinned(scene: Scene) -> None:
    outcome = scene.run()
    assert statuses(outcome) == dict.fromkeys(["bastion", "gw", "gpu-a", "gpu-b"], "pinned")
    assert outcome.exit_code is ExitCode.DONE
    assert [(each.name, each.key, each.previous) for each in scene.questions] == [
        ("bastion", rsa_key(1), ()), ("gw", ecdsa_key(1), ()), ("gpu-a", A, ()), ("gpu-b", B, ()),
    ]  # fmt: skip
    assert read_host_lock(scene.lock).keys["gpu-b"] == (LockedKey("gpu-b", "10.0.0.2", 2222, B),)
    assert (
        scene.run(connections={**FLEET, "gw": replace(FLEET["gw"], host_keys=scene.pins("gw"))}).hosts[1].status
        == "unchanged"
    )


def test_what_lies_behind_a_jump_is_reached_with_the_pin_just_made(scene: Scene) -> None:
    scene.run("bastion", "gpu-a")
    assert scene.scanned[-1][0].host_keys == (rsa_key(1).text,)


def test_a_no_pins_nothing_and_the_others_go_on(scene: Scene) -> None:
    scene.answer = lambda question: question.name != "gpu-a"
    outcome = scene.run("gpu-*")
    assert statuses(outcome) == {"gpu-a": "declined", "gpu-b": "pinned"}
    assert outcome.exit_code is ExitCode.REFUSED
    assert scene.pins("gpu-a") == ()


def test_a_host_that_gives_no_answer_is_its_own_row(scene: Scene) -> None:
    scene.shown["gpu-a"] = UnreachableError(
        "ssh.no_answer", "gave no answer", place="jump bastion (ssh)", next_step="look"
    )
    outcome = scene.run("gpu-*")
    assert statuses(outcome) == {"gpu-a": "unreachable", "gpu-b": "pinned"}
    assert outcome.exit_code is ExitCode.UNREACHABLE
    assert outcome.hosts[0].problem == "jump bastion (ssh): gave no answer. look"


@pytest.mark.parametrize("where", ["lock", "state"])
def test_E2_a_changed_key_is_loud_and_asked_for(scene: Scene, where: str) -> None:
    recorded = {}
    if where == "lock":
        write_host_lock(read_host_lock(scene.lock).pinned("gw", [LockedKey("gw", "10.0.0.3", 22, A)]))
    else:
        recorded = {"gw": replace(FLEET["gw"], host_keys=(A.text,))}
    scene.answer = lambda _question: False
    outcome = scene.run("gw", recorded=recorded)
    assert outcome.hosts[0].previous == (A.fingerprint,)
    assert scene.questions[0].previous == (A.fingerprint,)
    assert ("sb.hosts.lock:2" if where == "lock" else "the state") in scene.questions[0].previous_place
    assert scene.pins("gw") == ((A.text,) if where == "lock" else ())


def test_a_key_that_another_host_has_too_is_said(scene: Scene) -> None:
    scene.shown["gpu-b"] = A
    scene.run("gpu-*")
    assert [each.shared_with for each in scene.questions] == [(), ("gpu-a",)]


def test_a_host_pinned_in_sb_yml_is_left_to_it(scene: Scene) -> None:
    outcome = scene.run("gw", connections={"gw": replace(FLEET["gw"], host_keys=(A.fingerprint,))})
    assert statuses(outcome) == {"gw": "in_sb_yml"}
    assert not scene.lock.exists()
    assert scene.scanned == []


@pytest.mark.parametrize(
    ("terminal", "options", "code"),
    [
        (True, {"assume_yes": True}, "pin.blind"),
        (False, {"assume_yes": True}, "pin.blind"),
        (False, {}, "pin.nobody_to_ask"),
        (False, {"fingerprint": A.fingerprint}, "pin.nobody_to_ask"),
        (False, {"known": parse_known_hosts(b"")}, "pin.nobody_to_ask"),
    ],
)
def test_E1_nobody_is_trusted_blindly(scene: Scene, terminal: bool, options: dict[str, object], code: str) -> None:
    scene.answer = scene.answer if terminal else None
    with pytest.raises(RefusedError) as caught:
        scene.run("gpu-a", **options)
    assert caught.value.code == code
    assert caught.value.exit_code is ExitCode.REFUSED
    assert scene.scanned == []
    assert not scene.lock.exists()


def test_a_fingerprint_given_beforehand_is_enough(scene: Scene) -> None:
    scene.answer = None
    assert statuses(scene.run("gpu-a", assume_yes=True, fingerprint=A.fingerprint)) == {"gpu-a": "pinned"}


def test_E2_another_key_than_the_given_fingerprint_is_refused_on_a_terminal_too(scene: Scene) -> None:
    for answer in (None, lambda _question: True):
        scene.answer = answer
        outcome = scene.run("gpu-a", assume_yes=answer is None, fingerprint=NEW.fingerprint)
        assert statuses(outcome) == {"gpu-a": "refused"}
        assert A.fingerprint in outcome.hosts[0].problem
        assert outcome.exit_code is ExitCode.REFUSED
    assert scene.questions == []
    assert not scene.lock.exists()


@pytest.mark.parametrize(("fingerprint", "names"), [(A.fingerprint, ("gpu-*",)), ("SHA1:x", ("gpu-a",))])
def test_a_fingerprint_is_one_and_of_one_host(scene: Scene, fingerprint: str, names: tuple[str, ...]) -> None:
    with pytest.raises(InputError):
        scene.run(*names, fingerprint=fingerprint)


KNOWN = f"""\
10.0.0.1 {rsa_key(7).text}
10.0.0.1 {A.text}
[10.0.0.2]:2222 {B.text}
[10.0.0.2]:2222 {NEW.text}
10.0.0.3 {ecdsa_key(1).text}
@revoked * {ecdsa_key(1).text}
@cert-authority * {NEW.text}
"""


def test_from_a_known_hosts_file_nobody_is_connected_to(scene: Scene) -> None:
    scene.answer = None
    known = parse_known_hosts(KNOWN.encode())
    outcome = scene.run(assume_yes=True, known=known, known_file="kh")
    assert statuses(outcome) == {"bastion": "unknown", "gw": "refused", "gpu-a": "pinned", "gpu-b": "refused"}
    assert scene.scanned == []
    assert scene.pins("gpu-a") == (A.text,)
    assert scene.pins("gw") == ()
    problems = {host.name: host.problem for host in outcome.hosts}
    assert "revoked" in problems["gw"]
    assert "lines 3 and 4" in problems["gpu-b"]
    assert "kh has no key" in problems["bastion"]
    assert [note.line for note in outcome.lines] == [6, 7]
    assert outcome.exit_code is ExitCode.REFUSED


def test_what_somebody_else_pinned_meanwhile_stays(scene: Scene) -> None:
    def answer(question: Question) -> bool:
        write_host_lock(read_host_lock(scene.lock).pinned("other", [LockedKey("other", "1.1.1.1", 22, NEW)]))
        return question.name == "gw"

    scene.answer = answer
    scene.run("gw")
    assert set(read_host_lock(scene.lock).keys) == {"gw", "other"}


def test_a_damaged_lock_is_said_before_anything_is_asked(scene: Scene) -> None:
    scene.lock.write_text("# sb.hosts.lock v1\n<<<<<<< HEAD\n")
    with pytest.raises(ConfigError):
        scene.run("gw")
    assert scene.scanned == []


def test_pins_that_serve_nobody_are_told_and_removed_only_on_request(scene: Scene) -> None:
    scene.run()
    recorded = {"gw": FLEET["gw"], "leaving": replace(FLEET["gpu-a"], jumps=(Jump("old-bastion", "old.corp"),))}
    lock = read_host_lock(scene.lock)
    for name in ("gone", "leaving", "old-bastion"):
        lock = lock.pinned(name, [LockedKey(name, "1.1.1.1", 22, NEW)])
    write_host_lock(lock)
    told = unnamed_pins(scene.lock, FLEET, recorded, remove=False)
    assert [(each.name, each.status) for each in told] == [("gone", "unnamed")]
    assert "--prune" in told[0].problem
    assert set(read_host_lock(scene.lock).keys) == set(lock.keys)
    removed = unnamed_pins(scene.lock, FLEET, recorded, remove=True)
    assert [(each.name, each.status) for each in removed] == [("gone", "removed")]
    assert set(read_host_lock(scene.lock).keys) == set(lock.keys) - {"gone"}
    assert unnamed_pins(scene.lock, FLEET, recorded, remove=True) == ()

"""`pack` where there is a network, `apply --from` where there is none, with the wheels that a host really gets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from sbctl.trust.keys import SigningKey, save_key_file
from tests.simulators.operator_world import OperatorWorld, new_world

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

NO_NETWORK = {"SBCTL_PACKAGE_INDEX": "http://127.0.0.1:9/", "https_proxy": "http://127.0.0.1:9"}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OperatorWorld]:
    """An operator with a listed key and a pack of his own; his cache is empty and nothing can be fetched any more."""
    with new_world() as world:
        key = SigningKey.generate()
        save_key_file(world.root / "operator.key", key)
        world.config["fleet"] = {"trust": {"signers": {"ops": key.public_text}}}
        world.env = {"SBCTL_SIGNING_KEY_FILE": str(world.root / "operator.key")}
        made = world.sbctl("pack", "--out", str(pack_of(world)), "--python", "3.11,3.12,3.13", expect=0)
        assert "tiny:q4" in made.out
        assert "is not packed" in made.err
        world.env |= {**NO_NETWORK, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
        for weights in world.root.glob("*.gguf"):
            weights.unlink()
        yield world


def pack_of(world: OperatorWorld) -> Path:
    return world.root / "site.sbpack"


def test_a_site_without_a_network_is_served_from_the_pack(closed: OperatorWorld) -> None:
    pack = str(pack_of(closed))
    shown = closed.sbctl("pack", "show", pack, "--format", "json", expect=0).json()
    assert (shown["signer"], shown["claimed_key_ids"], shown["verified"]) == (None, ["ops"], False)
    verified = closed.sbctl("pack", "verify", pack, "--format", "json", expect=0).json()
    assert (verified["signer"], verified["verified"]) == ("ops", True)
    closed.sbctl("plan", "--from", pack, expect=2)
    closed.sbctl("apply", "--yes", "--from", pack, expect=0)
    assert closed.answers()
    closed.sbctl("plan", "--from", pack, expect=0)


def test_a_saved_plan_and_a_rollback_take_the_pack_too(closed: OperatorWorld) -> None:
    pack, saved = str(pack_of(closed)), str(closed.root / "plan")
    closed.sbctl("apply", "--yes", "--from", pack, expect=0)
    closed.deployments["chat"]["max_concurrency"] = 3
    closed.sbctl("plan", "--from", pack, "--out", saved, expect=2)
    closed.sbctl("apply", saved, "--from", pack, expect=0)
    closed.sbctl("rollback", "--yes", "--from", pack, expect=0)
    closed.deployments["chat"]["max_concurrency"] = 2
    closed.sbctl("plan", "--from", pack, expect=0)


def test_what_is_not_in_the_pack_is_named_before_anything_changes(closed: OperatorWorld) -> None:
    pack = str(pack_of(closed))
    closed.sbctl("apply", "--yes", "--from", pack, expect=0)
    closed.deployments["other"] = {"model": "small", "variant": "q4"}
    try:
        for command in (("plan",), ("apply", "--yes")):
            refused = closed.sbctl(*command, "--from", pack, expect=3)
            assert "error[pack.lacks]" in refused.err
            assert "small:q4" in refused.text
    finally:
        del closed.deployments["other"]
    closed.sbctl("plan", "--from", pack, expect=0)


def test_a_pack_of_nobody_a_stranger_or_with_another_bit_is_refused(closed: OperatorWorld) -> None:
    pack = str(pack_of(closed))
    damaged, copy = closed.root / "damaged.sbpack", bytearray(pack_of(closed).read_bytes())
    copy[len(copy) // 2] ^= 1
    damaged.write_bytes(copy)
    assert "pack.damaged" in closed.sbctl("pack", "verify", str(damaged), expect=3).err
    stranger = SigningKey.generate().public_text
    listed = closed.config["fleet"]["trust"]["signers"]
    closed.config["fleet"]["trust"]["signers"] = {"somebody": stranger}
    try:
        refused = closed.sbctl("apply", "--yes", "--from", pack, expect=4)
    finally:
        closed.config["fleet"]["trust"]["signers"] = listed
    assert "envelope.bad_signature" in refused.err
    assert "fleet.trust.signers" in refused.text


def test_a_pack_without_a_key_must_say_that_it_is_unsigned(tmp_path: Path) -> None:
    with new_world() as world:
        pack = str(world.root / "p.sbpack")
        assert "key.none" in world.sbctl("pack", "--out", pack, expect=4).err
        made = world.sbctl("pack", "--out", pack, "--unsigned", "--exclude", "weights", "--python", "3.11", expect=0)
        assert "this pack is unsigned" in made.err
        assert "left out weights" in made.text
        assert "pack.unsigned" in world.sbctl("plan", "--from", pack, expect=4).err
        assert "--exclude weights" in world.sbctl("plan", "--from", pack, "--unsigned", expect=3).text
        again = str(world.root / "q.sbpack")
        world.sbctl("pack", "--out", again, "--unsigned", "--exclude", "weights", "--python", "3.11", expect=0)
        assert Path(pack).read_bytes() == Path(again).read_bytes()

"""Which changes of the signer set are allowed, and when a key on this machine is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest

from sbctl.base.errors import InputError, RefusedError
from sbctl.cli.key_changes import KeyPlace, key_place, with_rotated, without
from sbctl.trust.keys import SigningKey, load_key_file, save_key_file

OWN, NEXT, OTHER = (SigningKey.generate() for _ in range(3))


def test_a_rotation_lists_both_keys_however_often_it_is_asked_for() -> None:
    once = with_rotated({"ops": OWN.public_text}, OWN, NEXT)
    assert once == ("ops", {"ops": NEXT.public_text, "ops.retiring": OWN.public_text})
    assert with_rotated(once[1], OWN, NEXT) == once


@pytest.mark.parametrize(
    ("signers", "name", "successor", "code"),
    [
        ({"ops": OWN}, "nobody", None, "key.unknown"),
        ({"ops": OTHER}, "ops", None, "key.not_listed"),
        ({"ops": OWN}, "ops", NEXT, "key.last"),
        ({"ops": OWN, "ci": OTHER}, "ops", None, "key.own"),
        ({"ops": OWN, "ci": OTHER}, "ops", NEXT, "key.own"),
    ],
)
def test_what_may_not_leave(signers: dict[str, SigningKey], name: str, successor: SigningKey | None, code: str) -> None:
    with pytest.raises((InputError, RefusedError)) as refused:
        without({name: key.public_text for name, key in signers.items()}, name, OWN, successor)
    assert refused.value.code == code


def test_another_signer_leaves_and_ones_own_only_for_a_listed_successor() -> None:
    signers = {"ops": OWN.public_text, "ci": OTHER.public_text}
    assert without(signers, "ci", OWN, None) == (OWN, {"ops": OWN.public_text})
    rotated = {"ops": NEXT.public_text, "ops.retiring": OWN.public_text}
    assert without(rotated, "ops.retiring", OWN, NEXT) == (NEXT, {"ops": NEXT.public_text})


def test_a_successor_waits_beside_the_key_and_takes_its_place_once(tmp_path: Path) -> None:
    place = KeyPlace(tmp_path / "keys" / "operator.key", None)
    save_key_file(place.path, OWN)
    made = place.make_successor()
    assert place.make_successor().public_text == made.public_text
    assert load_key_file(place.path).public_text == OWN.public_text
    for _ in range(2):
        place.promote(made)
        assert load_key_file(place.path).public_text == made.public_text
        assert place.successor() is None


def test_a_key_that_comes_as_text_is_not_replaced_here() -> None:
    with pytest.raises(RefusedError) as refused:
        key_place({"SBCTL_SIGNING_KEY": OWN.to_pem().reveal().decode()})
    assert refused.value.code == "key.not_a_file"

"""A change of operators reaches hosts over the store too, and never goes back."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from sbctl.base.digests import canonical_json
from sbctl.base.errors import SbctlError
from sbctl.node.paths import NodePaths, node_paths
from sbctl.runtime.cluster.fences import COPY_NAME, ClusterFences
from sbctl.runtime.cluster.held_signers import HeldSigners
from sbctl.trust.bundle import TRUST_PAYLOAD_TYPE, TrustSet
from sbctl.trust.envelope import sign_envelope
from sbctl.trust.keys import SigningKey

ANNA, BERT, CARL = (SigningKey.generate() for _ in range(3))


def trust(epoch: int, lineage: str = "fleet-1", **signers: SigningKey) -> TrustSet:
    return TrustSet(lineage=lineage, key_epoch=epoch, signers={name: key.public_text for name, key in signers.items()})


FIRST = trust(1, anna=ANNA)
SECOND = trust(2, bert=BERT)
THIRD = trust(3, carl=CARL)


def signed(proposed: TrustSet, key: SigningKey) -> str:
    return sign_envelope(TRUST_PAYLOAD_TYPE, canonical_json(proposed.model_dump(mode="json")), key, "somebody")


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    found = node_paths(0, {"SBCTL_NODE_PREFIX": str(tmp_path)})
    found.state.mkdir(parents=True)
    found.etc.mkdir(parents=True)
    return found


def install(paths: NodePaths, proposed: TrustSet, key: SigningKey) -> None:
    paths.trust.write_text(signed(proposed, key))


def started(paths: NodePaths) -> HeldSigners:
    return HeldSigners(paths, ClusterFences(paths.state / "cluster.db"))


def code(call: Callable[[], object]) -> str:
    with pytest.raises(SbctlError) as caught:
        call()
    return caught.value.code


def test_C16_a_change_of_operators_is_followed_step_by_step_and_kept(paths: NodePaths) -> None:
    install(paths, FIRST, ANNA)
    held = started(paths)
    assert held.trust == FIRST
    assert held.offer(signed(SECOND, ANNA))
    assert held.offer(signed(THIRD, BERT))
    assert not held.offer(signed(THIRD, CARL)), "the set that is held"
    assert started(paths).trust == THIRD


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(signed(THIRD, CARL), "envelope.bad_signature", id="by its own new member alone"),
        pytest.param(signed(THIRD, ANNA), "envelope.bad_signature", id="by a member who left"),
        pytest.param(signed(FIRST, BERT), "trust.stale_epoch", id="the set of before"),
        pytest.param(
            signed(trust(2, mallory=BERT, bert=BERT), BERT), "trust.stale_epoch", id="changed without an epoch"
        ),
        pytest.param(signed(trust(9, "fleet-2", bert=BERT), BERT), "trust.wrong_lineage", id="of another fleet"),
        pytest.param("{}", "envelope.invalid", id="no envelope"),
    ],
)
def test_C16_what_is_not_the_next_set_changes_nothing(paths: NodePaths, text: str, expected: str) -> None:
    install(paths, FIRST, ANNA)
    held = started(paths)
    held.offer(signed(SECOND, ANNA))
    assert code(lambda: held.offer(text)) == expected
    assert (held.trust, started(paths).trust) == (SECOND, SECOND)


def test_C16_the_first_set_comes_by_a_login_and_from_nowhere_else(paths: NodePaths) -> None:
    held = started(paths)
    assert held.trust is None
    assert code(lambda: held.offer(signed(FIRST, ANNA))) == "trust.none_here"
    install(paths, FIRST, ANNA)
    held.reload()
    assert held.trust == FIRST


def test_the_newer_of_both_ways_counts(paths: NodePaths) -> None:
    install(paths, FIRST, ANNA)
    held = started(paths)
    held.offer(signed(SECOND, ANNA))
    held.reload()
    assert held.trust == SECOND, "an apply that was planned before"
    install(paths, THIRD, BERT)
    held.reload()
    assert held.trust == THIRD
    install(paths, trust(1, "fleet-2", anna=ANNA), ANNA)
    held.reload()
    assert held.trust is not None
    assert held.trust.lineage == "fleet-2", "the host went to another fleet"


def test_a_kept_set_that_was_changed_on_the_disk_is_not_believed_and_the_other_file_has_the_true_one(
    paths: NodePaths,
) -> None:
    install(paths, FIRST, ANNA)
    started(paths).offer(signed(SECOND, ANNA))
    with closing(sqlite3.connect(paths.state / "cluster.db", isolation_level=None)) as other:
        other.execute("UPDATE signers SET document = replace(document, 'bert', 'eve')")
    assert started(paths).trust == SECOND
    for name in ("cluster.db", COPY_NAME):
        with closing(sqlite3.connect(paths.state / name, isolation_level=None)) as other:
            other.execute("UPDATE signers SET document = replace(document, 'bert', 'eve')")
    lost = started(paths)
    assert lost.trust == FIRST, "what the apply installed"
    assert code(lambda: lost.offer(signed(SECOND, ANNA))) == "cluster.state_damaged"

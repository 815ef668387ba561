"""`certificate.*` on a node: what is refused, what is found again, and that the old identity stands until the new one is taken up."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from sbctl.base import fs
from sbctl.base.clock import rfc3339
from sbctl.base.errors import SbctlError
from sbctl.node.identity_messages import CertificateInstall, CertificateRemove, CertificateRequest
from sbctl.runtime.identity_files import IdentityFiles, installed_state
from sbctl.runtime.nodeops.certificate_ops import install_certificate, remove_certificate, request_certificate
from sbctl.runtime.nodeops.context import NodeContext
from sbctl.trust.authority import Authority
from sbctl.trust.identity import Grant
from tests.simulators.failing_files import FullAt

pytestmark = pytest.mark.flow

ROLES: Any = ("worker",)


class Signer:
    """The operator's side: an authority, and what it sends."""

    def __init__(self, directory: Path, context: NodeContext) -> None:
        self.context = context
        grant = Grant(node_id="authority", roles=("authority",))
        self.authority = Authority.create(
            directory, cluster_id="prod", grant=grant, server_name="mesh", now=context.clock.now()
        )

    def install(self, request: str | None, *, node: str = "h", **more: Any) -> CertificateInstall:
        """`request` None: only what stands around the certificate."""
        issued = None
        if request is not None:
            issued = self.authority.issue(request, Grant(node_id=node, roles=ROLES), now=self.context.clock.now())
        params = {
            "lineage": "L",
            "certificate": issued.certificate if issued else None,
            "identity": issued.identity if issued else None,
            "ca": self.authority.bundle(self.authority.facts().ca),
            "authority_key": self.authority.verifying_key,
            "revocations": self.authority.revocations()[0],
            "operator_time": rfc3339(self.context.clock.now()),
        }
        return CertificateInstall(**{**params, **more})

    def asked(self) -> str:
        return str(request_certificate(self.context, CertificateRequest(lineage="L", node_id="h"))["request"])

    def installed(self) -> str:
        return str(install_certificate(self.context, self.install(self.asked()))["fingerprint"])


@pytest.fixture
def signer(context: NodeContext, tmp_path: Path) -> Signer:
    return Signer(tmp_path / "cluster", context)


@pytest.fixture
def files(context: NodeContext) -> IdentityFiles:
    return IdentityFiles(context.paths)


def refusal(context: NodeContext, params: CertificateInstall) -> SbctlError:
    with pytest.raises(SbctlError) as caught:
        install_certificate(context, params)
    return caught.value


def test_asked_twice_it_is_one_request_and_one_certificate(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    first = signer.asked()
    assert signer.asked() == first
    params = signer.install(first)
    done = install_certificate(context, params)
    assert done["identity_epoch"] == 1
    assert install_certificate(context, params) == done
    assert files.pending() is None
    assert sorted(os.listdir(files.store)) == [Path(os.readlink(files.link)).name]
    assert signer.asked() != first


def test_half_a_request_of_a_crash_is_made_anew(signer: Signer, files: IdentityFiles) -> None:
    signer.asked()
    (files.store / "request" / "node-request.pem").unlink()
    assert files.pending() is None
    assert "REQUEST" in signer.asked()


def test_what_stands_around_a_certificate_is_renewed_without_another(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    fingerprint, key = signer.installed(), files.key()
    first = signer.authority.facts().issuer
    signer.authority.begin_rollover(now=context.clock.now())
    both = signer.authority.facts([{"ca": [first], "issuer": first}]).ca
    done = install_certificate(context, signer.install(None, ca=signer.authority.bundle(both)))
    assert done["fingerprint"] == fingerprint
    assert files.verified(context.clock.now()).ca == both
    assert files.key() == key


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"lineage": "another"}, "host.other_lineage"),
        ({"operator_time": "2020-01-01T00:00:00Z"}, "identity.clock_skew"),
        ({"operator_time": "noon"}, "node.invalid_params"),
        ({"operator_time": "2026-01-01T00:00:00"}, "node.invalid_params"),
        ({"ca": ""}, "certificate.invalid"),
        ({"identity": None}, "identity.incomplete"),
        ({"authority_key": None}, "identity.incomplete"),
        ({"revocations": None}, "identity.incomplete"),
        ({"certificate": "nonsense"}, "certificate.invalid"),
    ],
)
def test_what_is_not_whole_or_not_ours_is_refused_and_nothing_is_in_use(
    signer: Signer, context: NodeContext, files: IdentityFiles, change: dict[str, Any], code: str
) -> None:
    assert refusal(context, signer.install(signer.asked(), **change)).code == code
    assert not files.exists()
    assert files.pending() is not None, "the request is still there for the next attempt"


def test_a_certificate_for_another_key_is_refused(signer: Signer, context: NodeContext) -> None:
    from sbctl.trust.certificate_making import create_request, generate_private_key

    signer.asked()
    stranger = create_request(generate_private_key(), "h")
    assert refusal(context, signer.install(stranger)).code == "certificate.no_key"
    assert refusal(context, signer.install(None)).code == "certificate.none_installed"


def test_D11_an_older_identity_or_list_does_not_come_back(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    old = signer.install(signer.asked())
    install_certificate(context, old)
    key = files.key()
    newer = signer.installed()
    again = replace(context, secrets={"node_key": key})
    assert refusal(again, old).code == "identity.epoch_rollback"
    before = signer.authority.revocations()[0]
    signer.authority.issue(signer.asked(), Grant(node_id="gone", roles=ROLES), now=context.clock.now())
    signer.authority.revoke("gone", reason="", now=context.clock.now())
    install_certificate(context, signer.install(None))
    assert refusal(context, signer.install(None, revocations=before)).code == "identity.revocations_rollback"
    assert files.verified(context.clock.now()).certificate.fingerprint == newer


def test_a_running_runtime_takes_it_up_or_the_old_one_is_back(
    signer: Signer, context: NodeContext, files: IdentityFiles, runtime: Any
) -> None:
    first = signer.installed()
    before = os.readlink(files.link)
    runtime.answers["GET", "/control/v1/status"] = (200, [{"healthy": True, "identity": {"fingerprint": first}}])
    error = SbctlError("identity.expired", "it expired in between")
    runtime.answers["POST", "/control/v1/identity"] = (409, [{"error": error.to_wire()}])
    params = signer.install(signer.asked())
    with pytest.raises(SbctlError, match="expired in between"):
        install_certificate(context, params)
    assert os.readlink(files.link) == before
    assert files.verified(context.clock.now()).certificate.fingerprint == first
    assert files.pending() is not None
    from sbctl.trust.certificates import certificate_facts

    wanted = certificate_facts(str(params.certificate)).fingerprint
    runtime.answers["POST", "/control/v1/identity"] = (200, [{"fingerprint": wanted}])
    assert install_certificate(context, params)["fingerprint"] == wanted
    assert os.readlink(files.link) != before


def test_a_runtime_without_identity_is_not_asked(signer: Signer, runtime: Any) -> None:
    runtime.answers["GET", "/control/v1/status"] = (200, [{"healthy": True, "identity": None}])
    signer.installed()
    assert [request[:2] for request in runtime.requests] == [("GET", "/control/v1/status")]


def test_whichever_write_fails_one_whole_identity_is_in_use(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    signer.installed()
    for number in range(1, 200):
        ops = FullAt(number)
        try:
            with fs.use_ops(ops):
                install_certificate(context, signer.install(signer.asked()))
        except SbctlError:
            assert files.verified(context.clock.now()).claims.node_id == "h"
            continue
        assert ops.left > 0
        break
    else:
        raise AssertionError("never came to its end")
    install_certificate(context, signer.install(signer.asked()))
    assert len(os.listdir(files.store)) == 1, "what failed left nothing behind"


def test_removal_takes_everything_and_is_done_again_without_harm(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    signer.installed()
    signer.asked()
    assert remove_certificate(context, CertificateRemove(lineage="L")) == {"removed": True}
    assert not files.exists()
    assert not files.store.exists()
    assert remove_certificate(context, CertificateRemove(lineage="L")) == {"removed": False}


def test_a_snapshot_tells_what_is_wrong_and_never_fails(
    signer: Signer, context: NodeContext, files: IdentityFiles
) -> None:
    fingerprint = signer.installed()
    now = context.clock.now()
    told = installed_state(context.paths, now)
    assert (told["fingerprint"], told["problem"], told["attestation"]) == (fingerprint, None, "enrolled")
    assert "expired" in str(installed_state(context.paths, now + timedelta(days=91))["problem"])
    (files.link / "node.pem").write_text("nonsense")
    assert "certificate.invalid" in str(installed_state(context.paths, now)["problem"])
    (files.link / "node.pem").unlink()
    assert "file.missing" in str(installed_state(context.paths, now)["problem"])

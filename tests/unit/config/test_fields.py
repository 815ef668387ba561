"""The models as a map: what stands where, in words."""

from __future__ import annotations

import pytest

from sbctl.config.fields import blocks_of, locate, type_in_words
from sbctl.config.file_model import SbFile
from sbctl.config.models import DeploymentModel
from sbctl.config.planes import patterns
from sbctl.config.reference import reference_markdown


@pytest.mark.parametrize(
    ("path", "dotted", "words"),
    [
        ((), "", "sb.yml"),
        (("proxy", "model_host", "deployments", "chat"), "proxy.model_host.deployments", "a deployment"),
        (
            ("proxy", "model_host", "deployments", "chat", "spread_by", 0),
            "proxy.model_host.deployments.spread_by",
            "text",
        ),
        (("proxy", "cluster"), "proxy.cluster", "the cluster"),
        (("fleet", "hosts", "a", "vars", "x"), "fleet.hosts.vars", "text or whole number or number or true or false"),
        (("fleet", "runtime", "python"), "fleet.runtime.python", "text or a standalone Python"),
        (
            ("origins", "h", "action", "providers"),
            "origins.action.providers",
            "list of a managed provider or a serving provider or an external provider",
        ),
        (("include",), "include", "list of text"),
    ],
)
def test_locate(path: tuple[str | int, ...], dotted: str, words: str) -> None:
    place = locate(SbFile, path)
    assert place is not None
    assert place.dotted == dotted
    assert type_in_words(place.annotation) == words


@pytest.mark.parametrize(
    "path", [("nope",), ("proxy", "http_bind_port", "x"), ("origins", "h", "action", "providers", "x")]
)
def test_no_such_place(path: tuple[str | int, ...]) -> None:
    assert locate(SbFile, path) is None


def test_every_field_says_what_it_means() -> None:
    seen = set()
    pending = [SbFile]
    while pending:
        block = pending.pop()
        seen.add(block)
        for name, info in block.model_fields.items():
            assert info.description, f"{block.__name__}.{name}"
            for part in (info.annotation, *getattr(info.annotation, "__args__", ())):
                pending += [each for each in blocks_of(part) if each not in seen]
    assert DeploymentModel in seen


def test_the_reference_has_every_block_and_plane() -> None:
    text = reference_markdown()
    for words in (
        "## `proxy.model_host.deployments.<name>`",
        "| `max_queue_depth` | whole number; at least 0, at most 1000000 | `128` |",
    ):
        assert words in text
    assert all(f"`{name}`" in text for name in patterns())

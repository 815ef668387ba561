"""Which licences need a word of acceptance."""

from __future__ import annotations

import pytest

from sbctl.catalog.licenses import license_of
from sbctl.catalog.loader import builtin_catalog


@pytest.mark.parametrize(
    ("text", "commercial", "phrase"),
    [
        ("apache-2.0", "allowed", "Apache-2.0 (commercial use allowed)"),
        ("Apache-2.0", "allowed", "Apache-2.0 (commercial use allowed)"),
        ("llama3.1", "conditional", "llama3.1 (commercial use under conditions)"),
        ("cc-by-nc-4.0", "excluded", "CC-BY-NC-4.0 (no commercial use)"),
        ("my-own", "unknown", "my-own (licence not known to sbctl)"),
        ("", "unknown", "no licence (licence not known to sbctl)"),
        ("mit AND apache-2.0", "allowed", "MIT AND Apache-2.0 (commercial use allowed)"),
        ("mit AND cc-by-nc-4.0", "excluded", "MIT AND CC-BY-NC-4.0 (no commercial use)"),
        ("mit and nobody", "unknown", "mit and nobody (licence not known to sbctl)"),
    ],
)
def test_the_table(text: str, commercial: str, phrase: str) -> None:
    told = license_of(text)
    assert (told.commercial, told.phrase, told.restrictive) == (commercial, phrase, commercial != "allowed")


def test_every_licence_of_the_built_in_catalog_is_known() -> None:
    assert all(license_of(one.model.license).commercial != "unknown" for one in builtin_catalog().entries.values())

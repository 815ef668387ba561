"""What sb.yml protects or keeps holds from the moment it is written, and the state remembers it for when sb.yml is gone."""

from __future__ import annotations

import pytest

from tests.simulators.operator_world import OperatorWorld

pytestmark = pytest.mark.integration


def test_protection_that_is_written_after_the_apply_holds_at_once_and_without_the_file(changing: OperatorWorld) -> None:
    changing.config["fleet"] = {"prevent_destroy": ["artifact.*"]}
    refused = changing.sbctl("destroy", "--yes", expect=4)
    assert "prevent_destroy protects it" in refused.text
    assert changing.answers()

    planned = changing.sbctl("plan", expect=0)
    assert "apply also records how 1 resource is reached, kept or protected now" in planned.text
    changing.sbctl("apply", "--yes", expect=0)
    assert "records how" not in changing.sbctl("plan", expect=0).text

    changing.file.unlink()
    changing.sbctl("destroy", "--yes", expect=4, save=False)
    changing.file.write_text("proxy: [")
    broken = changing.sbctl("destroy", "--yes", expect=4, save=False)
    assert "only what the state remembers is protected" in broken.text
    assert changing.answers()

    del changing.config["fleet"]
    changing.sbctl("apply", "--yes", expect=0)
    document = changing.sbctl("state", "show", "artifact.local/tiny:q4", "--format", "json", expect=0).json()
    assert document["prevent_destroy"] is False

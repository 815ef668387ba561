from __future__ import annotations

import pytest

from sbctl.views.layout import label_columns, labelled, padded, safe, sentence


@pytest.mark.parametrize(
    ("labels", "columns"), [([], 20), (["a"], 20), (["x" * 25], 27), (["x" * 90], 36), (["世" * 12], 26)]
)
def test_labels_share_a_column_within_reason(labels: list[str], columns: int) -> None:
    assert label_columns(labels) == columns


def test_a_long_label_pushes_its_text_aside() -> None:
    assert padded("x" * 30, 20) == "x" * 30 + "  "
    assert labelled("x" * 30, "text", indent=2, width=80).plain == "  " + "x" * 30 + "  text\n"


def test_text_is_wrapped_under_itself() -> None:
    assert labelled("label", "one two three four five", indent=2, width=42, columns=20).plain == (
        "  label               one two three four\n                      five\n"
    )
    assert sentence("one two three four", indent=0, width=26, first="note: ").plain == "note: one two three four\n"
    assert sentence("one two three four five", indent=0, width=26, first="note: ").plain == (
        "note: one two three four\n      five\n"
    )


def test_a_word_that_does_not_fit_is_never_cut() -> None:
    url = "https://" + "a" * 100
    assert sentence(url, indent=0, width=40).plain == url + "\n"


def test_foreign_text_stays_on_one_line() -> None:
    assert safe("a\nb\x1b[1m") == "a\\x0ab\\x1b[1m"

"""The table of libraries."""

from __future__ import annotations

from headrace.predictors.registry import Library


def test_a_library_whose_files_are_not_told_by_their_content_is_at_no_path() -> None:
    module = "text"  # it has no function kind_of
    assert not Library("toy", frozenset(), module, "TextPredictor").is_at("model.bin")

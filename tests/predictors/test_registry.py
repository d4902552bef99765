"""The table of libraries."""

from __future__ import annotations

import pytest

from headrace import predictors


class Toy:
    """A predictor whose files are not told by their content: it has no ``kind_of``."""


def test_a_library_whose_files_are_not_told_by_their_content_is_at_no_path(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(predictors.MODELS, "ours", {"toy": Toy})
    assert predictors.library_at("model.bin") is None

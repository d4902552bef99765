from __future__ import annotations

from pathlib import Path

import pytest

from headrace.core.files import artifacts
from headrace.testing import PredictorContract

OF_THE_PREDICTOR = {
    "test_there_is_something_to_test",
    "test_there_is_one_result_per_row",
    "test_predicts_the_same_again",
    "test_close_is_not_the_end",
    "test_slices_give_what_the_whole_gives[5]",
    "test_what_submits_is_tested_for_it",
    "test_has_a_label_and_says_where_weights_are",
    "test_use_leaves_the_model_as_it_was",
    "test_a_handle_may_be_forgotten",
    "test_close_waits_for_nobody_to_collect",
}
"""What depends on the predictor's own code, whatever model it has."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first class of a file has the whole contract; other forms of models what may depend on the form.

    The soak has all for every form.
    """
    whole: dict[Path, type] = {}
    for item in items:
        made = getattr(item, "cls", None)
        if made is None or not issubclass(made, PredictorContract):
            continue
        if whole.setdefault(item.path, made) is not made and item.name in OF_THE_PREDICTOR:
            item.add_marker(pytest.mark.soak)


@pytest.fixture(autouse=True)
def _untried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load files at once, as workers do: a trial before each of hundreds takes a second each. ``tried`` marks the
    others."""
    if request.node.get_closest_marker("tried") is None:
        monkeypatch.setattr(artifacts, "is_worker", lambda: True)

from __future__ import annotations

import pytest

from headrace.predictors import trial


@pytest.fixture(autouse=True)
def _untried(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Load files at once, as workers do: a trial before each of hundreds takes a second each. ``tried`` marks the
    others."""
    if request.node.get_closest_marker("tried") is None:
        monkeypatch.setattr(trial, "is_worker", lambda: True)

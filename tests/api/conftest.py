from __future__ import annotations

import os

import pytest

ENGINE = os.environ.get("HEADRACE_TEST_ENGINE", "")


@pytest.fixture(params=[ENGINE] if ENGINE else ["inline", "local"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)

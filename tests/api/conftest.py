from __future__ import annotations

import os

import pytest

ENGINE = os.environ.get("HEADRACE_TEST_ENGINE", "")


@pytest.fixture(params=[ENGINE] if ENGINE else ["inline", "local"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine in turn."""
    return str(request.param)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No progress, two workers, and this process, unless a test says otherwise."""
    monkeypatch.setenv("HEADRACE_PROGRESS", "0")
    monkeypatch.setenv("HEADRACE_WORKERS", "2")
    monkeypatch.setenv("HEADRACE_ENGINE", ENGINE or "inline")

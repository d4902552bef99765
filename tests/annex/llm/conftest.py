"""What all tests of language models have: quick retries, limits and days of their own, and no proxy."""

from __future__ import annotations

import pytest

from headrace.annex.llm import client


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setattr(client, "FIRST_WAIT", 0.005)
    monkeypatch.setattr(client, "LONGEST_WAIT", 0.02)
    for name in ("XDG_RUNTIME_DIR", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path_factory.mktemp("own")))
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

"""What is handed to a model, such as a key for an endpoint, stands in no file, no message and no log of ours."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
from headrace.errors import HeadraceError

CANARY = "sk-canary-c0ffee"


class Asks:
    """Fails over one row, with words that do not speak of the key."""

    def __init__(self, key: str, *, again: str = "") -> None:
        self.key = key

    def __call__(self, batch: dict[str, Any]) -> Any:
        if 5 in batch["id"]:
            raise ConnectionError("refused")
        return batch["id"]


def same(batch: dict[str, Any], key: str = "") -> dict[str, Any]:
    return batch


@pytest.mark.parametrize("on_error", ["raise", "reject"])
def test_a_key(
    on_error: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("ENDPOINT_KEY", CANARY)
    caplog.set_level(logging.DEBUG)
    data = hr.range(3000).map_batches(same, fn_kwargs={"key": CANARY}, num_cpus=1)
    data = data.predict(
        Asks, inputs=["id"], output="y", fn_constructor_args=[CANARY], fn_constructor_kwargs={"again": CANARY}
    )
    data = data.with_options(on_error=on_error, engine="local", shard_rows=1000)
    told = data.explain() + repr(data)
    try:
        told += str(data.write_parquet(tmp_path / "out"))
    except HeadraceError as error:
        told += f"{error!r} {error.__cause__}"
    out, err = capfd.readouterr()
    assert CANARY not in told + out + err + caplog.text
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert files or on_error == "raise"
    for path in files:
        assert CANARY.encode() not in path.read_bytes(), path
    if on_error == "reject":
        assert stat.S_IMODE((tmp_path / "out" / "_headrace").stat().st_mode) == 0o700

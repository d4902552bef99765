"""Sizes in bytes: one reader for every argument that takes one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import headrace as hr
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.core.human import given_bytes
from headrace.errors import ArgumentError


@pytest.mark.parametrize(
    ("given", "size"),
    [
        (0, 0),
        (4096, 4096),
        (1e9, 10**9),
        (np.int64(7), 7),
        ("17", 17),
        ("17B", 17),
        ("2GiB", 2 << 30),
        ("2gib", 2 << 30),
        ("2 Gi", 2 << 30),
        (" 2 GB ", 2 * 10**9),
        ("1.5k", 1500),
        ("0.5MiB", 1 << 19),
        ("1TB", 10**12),
    ],
)
def test_sizes(given: Any, size: int) -> None:
    read = given_bytes("memory", given)
    assert read == size and type(read) is int


@pytest.mark.parametrize(
    "given", [-1, True, float("nan"), float("inf"), "", "GB", "-1GB", "1 i", "1iB", "1e9", [1], b"1"]
)
def test_no_sizes(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"memory=.*it takes a number of bytes, or text such as '2GiB'"):
        given_bytes("memory", given)


def same(batch: Any) -> Any:
    return batch


def frame(df: pd.DataFrame) -> pd.DataFrame:
    return pd.DataFrame({"rows": [len(df)]})


def resources(data: hr.Dataset) -> int | None:
    (step,) = data._plan.steps
    found = getattr(step, "resources", None) or step.models[0].resources  # type: ignore[union-attr]
    return found.memory  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    "step",
    [
        lambda memory: hr.range(3).map_batches(same, memory=memory),
        lambda memory: hr.range(3).map(same, memory=memory),
        lambda memory: hr.range(3).flat_map(same, memory=memory),
        lambda memory: hr.range(3).filter(same, memory=memory),
        lambda memory: hr.range(3).predict(same, memory=memory),
        lambda memory: hr.range(3).predict({"a": same}, memory=memory),
        lambda memory: hr.range(3).predict({"a": {"model": same, "memory": memory}}),
    ],
)
def test_steps_take_them(step: Callable[[Any], hr.Dataset]) -> None:
    assert resources(step("1GiB")) == resources(step(1 << 30)) == 1 << 30
    with pytest.raises(ArgumentError, match=r"memory='much'"):
        step("much")


def test_runs_take_them() -> None:
    assert hr.range(3).with_options(memory_limit="16GiB")._options.memory_limit == 16 << 30
    for given in ("0", "16 gigs", 1.5, 0):
        with pytest.raises(ArgumentError, match=f"memory_limit={given!r}: it takes a whole number of bytes"):
            hr.range(3).with_options(memory_limit=given)


def test_executors_take_them() -> None:
    with hr.connect(workers=1, memory_limit="2GiB") as executor:
        assert executor.limits.memory == 2 << 30
        with pytest.raises(hr.errors.ResourcesUnavailable, match=r"3 GiB of memory, and there are 2 GiB"):
            executor.options(memory="3GiB").submit(abs, 1)
    with pytest.raises(ArgumentError, match="memory_limit='all': it takes"):
        hr.connect(memory_limit="all")


def test_batches_take_them() -> None:
    udf = BatchPredictor.from_pandas_udf(frame, batch_size_bytes="0.8 KB")
    assert udf.predict(hr.range(1_000)).take_all()[0]["rows"] == 100
    with pytest.raises(ArgumentError, match="KBit"):
        BatchPredictor.from_pandas_udf(frame, batch_size_bytes="0.8 KBit")
    with pytest.raises(ArgumentError, match="memory='big'"):
        udf.predict(hr.range(3), ray_remote_args={"memory": "big"})

"""Images as files, a row each: committed as parts are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import ArgumentError, OutputWriteFailed, SinkError, UnknownColumn
from headrace.testing import failpoints

image = pytest.importorskip("PIL.Image")

PIXELS = np.arange(6 * 4 * 5 * 3, dtype=np.uint8).reshape(6, 4, 5, 3)


def table(**columns: Any) -> pa.Table:
    return pa.table({"pixels": pa.FixedShapeTensorArray.from_numpy_ndarray(PIXELS), **columns})


def files(folder: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the published images by their names, behind shard and run."""
    return {".".join(p.name.split(".")[1:]): np.asarray(image.open(p)) for p in sorted(folder.glob("part-*"))}


@pytest.mark.parametrize("engine", ["inline", "local"])
def test_a_file_for_each_row(tmp_path: Path, engine: Any) -> None:
    data = hr.from_arrow(table(path=[f"/in/{n}.JPG" for n in "abcd"] + ["e f.txt", "ü"]))
    data = data.with_options(engine=engine, progress=False)
    result = data.write_images(tmp_path / "out", "pixels", names="path")
    found = files(tmp_path / "out")
    assert list(found) == [*(f"{n}.png" for n in "_abcd"), "e_f_txt.png"]
    assert np.array_equal(found["b.png"], PIXELS[1]) and np.array_equal(found["_.png"], PIXELS[5])
    assert (result.rows, result.files) == (6, 6) and data.stats() == str(result)
    checked = hr.verify(tmp_path / "out")
    assert checked.good and checked.rows == 6
    assert data.write_images(tmp_path / "out", "pixels", names="path").run == result.run
    again = data.limit(2).write_images(tmp_path / "out", "pixels", "bmp", mode="overwrite")
    assert list(files(tmp_path / "out")) == ["000000.bmp", "000001.bmp"] and again.files == 2
    assert hr.read_images(tmp_path / "out").take_batch()["image"].tolist() == PIXELS[:2].tolist()


def test_a_run_that_failed_goes_on_and_shows_no_half(tmp_path: Path) -> None:
    data = hr.from_arrow(table(id=list(range(6)))).with_options(engine="inline", progress=False)
    with failpoints({"stage.write": "ENOSPC@4"}), pytest.raises(OutputWriteFailed):
        data.write_images(tmp_path / "out", "pixels", names="id")
    assert list((tmp_path / "out").glob("part-*")) == []
    assert data.write_images(tmp_path / "out", "pixels", names="id").rows == 6
    assert list(files(tmp_path / "out")) == [f"{i}.png" for i in range(6)]
    os.unlink(next((tmp_path / "out").glob("*.3.png")))
    assert not hr.verify(tmp_path / "out").good
    assert data.write_images(tmp_path / "out", "pixels", names="id").rows == 6
    assert hr.verify(tmp_path / "out").good and len(files(tmp_path / "out")) == 6


def test_grey_alpha_and_no_rows(tmp_path: Path) -> None:
    quiet: dict[str, Any] = {"engine": "inline", "progress": False}
    for name, array in (
        ("grey", PIXELS[..., 0]),
        ("one", PIXELS[..., :1]),
        ("alpha", np.zeros((2, 3, 3, 4))),
    ):
        made = hr.from_numpy(array.astype(np.uint8)).with_options(**quiet)
        made.write_images(tmp_path / name, "data")
        first = next(iter(files(tmp_path / name).values()))
        assert np.array_equal(first, array[0].reshape(first.shape))
    empty = hr.from_numpy(PIXELS).limit(0).with_options(**quiet).write_images(tmp_path / "none", "data")
    assert (empty.rows, empty.files) == (0, 0) and (tmp_path / "none" / "_SUCCESS").exists()
    with pytest.raises(SinkError, match="JPEG"):
        hr.from_numpy(np.zeros((1, 2, 2, 4), np.uint8)).with_options(**quiet).write_images(
            tmp_path / "jpg", "data", "jpg"
        )


@pytest.mark.parametrize(
    ("columns", "given", "error", "words"),
    [
        ({}, {"column": "other"}, UnknownColumn, "other"),
        ({}, {"column": "pixels", "file_format": "svg"}, ArgumentError, "svg"),
        ({"x": [1.5] * 6}, {"column": "x"}, SinkError, "uint8"),
        ({"n": [1.5] * 6}, {"column": "pixels", "names": "n"}, SinkError, "texts or whole numbers"),
        ({"n": ["a"] * 6}, {"column": "pixels", "names": "n"}, SinkError, "another row of the same part"),
        ({"n": [None, *"abcde"]}, {"column": "pixels", "names": "n"}, SinkError, "null or empty"),
        ({"n": ["x" * 200, *"abcde"]}, {"column": "pixels", "names": "n"}, SinkError, "150 characters"),
    ],
)
def test_what_is_no_image_is_refused(
    tmp_path: Path, columns: dict[str, Any], given: dict[str, Any], error: type[Exception], words: str
) -> None:
    data = hr.from_arrow(table(**columns)).with_options(engine="inline", progress=False)
    with pytest.raises(error, match=words):
        data.write_images(tmp_path / "out", **given)

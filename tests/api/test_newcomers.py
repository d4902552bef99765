"""Mistakes that people make who come from Ray Data, pandas or Hugging Face: each is told what to write instead."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.errors import HeadraceError

from .data import numbers


class Needs:
    def __init__(self, path: str, *, size: int, other: int = 0) -> None:
        self.path = path

    def __call__(self, batch: Any) -> Any:
        return batch


def two(batch: Any, model: Any) -> Any:
    return batch


FRAME = pd.DataFrame({"x": [1, 2]})

MISTAKES: list[tuple[Any, str]] = [
    # models
    (
        lambda ds: ds.predict("sentiment-analysis", inputs="id"),
        r"is the name of a task, not of a model\..*TransformersPredictor\('FOLDER', task='sentiment-analysis'\)",
    ),
    (lambda ds: hr.load_model("translation"), "is the name of a task"),
    (lambda ds: ds.predict(len, output_column_name="score"), "output= names the column"),
    (lambda ds: ds.predict(len, feature_columns=["id"]), "inputs= names the columns"),
    (lambda ds: ds.predict(len, keep_columns=["id"]), "keep= names the columns"),
    (lambda ds: ds.predict(Needs, inputs="id"), r"__init__ needs path and size\..*fn_constructor_args=\[…\]"),
    (lambda ds: ds.map_batches(Needs), "__init__ needs path and size"),
    (lambda ds: ds.map_batches(Needs, fn_constructor_args=["a"]), r"__init__ needs size\."),
    (lambda ds: ds.map(Needs, fn_constructor_kwargs={"size": 1}), r"__init__ needs path\."),
    # datasets used as lists and frames
    (lambda ds: hr.Dataset(FRAME), r"Dataset\(DataFrame\) makes none: .* from_pandas a DataFrame"),
    (lambda ds: hr.Dataset("a.parquet"), r"Dataset\(str\) makes none: read_parquet"),
    (lambda ds: hr.Dataset(), r"Dataset\(\) makes none"),
    (lambda ds: len(ds.filter(len)), r"count\(\) counts them"),
    (lambda ds: ds[0], r"ds\[0\] does not work for a dataset: .*take\(n\)"),
    (lambda ds: ds["id"], r"select_columns chooses columns"),
    (lambda ds: ds[:5], r"take\(n\)"),
    (lambda ds: ds.head(), r"take\(5\) gives the first rows"),
    (lambda ds: ds.shape, r"count\(\) counts rows"),
    (lambda ds: ds.apply(len), "map has a function of one row"),
    (lambda ds: ds.to_csv("out"), r"write_csv\(folder\)"),
    (lambda ds: ds.remove_columns(["id"]), "drop_columns does it"),
    (lambda ds: hr.from_dict({"x": [1]}), r"from_arrow\(pyarrow\.table\(columns\)\).*one per row"),
    (lambda ds: hr.from_list([1]), "from_items takes a list"),
    (
        lambda ds: ds.from_items([1]),
        r"A dataset has no verb 'from_items': hr\.from_items\(…\) makes a dataset",
    ),
    (lambda ds: hr.load_dataset("imdb"), "from_huggingface takes"),
    (lambda ds: hr.read_excel("a.xlsx"), r"pandas\.read_excel"),
    (lambda ds: hr.pipeline("ner"), "TransformersPredictor"),
    (lambda ds: hr.init(), "nothing has to be started"),
    # functions
    (lambda ds: ds.filter("id > 1"), r"A string is an expression: filter\(expr='id > 1'\)"),
    (
        lambda ds: ds.map_batches(lambda b: b["id"] * 2).take(1),
        "or use predict, which keeps the other columns",
    ),
    (lambda ds: ds.map_batches(lambda b: [{"x": 1}]).take(1), "Rows one by one are for flat_map"),
    (lambda ds: ds.map_batches(two).take(1), r"called with one argument, a batch; .*fn_args"),
    (lambda ds: ds.map(lambda row, other: row).take(1), "called with one argument, a row"),
    (
        lambda ds: ds.map_batches(lambda b: b.assign(y=1)).take(1),
        "batch_format='pandas' makes it a DataFrame",
    ),
    (lambda ds: ds.map_batches(lambda b: b.to_pandas()).take(1), "'pyarrow' a Table"),
    (lambda ds: ds.map_batches(len, batch_format="np"), "Did you mean 'numpy'"),
    (lambda ds: ds.write_parquet(), r"write_parquet\(\) missing 1 required positional argument: 'path'"),
]


@pytest.mark.parametrize(("mistake", "words"), MISTAKES, ids=[words for _, words in MISTAKES])
def test_a_mistake_is_told_what_to_write(mistake: Any, words: str) -> None:
    with pytest.raises(HeadraceError, match=words) as caught:
        made = mistake(numbers(300))
        made.take(1)
    assert "\n" not in str(caught.value)


def test_what_a_dataset_is_not_stays_usable() -> None:
    data = numbers(3)
    assert bool(data) and (data or None) is data
    with pytest.raises(TypeError):
        len(data.filter(lambda row: True))
    assert not hasattr(data, "shape") and not hasattr(hr, "from_dict")
    assert not hasattr(hr.Dataset, "read_csv")


def test_a_class_that_needs_nothing_or_does_not_tell_is_made() -> None:
    class Any_:
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        def __call__(self, batch: Any) -> Any:
            return batch

    assert numbers(3).map_batches(Any_).count() == 3
    assert (
        numbers(3).map_batches(Needs, fn_constructor_args=["a"], fn_constructor_kwargs={"size": 1}).count()
        == 3
    )


# ---------------------------------------------------------------- files of another format


def test_a_folder_of_another_format_names_its_reader(tmp_path: Path) -> None:
    for i in range(3):
        (tmp_path / f"{i}.csv").write_text("x\n1\n")
    with pytest.raises(HeadraceError, match=r"no file that ends in \.parquet.*: read_csv reads these\."):
        hr.read_parquet(tmp_path).count()
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(
        HeadraceError, match=r"no file that ends in \.parquet.*: read_csv and read_text read these\."
    ):
        hr.read_parquet(tmp_path).count()
    assert hr.read_csv(tmp_path).count() == 3


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    frame = pd.DataFrame({"x": [1, 2], "t": ["a", "b"]})
    frame.to_csv(folder / "a.csv", index=False)
    frame.to_json(folder / "a.json", orient="records", lines=True)
    pq.write_table(pa.Table.from_pandas(frame), folder / "a.parquet")
    (folder / "a.txt").write_text("hello\nworld\n")
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (8, 9)).save(folder / "a.png")
    image.new("RGB", (5, 6)).save(folder / "b.png")
    return folder


@pytest.mark.parametrize(
    ("reader", "name", "right"),
    [
        (reader, name, right)
        for reader in ("read_parquet", "read_csv", "read_json", "read_images")
        for name, right in (
            ("a.parquet", "read_parquet"),
            ("a.csv", "read_csv"),
            ("a.json", "read_json"),
            ("a.txt", "read_text"),
            ("a.png", "read_images"),
        )
        if reader != right and (reader, name) != ("read_csv", "a.txt")  # which is a column of texts
    ],
)
def test_a_file_of_another_format_is_told_its_reader(files: Path, reader: str, name: str, right: str) -> None:
    with pytest.raises(HeadraceError, match=right):
        getattr(hr, reader)(files / name).take(1)


def test_a_damaged_file_is_not_told_another_reader(files: Path, tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no such thing")
    with pytest.raises(HeadraceError, match="Restore the file or leave it out") as caught:
        hr.read_parquet(tmp_path / "a.parquet").take(1)
    assert "reads it" not in str(caught.value)


def test_images_of_mixed_size_and_channels_that_come_last(files: Path) -> None:
    torch = pytest.importorskip("torch")
    images = hr.read_images(files / "*.png")
    with pytest.raises(HeadraceError, match=r"read_images\(…, size=\(224, 224\)\)"):
        images.predict(torch.nn.Conv2d(3, 4, 3), inputs="image").take_all()
    with pytest.raises(
        HeadraceError, match=r"same shape\. Make their shapes equal first: images by read_images"
    ):
        images.map_batches(lambda b: {"m": np.stack(list(b["image"]))}).take_all()
    sized = hr.read_images(files / "*.png", size=(8, 8))
    with pytest.raises(HeadraceError, match=r"channels seem to come last, \(\d, 8, 8, 3\).*np\.moveaxis"):
        sized.predict(torch.nn.Conv2d(3, 4, 3), inputs="image").take(1)


# ---------------------------------------------------------------- a machine without pandas


def test_without_pandas_the_message_names_it() -> None:
    script = (
        "import sys\n"
        "import headrace as hr, importlib.machinery\n"
        "find = importlib.machinery.PathFinder.find_spec\n"
        "importlib.machinery.PathFinder.find_spec = lambda name, *a: None if name == 'pandas' else find(name, *a)\n"
        "for mistake in (lambda: hr.range(3).to_pandas(), lambda: hr.range(3).take_batch(batch_format='pandas'),\n"
        "                lambda: hr.range(3).map_batches(lambda df: df, batch_format='pandas').take(1)):\n"
        "    try:\n        mistake()\n"
        "    except hr.errors.HeadraceError as error:\n        print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == 3 and all("pip install" in line and "pandas" in line for line in lines), (
        done.stdout + done.stderr
    )

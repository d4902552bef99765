"""The public functions: their arguments, and that they reach the sources."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import headrace as hr
import headrace as io
from headrace.errors import StepError, UnknownArgument
from headrace.sources.csv import CsvFormat
from headrace.sources.csv.source import CsvSource
from headrace.sources.images.source import ImageSource
from headrace.sources.json.source import JsonSource
from headrace.sources.lines import TextSource
from headrace.sources.parquet.source import ParquetSource

NAMES = [name for name in hr.__all__ if name.startswith(("read_", "from_", "range"))]


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_argument_name_is_answered_with_the_nearest(name: str) -> None:
    function = getattr(hr, name)
    right = list(inspect.signature(function).parameters)[-1]
    with pytest.raises(
        UnknownArgument, match=rf"{function.__name__}\(\) has no argument '{right}s'. Did you mean '{right}'"
    ):
        function([], **{f"{right}s": 1})


def test_options_are_keyword_only() -> None:
    for name in NAMES:
        first, *others = inspect.signature(getattr(hr, name)).parameters.values()
        assert first.kind is first.POSITIONAL_OR_KEYWORD
        also = {"read_sql": "uri", "read_delta": "version"}.get(name)  # as Ray Data has them
        others = [other for other in others if other.name != also]
        assert all(other.kind is other.KEYWORD_ONLY for other in others)


@pytest.mark.parametrize(
    ("function", "source", "not_offered"),
    [
        (io.read_parquet, ParquetSource, set()),
        (io.read_csv, CsvSource, {"block_bytes", "form"}),
        (io.read_json, JsonSource, {"block_bytes"}),
        (io.read_text, TextSource, {"block_bytes"}),
        (io.read_images, ImageSource, set()),
    ],
)
def test_functions_offer_what_sources_take(function: object, source: type, not_offered: set[str]) -> None:
    def parameters(taker: object) -> dict[str, object]:
        return {p.name: p.default for p in inspect.signature(taker).parameters.values()}  # type: ignore[arg-type]

    expected = {name: value for name, value in parameters(source).items() if name not in not_offered}
    if source is CsvSource:
        expected |= parameters(CsvFormat)
        expected |= {"column_types": None, "has_header": None}  # no types; a header unless there are names
    offered = parameters(function)
    if source is ParquetSource:
        assert offered.pop("filter") is None  # a step of its own
    assert offered.pop("storage_options") is None  # all sources of files are told in the same way
    assert offered == expected


def test_every_option_is_documented() -> None:
    for name in NAMES:
        function = getattr(hr, name)
        for parameter in inspect.signature(function).parameters:
            assert re.search(rf"^    (\w+, )*{parameter}(, \w+)*$", function.__doc__, re.MULTILINE), parameter


# ---------------------------------------------------------------- unfinished output

READERS = [io.read_parquet, io.read_csv, io.read_json, io.read_binary_files, io.read_images, io.read_text]


@pytest.mark.parametrize("read", READERS)
def test_an_unfinished_output_is_warned_of_once(read: Callable[[Any], object], tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "_headrace").mkdir(parents=True)
    for paths in (out, str(out), [out, f"{out}/", tmp_path]):
        with pytest.warns(UserWarning, match="again to complete it") as caught:
            read(paths)
        assert len(caught) == 1
        assert f"The folder {str(out)!r} is the unfinished output" in str(caught[0].message)
        assert caught[0].filename == __file__
    (out / "_SUCCESS").write_bytes(b"{}")
    read(out)  # a warning would be an error here


@pytest.mark.parametrize("read", READERS)
def test_other_folders_are_not_warned_of(read: Callable[[Any], object], tmp_path: Path) -> None:
    (tmp_path / "_headrace").write_bytes(b"a file")
    read([tmp_path, tmp_path / "nowhere", tmp_path / "*.x"])


def test_a_run_that_stopped_is_warned_of_and_completing_it_ends_that(tmp_path: Path) -> None:
    data = hr.range(5000).with_options(engine="inline", progress=False)

    def stops(row: dict[str, int]) -> dict[str, int]:
        if row["id"] == 4000:
            raise RuntimeError("stopped")
        return row

    with pytest.raises(StepError):
        data.map(stops).write_parquet(tmp_path / "out")
    with pytest.warns(UserWarning, match="unfinished output"):
        io.read_parquet(tmp_path / "out")
    data.map(lambda row: row).write_parquet(tmp_path / "out", on_change="continue")
    assert io.read_parquet(tmp_path / "out").count() == 5000

"""Sources and sinks of the user's own that raise: the message says which, at what and where, with their traceback."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

import headrace as hr
from headrace.core.files.input_files import InputFile
from headrace.core.files.staged import StagedStream
from headrace.core.source_ports import Bad, Location
from headrace.core.target_ports import Format, Moment, Target
from headrace.core.work import Split, StagedFile
from headrace.errors import OutputWriteFailed, SinkError, SourceError
from headrace.sinks.files import FileSink
from headrace.sources.file_source import FileSource
from headrace.testing import failpoints


class TsvxSource(FileSource[list[int]]):
    """One row for each line; ``x`` in it is an error of the program."""

    suffixes = (".tsvx",)

    def describe(self) -> dict[str, Any]:
        return {"kind": "tsvx", "paths": list(self.paths)}

    def schema(self) -> pa.Schema:
        return pa.schema([("n", pa.int64())])

    def inspect(self, files: list[InputFile]) -> list[int]:
        return [len(Path(file.path).read_text().splitlines()) for file in files]

    def splits(self) -> list[Split]:
        return [Split(at, 0, rows, rows, rows, 0) for at, rows in enumerate(self.refreshed())]

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None
    ) -> Iterator[pa.RecordBatch]:
        for line in Path(self.file(split.file).path).read_text().splitlines():
            yield pa.record_batch({"n": pa.array([int(line)], pa.int64())})

    def locate(self, split: Split, row: int) -> Location:
        return Location(self.file(split.file).path, row)


class LostSource(TsvxSource):
    """It cannot even say where it is."""

    def locate(self, split: Split, row: int) -> Location:
        raise KeyError(row)


class PickyEncoder:
    def __init__(self, stream: StagedStream, when: str) -> None:
        self.stream, self.when, self.rows = stream, when, 0

    def write(self, batch: pa.RecordBatch) -> None:
        for value in batch.column(0).to_pylist():
            if self.when == "write" and value == 3:
                raise ValueError(f"no {value}s here")
            try:
                self.stream.write(f"{value}\n".encode())
            except OutputWriteFailed:
                if self.when == "hides":
                    raise ValueError("cannot write") from None
                raise
        self.rows += batch.num_rows

    def close(self) -> int:
        if self.when == "close":
            raise ValueError("no 3s here")
        return self.rows


@dataclass(frozen=True)
class Picky(Format):
    """Neither ``options`` nor ``check_schema``: both have defaults."""

    when: str = ""
    kind: ClassVar[str] = "Picky"
    suffix = "txt"

    def open(self, stream: StagedStream, schema: pa.Schema) -> PickyEncoder:
        return PickyEncoder(stream, self.when)


@pytest.fixture(params=["inline", "local"])
def options(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"engine": request.param, "workers": 1, "progress": False}


def source(folder: Path, kind: type[TsvxSource] = TsvxSource) -> TsvxSource:
    (folder / "a.tsvx").write_text("1\n2\nx\n4\n")
    return kind(str(folder))


@pytest.mark.parametrize("on_error", ["raise", "null"])
def test_a_source_that_raises(tmp_path: Path, options: dict[str, Any], on_error: str) -> None:
    data = hr.Dataset.from_source(source(tmp_path)).with_options(**options, on_error=on_error)
    with pytest.raises(SourceError) as caught:
        data.take_all()
    text = str(caught.value)
    assert text.startswith(
        "TsvxSource raised ValueError: invalid literal for int() with base 10: 'x', while "
    )
    assert f"{tmp_path}/a.tsvx, row 2" in text
    assert "defect" not in text
    trace = str(caught.value.__cause__)
    assert "in read_rows" in trace and "int(line)" in trace and "headrace/worker" not in trace


def test_data_is_not_shown_if_it_may_not_be(tmp_path: Path, options: dict[str, Any]) -> None:
    data = hr.Dataset.from_source(source(tmp_path)).with_options(**options, show_data=False)
    with pytest.raises(SourceError, match=r"TsvxSource raised ValueError: \(its text is hidden") as caught:
        data.take_all()
    assert "'x'" not in f"{caught.value}{caught.value.__cause__}"


def test_a_source_that_cannot_say_where(tmp_path: Path) -> None:
    data = hr.Dataset.from_source(source(tmp_path, LostSource)).with_options(engine="inline")
    with pytest.raises(SourceError, match=r"LostSource raised ValueError.* could not name \(KeyError\)"):
        data.take_all()


@pytest.mark.parametrize("when", ["write", "close"])
def test_a_sink_that_raises(tmp_path: Path, options: dict[str, Any], when: str) -> None:
    data = hr.range(5).with_options(**options)
    with pytest.raises(SinkError) as caught:
        data.write_to(FileSink(str(tmp_path / "out"), Picky(when)))
    assert str(caught.value).startswith(
        f"Picky raised ValueError: no 3s here, while writing part 0 to {tmp_path}/out."
    )
    assert f"in {when}" in str(caught.value.__cause__)


@pytest.mark.parametrize("when", ["", "hides"])
def test_a_full_disk_is_told_as_ever(tmp_path: Path, when: str) -> None:
    data = hr.range(5).with_options(engine="inline")
    with failpoints({"stage.write": "ENOSPC"}), pytest.raises(OutputWriteFailed, match="Free some space"):
        data.write_to(FileSink(str(tmp_path / "out"), Picky(when)))


@dataclass(frozen=True)
class Unpublished(Target):
    """It fails in the driver, ``when`` it reveals a part or finishes."""

    when: str

    @property
    def moment(self) -> Moment:
        return Moment.TRANSACTION

    def reveal(self, files: Sequence[StagedFile], schema: pa.Schema | None) -> None:
        if self.when == "reveal":
            raise ValueError("no place")

    def finish(self, rows: int) -> None:
        if self.when == "finish":
            raise ValueError("no place")

    def kept_rows(self, run: str) -> str:
        return ""

    def rows_lost(self, files: Any, missing: Any, run: str = "") -> None:
        return None


@pytest.mark.parametrize("when", ["reveal", "finish"])
def test_a_sink_that_raises_in_the_driver(tmp_path: Path, when: str) -> None:
    data = hr.range(5).with_options(engine="inline", progress=False)
    out = str(tmp_path / "out")
    with pytest.raises(SinkError) as caught:
        data.write_to(FileSink(out, Picky(), target=Unpublished(when)))
    assert str(caught.value) == (
        f"Unpublished raised ValueError: no place, while publishing in {out}. What was finished "
        f"before is kept in {out}: 5 rows. Correct the code, and run the same program again."
    )
    result = data.write_to(FileSink(out, Picky(), target=Unpublished("")), on_change="continue")
    assert (result.rows, len(list((tmp_path / "out").glob("part-*")))) == (5, 1)

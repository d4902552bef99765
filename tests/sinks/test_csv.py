"""CSV files keep the contract, and pyarrow reads back what was written."""

from __future__ import annotations

import csv
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pacsv
import pytest
from hypothesis import given, settings

from crossed import few
from headrace.core.target_ports import Sink
from headrace.errors import ArgumentError, SinkError
from headrace.sinks.files import FileSink
from headrace.sinks.json import Json
from headrace.sinks.text import Csv
from headrace.testing.sinks import SCHEMA, FormatContract, bound, rows

from .tables import PLAIN, SCALARS, batches_of, tables, written


def read(path: Path, schema: pa.Schema, delimiter: str = ",") -> pa.Table:
    return pacsv.read_csv(
        path,
        parse_options=pacsv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
        convert_options=pacsv.ConvertOptions(
            column_types=schema,
            null_values=[""],
            strings_can_be_null=True,
            quoted_strings_can_be_null=len(schema) == 1,
        ),
    )


class TestCsv(FormatContract):
    """The contract, on CSV."""

    def make(self) -> Csv:
        return Csv()

    def read(self, path: Path) -> pa.Table:
        return read(path, SCHEMA)


class TestCsvZstd(TestCsv):
    """The contract, with compression; pyarrow sees it by the suffix."""

    def make(self) -> Csv:
        return Csv(compression="zstd")


def of(**columns: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(values) for values in columns.values()], list(columns))


@pytest.fixture
def sink(tmp_path: Path) -> Sink:
    return bound(FileSink(str(tmp_path), Csv()), tmp_path)


def test_text_is_quoted_and_null_is_not(sink: Sink) -> None:
    path = written(sink, of(a=['x"y\n,', "", None], b=[1, None, 3]))
    assert path.read_text() == '"a","b"\n"x""y\n,",1\n"",\n,3\n'


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ([1, None, 3], '"a"\n1\n""\n3\n'),
        (['x"', None, ""], '"a"\n"x"""\n""\n""\n'),
        ([None, None], '"a"\n""\n""\n'),
    ],
)
def test_a_null_in_an_only_column_is_not_an_empty_line(sink: Sink, values: Any, text: str) -> None:
    path = written(sink, of(a=values))
    assert path.read_text() == text
    assert pacsv.read_csv(path).num_rows == len(values)


def test_a_delimiter_and_no_header(tmp_path: Path) -> None:
    sink = bound(FileSink(str(tmp_path), Csv(delimiter="\t", header=False)), tmp_path)
    assert written(sink, rows(0, 2)).read_text().splitlines()[0].startswith("0\t")  # type: ignore[arg-type]


@settings(deadline=None, max_examples=few(32))
@given(tables([*PLAIN, (pa.large_string(), PLAIN[5][1]), SCALARS[-3], (pa.string_view(), PLAIN[5][1])]))
def test_pyarrow_reads_it_back(table: pa.Table) -> None:
    with tempfile.TemporaryDirectory() as name:
        sink = bound(FileSink(name, Csv()), Path(name), "process")
        sink.check_schema(table.schema)
        path = written(sink, *batches_of(table))  # type: ignore[arg-type]
        readable = pa.schema([(f.name, _readable(f.type)) for f in table.schema])
        back, table = read(path, readable), table.cast(readable)
        if len(readable) == 1 and readable.types[0] in (pa.string(), pa.large_string()):
            assert _no_nulls(back) == _no_nulls(table)  # there null and "" are one
        else:
            assert back.equals(table)


def _readable(kind: pa.DataType) -> pa.DataType:
    return pa.string() if pa.types.is_dictionary(kind) or pa.types.is_string_view(kind) else kind


def _no_nulls(table: pa.Table) -> list[str]:
    return [value or "" for value in table.column(0).to_pylist()]


@pytest.mark.parametrize(
    "kind",
    [
        pa.binary(),
        pa.uuid(),
        pa.list_(pa.int8()),
        pa.struct([("a", pa.int8())]),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.fixed_shape_tensor(pa.int8(), (2,)),
    ],
    ids=str,
)
def test_what_csv_cannot_hold_is_refused_by_name(sink: Sink, kind: pa.DataType) -> None:
    with pytest.raises(SinkError, match="CSV cannot hold column 'odd'"):
        sink.check_schema(pa.schema([("fine", pa.int8()), ("odd", kind)]))


BERLIN = pa.timestamp("s", "Europe/Berlin")


def test_a_moment_whose_offset_has_seconds_is_the_same_moment(sink: Sink) -> None:
    numbers = [-3_000_000_000, None, 1_000_000_000]
    moments = pa.array(numbers, pa.int64()).cast(BERLIN)
    late = pa.record_batch({"x": moments.slice(2), "n": [1]})
    path = written(sink, pa.record_batch({"x": moments, "n": [1, 2, 3]}), late)
    assert read(path, pa.schema([("x", BERLIN), ("n", pa.int64())]))["x"].cast(pa.int64()).to_pylist() == [
        *numbers,
        numbers[2],
    ]
    assert path.read_text().endswith("\n2001-09-09 03:46:40+0200,1\n")


@pytest.mark.parametrize("kind", [Csv(), Json()])
@pytest.mark.parametrize("year", [10_000, -1, 300_000])
@pytest.mark.parametrize("type_", [BERLIN, pa.timestamp("ms"), pa.date32(), pa.date64()])
def test_a_year_that_text_cannot_hold_is_refused(
    kind: Any, year: int, type_: pa.DataType, tmp_path: Path
) -> None:
    days = (year - 1970) * 365.2425 + 1
    number = days if type_ == pa.date32() else days * 86_400 * (1 if type_ == BERLIN else 1000)
    storage = pa.array([0, number], pa.int32() if type_ == pa.date32() else pa.int64(), safe=False)
    batch = pa.record_batch({"fine": [1, 2], "far": storage.view(type_)})
    with pytest.raises(SinkError, match=f"{kind.kind} cannot hold column 'far' of type .*0 to 9999"):
        written(bound(FileSink(str(tmp_path), kind), tmp_path), batch)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="delimiter"):
        FileSink(str(tmp_path), Csv(delimiter='"'))
    with pytest.raises(ArgumentError, match="compression"):
        FileSink(str(tmp_path), Csv(compression="bz2"))


FORMULAS = ["=cmd()", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1"]
PLAIN_TEXTS = ["a=b", "'=1", "", " =1", "1-1", "é"]


def bound_in(root: Path) -> Sink:
    return bound(FileSink(str(root), Csv(escape_formulas=True)), root)


def lines_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string())]
)
def test_formulas_are_escaped_where_asked(kind: pa.DataType, tmp_path: Path) -> None:
    texts = pa.array([*FORMULAS, *PLAIN_TEXTS, None]).cast(kind)
    batch = pa.record_batch(
        {"=cmd()": texts, "n": pa.array([-1.5] * len(texts)), "m": pa.array([-2] * len(texts))}
    )
    for slice_ in (batch, batch.slice(1)):
        sink = bound_in(tmp_path / str(slice_.num_rows))
        head, *rest = lines_of(written(sink, slice_))
        assert head == ["'=cmd()", "n", "m"]
        expected = [*(f"'{text}" for text in FORMULAS), *PLAIN_TEXTS, ""]
        assert rest == [[text, "-1.5", "-2"] for text in expected[-slice_.num_rows :]]


def test_an_only_column_is_escaped_too(tmp_path: Path) -> None:
    batch = pa.record_batch({"=x": pa.array(["=1", None, '=a"b'])})
    assert lines_of(written(bound_in(tmp_path), batch)) == [
        ["'=x"],
        ["'=1"],
        [""],
        ["'=a\"b"],
    ]


def test_formulas_stay_as_they_are_by_default(tmp_path: Path) -> None:
    batch = pa.record_batch({"=x": pa.array(FORMULAS)})
    sink = bound(FileSink(str(tmp_path), Csv()), tmp_path)
    assert lines_of(written(sink, batch)) == [["=x"], *([text] for text in FORMULAS)]
    assert "escape_formulas" not in sink.describe(), "outputs of earlier versions go on"
    assert sink.describe() != FileSink(str(tmp_path), Csv(escape_formulas=True)).describe()
    with pytest.raises(ArgumentError, match="escape_formulas='no' is neither"):
        FileSink(str(tmp_path), Csv(escape_formulas="no"))  # type: ignore[arg-type]

"""The preview of a row names it, whatever the row holds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

import headrace as hr
from headrace.errors import StepError
from headrace.worker.messages import LEAVES, hidden, preview
from headrace.worker.rows import Rows


def invalid_utf8() -> pa.Array:
    ends = pa.array([0, 2], pa.int32()).buffers()[1]
    return pa.Array.from_buffers(pa.string(), 1, [None, ends, pa.py_buffer(b"\xff\xfe")])


STRUCT = pa.struct([("x", pa.int64()), ("x", pa.int64())])
ODD: dict[str, pa.Array] = {
    "a struct": pa.array([{"x": 1, "y": [1, 2]}]),
    "a struct of nothing": pa.array([{}], pa.struct([])),
    "fields of one name": pa.StructArray.from_arrays([pa.array([1]), pa.array([2])], fields=list(STRUCT)),
    "a map": pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())),
    "a long map": pa.array([[(i, i) for i in range(500)]], pa.map_(pa.int64(), pa.int64())),
    "a union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1]), pa.array(["a"])]),
    "a date after the year 9999": pa.array([2**31 - 1], pa.date32()),
    "a time after the year 9999": pa.array([2**62], pa.timestamp("s")),
    "a time of an unknown zone": pa.array([0], pa.timestamp("us", "Nowhere/Town")),
    "a day too long": pa.array([2**62], pa.time64("ns")),
    "a duration too long": pa.array([2**62], pa.duration("s")),
    "text that is not UTF-8": invalid_utf8(),
    "a struct of text that is not UTF-8": pa.StructArray.from_arrays([invalid_utf8()], ["x"]),
    "a dictionary": pa.array(["a"]).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["a"])),
    "a view of a list": pa.array([[1, 2]], pa.list_view(pa.int64())),
    "a UUID": pa.array([b"1" * 16], pa.uuid()),
    "many values in a struct": pa.array([{"x": list(range(50_000))}]),
    "many values in a list of lists": pa.array([[list(range(50_000))]]),
    "a month, a day and a nanosecond": pa.array([(1, 2, 3)]),
    "a decimal": pa.array([1]).cast(pa.decimal256(40, 2)),
    "nothing": pa.nulls(1),
    "a null struct": pa.array([None], STRUCT),
}


@pytest.mark.parametrize("what", ODD)
def test_every_value_has_a_preview(what: str) -> None:
    shown = preview(pa.record_batch([ODD[what], pa.array([7])], ["v", "id"]))
    assert shown.startswith("v=") and shown.endswith(", id=7")
    assert len(shown) < 100, "it is one line of a message"
    assert hidden("nothing of it", Rows(pa.record_batch([ODD[what]], ["v"]), ())) in (
        "nothing of it",
        "(its text is hidden: it may hold data)",
    )


def test_what_python_cannot_hold_is_shown_as_arrow_prints_it() -> None:
    assert preview(pa.record_batch([pa.array([3_000_000], pa.date32())], ["day"])) == "day=10183-09-21"


def test_a_name_is_one_short_line() -> None:
    batch = pa.record_batch([pa.array([1])], ["a\nreport: \x1b]0;b" * 50])
    shown = preview(batch)
    assert shown.startswith(r"a\nreport: \x1b]0;b") and len(shown) < 100 and shown.isprintable()


def test_the_row_is_named_under_the_default_policy(tmp_path: Any) -> None:
    (tmp_path / "in.json").write_text('{"id": 1, "box": {"x": 1}}\n{"id": 2, "box": {"x": 2}}\n')

    def fails(row: dict[str, Any]) -> Any:
        if row["id"] == 2:
            raise ValueError("no")
        return row

    data = hr.read_json(tmp_path / "in.json").map(fails).with_options(engine="inline", progress=False)
    with pytest.raises(StepError, match=r"raised ValueError: no\. It was working on .*id=2, box=\{'x': 2\}"):
        data.write_parquet(tmp_path / "out")


@pytest.mark.parametrize(
    "what", ["a date after the year 9999", "text that is not UTF-8", "fields of one name"]
)
def test_rows_that_cannot_be_shown_are_named(what: str, tmp_path: Any) -> None:
    def fails(batch: pa.Table) -> Any:
        raise ValueError("no")

    data = hr.from_arrow(pa.table([ODD[what]], ["v"])).map_batches(fails, batch_format="pyarrow")
    with pytest.raises(StepError, match=r"raised ValueError: no\..*It was working on .*row 0: v="):
        data.with_options(engine="inline", progress=False).take_all()


def test_values_within_values_are_hidden_too() -> None:
    rows = Rows(pa.record_batch({"who": [{"names": ["Ada"], "number": "12-34"}]}), ())
    assert hidden("no such person: Ada (12-34)", rows) == "no such person: … (…)"
    escape = Rows(pa.record_batch({"text": ["a\x1b[31mb"]}), ())
    assert hidden("bad: a\x1b[31mb", escape) == "bad: …" == hidden(r"bad: a\x1b[31mb", escape)
    many = Rows(pa.record_batch([pa.array([list(range(LEAVES + 1))])], ["x"]), ())
    assert hidden("bad: 17", many) == "(its text is hidden: it may hold data)"

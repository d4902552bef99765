"""Nulls in columns of integers and booleans: what a function sees, and what becomes of the output's types."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.dataset.dataset import Dataset
from headrace.errors import BadInput, OutputSchemaChanged

ROWS = 4
BIG = 2**53 + 1


def write_files(folder: Path, *tables: dict[str, Any], **options: Any) -> Dataset:
    """One file and one shard for each table."""
    folder.mkdir(exist_ok=True)
    for number, columns in enumerate(tables):
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", **options)
    return reading(hr.read_parquet(folder))


def reading(dataset: Dataset) -> Dataset:
    return dataset.with_options(engine="inline", progress=False, shard_rows=ROWS)


def seen(dataset: Dataset, column: str = "n", format_: Any = "numpy") -> set[str]:
    """The dtypes in which a function sees a column."""
    dtypes: set[str] = set()

    def look(batch: Any) -> Any:
        dtypes.add(str(batch[column].dtype))
        return batch

    dataset.map_batches(look, batch_format=format_).take_all()
    return dtypes


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [row for path in sorted(folder.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


WITHOUT, WITH = {"n": [1, 2, 3, 4]}, {"n": [5, None, 7, 8]}


@pytest.fixture
def holed(tmp_path: Path) -> Dataset:
    return write_files(tmp_path / "in", WITHOUT, WITH)


@pytest.mark.parametrize("format_", ["numpy", "pandas"])
def test_a_function_sees_one_dtype_whichever_batch_has_the_null(holed: Dataset, format_: str) -> None:
    assert seen(holed, format_=format_) == {"float64"}


def test_what_has_no_null_stays_an_integer(tmp_path: Path) -> None:
    assert seen(write_files(tmp_path / "in", WITHOUT, WITHOUT)) == {"int64"}
    required = pa.schema([pa.field("n", pa.int64(), nullable=False)])
    bare = tmp_path / "required"
    bare.mkdir()
    pq.write_table(pa.table(WITHOUT, schema=required), bare / "0.parquet", write_statistics=False)
    assert seen(reading(hr.read_parquet(bare))) == {"int64"}


def test_where_a_file_does_not_say_its_schema_does(tmp_path: Path) -> None:
    assert seen(write_files(tmp_path / "in", WITHOUT, WITHOUT, write_statistics=False)) == {"float64"}


def test_a_column_that_one_file_lacks_is_null_there(tmp_path: Path) -> None:
    dataset = write_files(tmp_path / "in", WITHOUT | {"m": [1] * 4}, WITHOUT)
    assert seen(dataset, "m") == {"float64"} and seen(dataset, "n") == {"int64"}


def test_a_folder_that_stands_for_null(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for name in ("year=2024", "year=__HIVE_DEFAULT_PARTITION__"):
        write_files(tmp_path / "in" / name, WITHOUT)
    assert seen(reading(hr.read_parquet(tmp_path / "in")), "year") == {"float64"}


def test_big_integers_beside_nulls_are_objects_and_whole(tmp_path: Path) -> None:
    dataset = write_files(tmp_path / "in", {"n": [BIG, 2, 3, 4]}, {"n": [1, None, -BIG, 4]})
    assert seen(dataset) == {"object"} == seen(dataset, format_="pandas")
    doubled = dataset.map_batches(lambda b: {"y": [None if v is None else v * 2 for v in b["n"]]})
    assert [row["y"] for row in doubled.take_all()][4:7] == [2, None, -2 * BIG]


@pytest.mark.parametrize("wrap", [lambda n: n, lambda n: {"a": n}, lambda n: [n, n]])
def test_a_frame_keeps_a_big_integer_whose_nulls_are_in_another_batch(wrap: Any) -> None:
    rows = [[wrap(None)], [wrap(BIG)]]
    frame = reading(
        hr.from_arrow([pa.table({"n": pa.array(n, pa.array(rows[1]).type)}) for n in rows])
    ).to_pandas()
    assert repr(list(frame["n"])[1]).count(str(BIG)) == repr(rows[1]).count(str(BIG))


def test_a_big_integer_that_no_statistics_told_of_is_refused_with_words_that_help(tmp_path: Path) -> None:
    dataset = write_files(tmp_path / "in", WITHOUT, {"n": [1, None, BIG, 4]}, write_statistics=False)
    with pytest.raises(BadInput, match=r"1\.parquet, row 2") as caught:
        dataset.map_batches(lambda b: {"y": b["n"]}, batch_size=ROWS).take_all()
    said = str(caught.value)
    assert str(BIG) in said and "\n" not in said
    assert "batch_format='pyarrow'" in said
    same = dataset.map_batches(lambda t: t, batch_format="pyarrow")
    assert [row["n"] for row in same.take_all()][6] == BIG
    expr = re.search(r'\.filter\(expr="([^"]+)"\)', said)
    assert expr is not None
    rest = dataset.filter(expr=expr[1])
    assert seen(rest) == {"int64"}
    assert [row["y"] for row in rest.map_batches(lambda b: {"y": b["n"]}).take_all()][5] == BIG


def test_booleans_with_nulls(tmp_path: Path) -> None:
    dataset = write_files(tmp_path / "in", {"n": [True, False] * 2}, {"n": [True, None, False, True]})
    assert seen(dataset) == {"object"}
    assert seen(write_files(tmp_path / "full", {"n": [True, False] * 2})) == {"bool"}


def test_the_form_lasts_as_long_as_the_column_stays_what_it_is(holed: Dataset) -> None:
    assert seen(holed.map_batches(lambda b: {**b, "y": b["n"] * 2})) == {"float64"}
    assert seen(holed.map_batches(lambda b: b, batch_format="pandas")) == {"float64"}
    assert seen(holed.map_batches(lambda t: t, batch_format="pyarrow")) == {"float64"}
    assert seen(holed.map(lambda row: {**row, "y": 1})) == {"float64"}
    assert seen(holed.flat_map(lambda row: [row, row])) == {"float64"}
    assert seen(holed.rename_columns({"n": "k"}).select_columns(["k"]), "k") == {"float64"}
    assert seen(holed.filter(lambda row: row["n"] is not None)) == {"float64"}
    assert seen(holed.predict(lambda b: b["n"], inputs=["n"], output="y")) == {"float64"}
    filled = holed.map_batches(lambda b: {"n": np.nan_to_num(b["n"]).astype(np.int64)})
    assert seen(filled) == {"int64"}
    assert seen(holed.filter(expr="n is not None and n > 0")) == {"int64"}


def test_iterating_gives_one_dtype(holed: Dataset) -> None:
    for format_ in ("numpy", "pandas"):
        batches = [*holed.iter_batches(batch_size=ROWS, batch_format=format_)]
        assert {str(batch["n"].dtype) for batch in batches} == {"float64"}
    tables = [*holed.iter_batches(batch_size=ROWS, batch_format="pyarrow")]
    assert {str(table.schema.field("n").type) for table in tables} == {"int64"}
    assert all(table.schema.field("n").metadata is None for table in tables)


def test_workers_and_stages_see_one_dtype(tmp_path: Path) -> None:
    dataset = write_files(tmp_path / "in", WITHOUT, WITH).with_options(engine="local", workers=1)

    def first(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "first": [str(batch["n"].dtype)] * len(batch["n"])}

    def second(batch: dict[str, Any]) -> dict[str, Any]:
        return {**batch, "second": [str(batch["n"].dtype)] * len(batch["n"])}

    made = dataset.map_batches(first, concurrency=1).map_batches(second, num_cpus=1).to_arrow()
    assert set(made["first"].to_pylist()) == set(made["second"].to_pylist()) == {"float64"}
    assert made.schema.field("n").type == pa.int64() and made.schema.field("n").metadata is None


def test_carried_columns_keep_their_type_and_nulls(holed: Dataset, tmp_path: Path) -> None:
    holed.map_batches(lambda b: {**b, "y": b["n"] * 2}).write_parquet(tmp_path / "out")
    paths = sorted((tmp_path / "out").glob("*.parquet"))
    assert {str(pq.read_schema(path)) for path in paths} == {"n: int64\ny: double"}
    assert [row["n"] for row in rows_of(tmp_path / "out")] == [1, 2, 3, 4, 5, None, 7, 8]


@pytest.mark.parametrize("kind", ["csv", "json", "memory", "pandas"])
def test_other_sources_say_so_too(tmp_path: Path, kind: str) -> None:
    rows = [{"n": 1, "m": 1}, {"n": 2, "m": 2}, {"n": None, "m": 3}, {"n": 4, "m": 4}]
    if kind == "csv":
        (tmp_path / "a.csv").write_text("n,m\n" + "".join(f"{r['n'] or ''},{r['m']}\n" for r in rows))
        dataset = hr.read_csv(tmp_path / "a.csv")
    elif kind == "json":
        (tmp_path / "a.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in rows))
        dataset = hr.read_json(tmp_path / "a.jsonl")
    elif kind == "memory":
        dataset = hr.from_items(rows)
    else:
        pandas = pytest.importorskip("pandas")
        dataset = hr.from_pandas(pandas.DataFrame(rows).astype({"n": "Int64"}))
    dataset = reading(dataset)
    dtypes: list[tuple[str, str]] = []

    def look(batch: dict[str, Any]) -> dict[str, Any]:
        dtypes.append((str(batch["n"].dtype), str(batch["m"].dtype)))
        return batch

    made = dataset.map_batches(look, batch_size=1).take_all()
    assert set(dtypes) == {("float64", "int64")} and len(dtypes) == 4
    assert [row["n"] for row in made] == [1, 2, None, 4]


def test_a_schema_that_is_given_for_json_has_forms_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"n": 1, "m": 1}\n{"m": 2}\n')
    schema = pa.schema([("n", pa.int32()), ("m", pa.int32())])
    dataset = reading(hr.read_json(tmp_path / "a.jsonl", schema=schema))
    assert seen(dataset) == {"float64"} and seen(dataset, "m") == {"int32"}


def test_a_first_null_that_comes_late_in_a_text_file_ends_no_run(tmp_path: Path) -> None:
    """Types are settled from the first megabyte; the batch with the null is float64, its output what is settled."""
    rows, last = 150_000, 149_990
    text = "".join(f"{i},{'' if i == last else i}\n" for i in range(rows))
    (tmp_path / "a.csv").write_text(f"id,n\n{text}")
    dataset = hr.read_csv(tmp_path / "a.csv").with_options(engine="inline", progress=False)
    dataset.map_batches(lambda b: {"id": b["id"], "y": b["n"] * 2}).write_parquet(tmp_path / "out")
    made = rows_of(tmp_path / "out")
    assert made == [{"id": i, "y": None if i == last else 2 * i} for i in range(rows)]
    wide = hr.read_csv(tmp_path / "a.csv", column_types={"n": "float64"})
    assert seen(wide.with_options(engine="inline", progress=False)) == {"float64"}


# ---------------------------------------------------------------- the output's types


def late(values: dict[int, Any]) -> Any:
    """A function that gives these values, by the batch's first id."""

    def f(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "y": values[int(batch["id"][0])]}

    return f


@pytest.fixture
def ids(tmp_path: Path) -> Dataset:
    return write_files(tmp_path / "ids", {"id": [0, 1]}, {"id": [2, 3]}).with_options(shard_rows=2)


def test_new_nulls_and_floats_that_are_whole_are_taken(ids: Dataset, tmp_path: Path) -> None:
    ids.map_batches(late({0: np.array([1, 2]), 2: np.array([np.nan, 3.0])})).write_parquet(tmp_path / "out")
    assert [row["y"] for row in rows_of(tmp_path / "out")] == [1, 2, None, 3]
    paths = (tmp_path / "out").glob("*.parquet")
    assert {str(pq.read_schema(path).field("y").type) for path in paths} == {"int64"}


HALF = {0: np.array([1, 2]), 2: np.array([4.0, 2.5])}


def refused(ids: Dataset, out: Path, **options: Any) -> str:
    with pytest.raises(OutputSchemaChanged) as caught:
        ids.map_batches(late(HALF), version="1").write_parquet(out, **options)
    return str(caught.value)


def test_what_does_not_fit_is_explained_with_row_value_and_words(ids: Dataset, tmp_path: Path) -> None:
    said = refused(ids, tmp_path / "out")
    assert "map_batches(late.f)" in said and "'y'" in said and "int64" in said and "double" in said
    assert "1.parquet, row 1: id=3, y=2.5" in said
    assert "on_change='continue'" not in said and "\n" not in said


def test_each_word_of_the_message_works(ids: Dataset, tmp_path: Path) -> None:
    """``schema=`` as it stands there, or a mended function with ``restart``; and ``overwrite``, which others name."""
    said = refused(ids, tmp_path / "schema")
    text = re.search(r"schema=(pyarrow\.schema\(\{.*?\}\))", said)
    assert text is not None
    schema = eval(text[1], {"pyarrow": pa})
    with pytest.warns(UserWarning, match="done again"):
        ids.map_batches(late(HALF), version="1").write_parquet(tmp_path / "schema", schema=schema)
    assert [row["y"] for row in rows_of(tmp_path / "schema")] == [1.0, 2.0, 4.0, 2.5]

    assert "on_change='restart'" in said
    mended = ids.map_batches(late({0: np.array([1.0, 2.0]), 2: np.array([4.0, 2.5])}), version="2")
    for name, word in (("restart", {"on_change": "restart"}), ("overwrite", {"mode": "overwrite"})):
        refused(ids, tmp_path / name)
        mended.write_parquet(tmp_path / name, **word)
        assert [row["y"] for row in rows_of(tmp_path / name)] == [1.0, 2.0, 4.0, 2.5]


def test_an_overwrite_that_failed_is_no_trap(ids: Dataset, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ids.write_parquet(out)
    refused(ids, out, mode="overwrite")
    schema = pa.schema({"id": pa.int64(), "y": pa.float64()})
    ids.map_batches(late(HALF), version="1").write_parquet(out, mode="overwrite", schema=schema)
    assert [row["y"] for row in rows_of(out)] == [1.0, 2.0, 4.0, 2.5]


def test_values_that_may_not_be_shown_are_not(ids: Dataset, tmp_path: Path) -> None:
    said = refused(ids.with_options(show_data=False), tmp_path / "out")
    assert "2.5" not in said and "1.parquet, row 1" in said


def test_the_words_about_a_null_that_is_not_allowed_work(ids: Dataset, tmp_path: Path) -> None:
    holes = {0: [1.0, 2.0], 2: [None, 2.5]}
    strict = pa.schema([pa.field("id", pa.int64()), pa.field("y", pa.float64(), nullable=False)])
    for out in ("allow", "fill"):
        with pytest.raises(
            OutputSchemaChanged, match=r"gave a null in column 'y'.*1\.parquet, row 0.*`schema=`"
        ):
            ids.map_batches(late(holes), version="1").write_parquet(tmp_path / out, schema=strict)
    loose = strict.set(1, pa.field("y", pa.float64()))
    with pytest.warns(UserWarning, match="without nulls"):
        ids.map_batches(late(holes), version="1").write_parquet(tmp_path / "allow", schema=loose)
    assert [row["y"] for row in rows_of(tmp_path / "allow")] == [1.0, 2.0, None, 2.5]
    filled = ids.map_batches(late({0: [1.0, 2.0], 2: [0.0, 2.5]}), version="2")
    filled.write_parquet(tmp_path / "fill", schema=strict, on_change="continue")
    assert [row["y"] for row in rows_of(tmp_path / "fill")] == [1.0, 2.0, 0.0, 2.5]

"""``key=``: each key is processed once, also of files that are written again."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace as hr
from headrace.core import failpoints, key_digests
from headrace.core.key_digests import KeyFile, digests_of, merged_keys, write_keys
from headrace.errors import (
    ArgumentError,
    BadInput,
    HeadraceError,
    InputChanged,
    JournalDamaged,
    PlanChanged,
    UnknownColumn,
)

QUIET: dict[str, Any] = {"engine": "inline", "progress": False, "shard_rows": 100}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    """The model; it hides the key."""
    return {"twice": batch["id"] * 2, "version": batch["version"]}


def run(source: Path, output: Path, faults: dict[str, str] | None = None) -> hr.Result:
    failpoints.activate(faults or {})
    try:
        data = hr.read_parquet(str(source)).with_options(**QUIET).map_batches(double)
        return data.write_parquet(str(output), incremental=True, key="id")
    finally:
        failpoints.activate({})


def rows_of(output: Path) -> list[tuple[int, int]]:
    found = [row for path in sorted(output.glob("part-*")) for row in pq.read_table(path).to_pylist()]
    return [(row["twice"] // 2, row["version"]) for row in found]


def test_keys_of_several_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Texts, numbers, dates and decimals together; ("a", "bc") is not ("ab", "c"). Other columns do not matter."""

    def write(name: str, *rows: tuple[str, str, int]) -> None:
        columns = {
            "first": pa.array([row[0] for row in rows]).dictionary_encode(),
            "second": pa.array([row[1] for row in rows]),
            "day": pa.array([dt.date(2026, 1, row[2]) for row in rows]),
            "price": pa.array([Decimal(row[2]) for row in rows], pa.decimal128(10, 2)),
            "note": pa.array([name] * len(rows)),
        }
        pq.write_table(pa.table(columns), tmp_path / "in" / f"{name}.parquet")

    def go(**options: Any) -> hr.Result:
        data = hr.read_parquet(str(tmp_path / "in")).with_options(**{**QUIET, **options})
        return data.drop_columns(["price"]).write_csv(
            tmp_path / "out", incremental=True, key=["first", "second", "day", "price"]
        )

    (tmp_path / "in").mkdir()
    write("x", ("a", "bc", 1), ("", "", 1), ("é", "\0", 2))
    assert go().rows == 3
    write("x", ("a", "bc", 1), ("", "", 1), ("", "", 2), ("é", "\0", 2))
    write("y", ("ab", "c", 1), ("a", "bc", 2), ("é", "\0", 2))
    result = go(engine="local", workers=2, progress=True)  # in workers of their own
    assert (result.rows, result.ledger.read, result.ledger.dropped[0]) == (6, 10, 4)
    assert "4 rows left out, as runs before had seen their keys" in capsys.readouterr().err
    assert [(run["rows"], run["input_files"]) for run in result.runs] == [(3, 1), (3, 2)]
    found = hr.read_csv(str(tmp_path / "out")).take_all()
    assert [(row["note"], row["first"] or "", row["day"].day) for row in found[3:]] == [
        ("x", "", 2),
        ("y", "ab", 1),
        ("y", "a", 2),
    ]
    assert hr.verify(tmp_path / "out").good


def test_rejected_rows_are_not_done(tmp_path: Path) -> None:
    """A file with a row that was put right brings it, once, in later versions too; what a filter left out is done."""

    def write(*versions: int) -> None:
        table = {"id": range(len(versions)), "version": versions}
        pq.write_table(pa.table({k: pa.array(v, pa.int64()) for k, v in table.items()}), source / "a.parquet")

    def picky(row: dict[str, Any]) -> dict[str, Any]:
        if row["version"] < 0:
            raise ValueError("not yet")
        return {"id": row["id"], "version": row["version"]}

    def go() -> hr.Result:
        data = hr.read_parquet(str(source)).with_options(**QUIET, on_error="reject").map(picky)
        return data.filter(expr="version != 7").write_parquet(tmp_path / "out", incremental=True, key="id")

    source = tmp_path / "in"
    source.mkdir()
    write(1, -1, 7)
    assert (go().rows, hr.read_rejected(tmp_path / "out").count()) == (1, 1)
    write(2, 2, 2, 2)
    assert [(go().rows, go().rejected)] == [(3, 1)]
    write(3, 3, 3, 3, 3)
    assert go().rows == 4
    rows = hr.read_parquet(str(tmp_path / "out")).take_all()
    assert [(row["id"], row["version"]) for row in rows] == [(0, 1), (1, 2), (3, 2), (4, 3)]


def test_what_is_refused(tmp_path: Path) -> None:
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()

    def write(ids: Any, name: str = "a") -> None:
        table = pa.table({"id": pa.array(ids), "version": pa.nulls(len(ids), pa.int64())})
        pq.write_table(table, source / f"{name}.parquet")

    def go(key: Any = "id", **options: Any) -> hr.Result:
        data = hr.read_parquet(str(source)).with_options(**QUIET)
        return data.write_parquet(options.pop("path", out), key=key, **{"incremental": True, **options})

    write([1, 2])
    for key in ("", [], ["id", "id"], 3, [None]):
        with pytest.raises(ArgumentError, match="name of a column"):
            go(key)
    with pytest.raises(UnknownColumn, match=r"key\(ib\) asks for column 'ib'.*'id'"):
        go("ib")
    with pytest.raises(ArgumentError, match="without incremental=True"):
        go(incremental=False)
    with pytest.raises(ArgumentError, match="with refresh='changed'"):
        go(refresh="changed")
    with pytest.raises(ArgumentError, match="object store"):
        go(path="s3://bucket/out")
    assert not out.exists()
    go()
    write([3, None], "b")
    with pytest.raises(BadInput, match=r"key='id': it is null in 1 of 2 rows\. This is in .*b\.parquet"):
        go()
    assert hr.verify(out).good and hr.read_parquet(str(out)).count() == 2
    write([3], "b")
    assert go().rows == 3
    with pytest.raises(PlanChanged, match="its steps were key"):
        hr.read_parquet(str(source)).with_options(**QUIET).write_parquet(out, incremental=True)
    keys = out / "_headrace" / (out / "_headrace" / "current").read_text().strip() / "keys" / "1-0" / "high"
    write([1, 2, 3, 4])
    keys.write_bytes(bytes(16))
    with pytest.raises(JournalDamaged, match=r"keys/1-0, which has keys of rows.*is damaged"):
        go()
    keys.unlink()
    with pytest.raises(JournalDamaged, match=r"keys/1-0/high, which has keys.*is of another size"):
        go()
    write([1.5], "a")
    (source / "b.parquet").unlink()
    with pytest.raises(ArgumentError, match="type double"):
        go(path=tmp_path / "other")


def test_a_file_that_is_written_again_before_its_run_has_ended(tmp_path: Path) -> None:
    """Its first version was committed: the second waits for the next run, and is named."""
    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    for name, ids in (("a", range(100)), ("b", range(100, 200))):
        table = pa.table({"id": pa.array(ids, pa.int64()), "version": pa.array([1] * 100)})
        pq.write_table(table, source / f"{name}.parquet")
    with pytest.raises((HeadraceError, OSError)):
        run(source, out, {"attempt.started": "EIO@2"})
    table = pa.table({"id": pa.array(range(150), pa.int64()), "version": pa.array([2] * 150)})
    pq.write_table(table, source / "a.parquet")
    result = run(source, out)
    assert (result.rows, result.left_out) == (200, (str(source / "a.parquet"),))
    assert run(source, out).rows == 200  # 100 to 149 were in the other file
    assert rows_of(out) == [(i, 1) for i in range(200)]
    assert len(json.loads((out / "_SUCCESS").read_text())["runs"]) == 2


def test_files_that_change_while_a_run_waits_to_go_on(tmp_path: Path) -> None:
    """What was read is not read again, what was not is: keys are those of the rows that were processed."""

    def write(name: str, *ids: int) -> None:
        table = pa.table({"id": pa.array(ids, pa.int64()), "version": pa.array([1] * len(ids))})
        pq.write_table(table, source / f"{name}.parquet")

    source, out = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    write("0", 0)
    run(source, out)
    write("a", *range(100, 200))
    write("b", *range(200, 300))
    with pytest.raises((HeadraceError, OSError)):
        run(source, out, {"attempt.started": "EIO@2"})
    write("a", 100, 500)  # it was processed: this waits
    write("b", 201, 202, 600)  # it was not: 200 is not seen
    write("c", 700)
    assert run(source, out).left_out == (str(source / "a.parquet"),)
    assert [i for i, _ in rows_of(out)] == [0, *range(100, 200), 201, 202, 600, 700]
    write("b", 200, 201)
    run(source, out)
    assert sorted(i for i, _ in rows_of(out))[101:] == [200, 201, 202, 500, 600, 700]


def test_parts_that_are_lost_are_made_of_the_same_file_only(tmp_path: Path) -> None:
    """Rows of a run that has ended are not made of what is in its file now: its keys are those of then."""
    (tmp_path / "in").mkdir()

    def wrote(*ids: int) -> Path:
        """Return an output in which a run has seen 1 and 2; then there are these ids."""
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        for now in ((1, 2), ids):
            table = pa.table({"id": now, "version": [0] * len(now)})
            pq.write_table(table, tmp_path / "in" / "a.parquet")
            if now != ids:
                run(tmp_path / "in", out)
        return out

    out = wrote(1, 2, 3)  # not read yet
    next(out.glob("part-00000-*")).unlink()
    with pytest.raises(InputChanged, match=r"gone, and the input file .*a\.parquet.* has changed or is gone"):
        run(tmp_path / "in", out)
    out = wrote(3, 4, 2)  # read by a second run
    run(tmp_path / "in", out)
    next(out.glob("part-00000-*")).unlink()
    with pytest.raises(InputChanged, match=r"gone, and the input file .*a\.parquet.* has changed or is gone"):
        run(tmp_path / "in", out)
    out = wrote(3, 1, 2)
    run(tmp_path / "in", out)
    next(out.glob("part-00001-*")).unlink()
    run(tmp_path / "in", out)  # of the second run, whose file is as it was
    assert rows_of(out) == [(1, 0), (2, 0), (3, 0)] and hr.verify(out).good


@pytest.mark.parametrize(
    "before, after",
    [
        (pa.array([1, 2]), pa.array(["1", "2", "3"])),
        (pa.array([-1, 2]), pa.array([2**64 - 1, 2, 3], pa.uint64())),
        (pa.array([1, 2], pa.timestamp("ms")), pa.array([1000, 2000, 3], pa.timestamp("us"))),
        (pa.array([1, 2], pa.timestamp("us")), pa.array([1, 2, 3], pa.timestamp("us", "UTC"))),
        (pa.array([Decimal("1.5")]), pa.array([Decimal("1.50")])),
    ],
)
def test_keys_of_another_type_are_refused(tmp_path: Path, before: pa.Array, after: pa.Array) -> None:
    """All files that were read are others now, so that no file tells which columns there were."""
    source, out = tmp_path / "in.parquet", tmp_path / "out"

    def go(key: pa.Array) -> list[Any]:
        pq.write_table(pa.table({"id": key, "row": range(len(key))}), source)
        data = hr.read_parquet(str(source)).with_options(**QUIET).select_columns(["row"])
        data.write_parquet(out, incremental=True, key="id")
        return [row["row"] for row in hr.read_parquet(str(out)).take_all()]

    first = go(before)
    with pytest.raises(InputChanged, match=r"key column 'id' of the input is of another type.*Nothing was"):
        go(after)
    assert hr.verify(out).good and hr.read_parquet(str(out)).count() == len(first)
    assert go(pa.nulls(0)) == first  # there are no rows, and no type
    wider = before.cast(pa.int64()) if pa.types.is_integer(before.type) else before
    assert go(wider) == go(before) == first


def test_sets_of_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Merged in bounded memory they have what sets of Python have; equal first halves are told apart."""
    monkeypatch.setattr(key_digests, "MOST", 100)
    dice = np.random.default_rng(7)
    given = [dice.integers(0, 40, (1_000, 2)).astype(np.uint64) for _ in range(3)]
    parts = [(str(i), np.array_split(each, 17)) for i, each in enumerate(given)]
    file = write_keys(tmp_path / "keys", parts, {"marks": "x"}, lasting=True)
    plain = [{tuple(map(int, row)) for row in each} for each in given]
    sets = [merged_keys(tmp_path / str(i), file.blocks(str(i))) for i in range(3)]
    for keys, expected in zip(sets, plain, strict=True):
        assert list(zip(keys.high.tolist(), keys.low.tolist(), strict=True)) == sorted(expected)
    both = [*file.blocks("0"), *file.blocks("1")]
    whole = merged_keys(tmp_path / "whole", both, without=sets[2])
    assert list(zip(whole.high.tolist(), whole.low.tolist(), strict=True)) == sorted(
        (plain[0] | plain[1]) - plain[2]
    )
    every = np.array([(a, b) for a in range(42) for b in range(42)], np.uint64)
    dice.shuffle(every)
    assert {tuple(map(int, row)) for row in every[whole.has(every)]} == (plain[0] | plain[1]) - plain[2]
    assert KeyFile(tmp_path / "keys").about["marks"] == "x"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0", "1", "2", "keys", "whole"]
    for array in (
        pa.array([2**64 - 1, 0], pa.uint64()),
        pa.array([-1, 1], pa.int8()),
        pa.array([dt.datetime(2026, 1, 1), dt.datetime(1926, 1, 1)], pa.timestamp("ns")),
        pa.array([dt.date(2026, 1, 1), dt.date(1926, 1, 1)]),
        pa.array([True, False]),
        pa.array([b"", b"\0"], pa.binary()),
        pa.array(["", "x"], pa.string_view()),
    ):
        found = digests_of(pa.record_batch({"x": array}), ["x"])
        assert len({tuple(row) for row in found.tolist()}) == 2
        values = array.cast(pa.string()) if array.type == pa.string_view() else array
        turned = values.take(pa.array([1, 0, 1])).cast(array.type)
        again = digests_of(pa.record_batch({"x": turned}), ["x"])
        assert again[:2].tolist() == found[::-1].tolist() and again[2].tolist() == again[0].tolist()


def test_files_without_rows_say_no_columns(tmp_path: Path) -> None:
    """An empty JSON file has no columns; whether it is the first one, or the only one left, it is taken in."""
    nightly, places = {"progress": False, "engine": "inline"}, [tmp_path / "a", tmp_path / "b"]

    def night(place: Path, texts: dict[str, str], **more: Any) -> int:
        (place / "in").mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            if not (place / f"in/{name}.json").exists():
                (place / f"in/{name}.json").write_text(text)
        for path in (place / "in").iterdir():
            if path.stem not in texts:
                path.unlink()
        data = hr.read_json(place / "in").with_options(**nightly).map_batches(hidden, version="1")
        return data.write_parquet(place / "out", incremental=True, **more).rows

    for place, more in zip(places, ({}, {"key": "id"}), strict=True):
        assert night(place, {"1": ""}, **more) == 0
        assert night(place, {"1": "", "2": '{"id": 1}\n'}, **more) == 1
        assert night(place, {"3": ""}, **more) == 1
        assert night(place, {"3": "", "4": '{"id": 2}\n{"id": 1}\n'}, **more) == (2 if more else 3)
        assert hr.verify(place / "out").good
    with pytest.raises(InputChanged, match="The key column 'id' of the input is of another type"):
        night(places[1], {"5": '{"id": "1"}\n'}, key="id")
    with pytest.raises(UnknownColumn, match="no columns"):
        night(tmp_path / "c", {"1": "{}\n{}\n"}, key="id")


def hidden(batch: dict[str, Any]) -> dict[str, Any]:
    """The output does not have the key."""
    return {"one": np.ones(len(batch["id"]), np.int64)} if "id" in batch else {}

"""Comparing rows: against a naive implementation, against queries of DuckDB, and what is refused in words."""

from __future__ import annotations

import datetime
import decimal
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace.accumulators.differences import Differences
from headrace.annex.compare.measure import Judged, Measure
from headrace.core.arrow.batch import column_taken
from headrace.core.arrow.plain import kind_of

duckdb = pytest.importorskip("duckdb")

UTC = datetime.UTC
DAY = datetime.datetime(2024, 2, 29, 12)
INTS = [0, 1, -1, 7, 127]
WIDE = [*INTS, 2**53, 2**53 + 1, -(2**63), 2**63 - 1]
REALS = [0.0, -0.0, 1.0, 0.5, math.nan, math.inf, -math.inf, 7.0]
VALUES: dict[pa.DataType, list[Any]] = {
    pa.int8(): INTS,
    pa.int64(): WIDE,
    pa.uint64(): [0, 1, 7, 2**53 + 1, 2**63, 2**64 - 1],
    pa.float16(): [np.float16(each) for each in REALS],
    pa.float32(): REALS,
    pa.float64(): [*REALS, 2.0**53, 1e300, 0.1, 2.0**63],
    pa.decimal128(20, 2): [decimal.Decimal(each) for each in ("0", "1.00", "0.50", "7", "-1.25")],
    pa.decimal128(38, 10): [decimal.Decimal(each) for each in ("0", "1", "0.5", "0.1", "1e-10")],
    pa.bool_(): [True, False],
    pa.string(): ["", "a", "b", "a\x00b", "é"],
    pa.large_string(): ["", "a", "b"],
    pa.string_view(): ["", "a", "longer than twelve bytes"],
    pa.dictionary(pa.int8(), pa.string()): ["a", "b"],
    pa.binary(): [b"", b"a", b"\xff"],
    pa.binary(1): [b"a", b"b"],
    pa.date32(): [DAY.date(), datetime.date(1, 1, 1)],
    pa.timestamp("s"): [DAY, datetime.datetime(1970, 1, 1)],
    pa.timestamp("us"): [DAY, DAY + datetime.timedelta(microseconds=1)],
    pa.timestamp("ms", "UTC"): [DAY.replace(tzinfo=UTC), datetime.datetime(1970, 1, 1, tzinfo=UTC)],
    pa.duration("s"): [datetime.timedelta(seconds=1), datetime.timedelta()],
    pa.duration("ms"): [datetime.timedelta(seconds=1), datetime.timedelta(milliseconds=1)],
    pa.time32("s"): [datetime.time(1), datetime.time()],
    pa.time64("us"): [datetime.time(1), datetime.time(0, 0, 0, 1)],
    pa.null(): [None],
    pa.list_(pa.float64()): [[], [1.0], [math.nan, None], [1.0, 2.0]],
    pa.large_list(pa.float32()): [[], [1.0], [math.nan, None], [1.0, 2.0]],
    pa.list_(pa.float32(), 2): [[1.0, 2.0], [math.nan, 0.0], [None, 1.0]],
    pa.struct([("a", pa.int64()), ("b", pa.string())]): [
        {"a": 1, "b": "x"},
        {"a": None, "b": "x"},
        {"a": 1, "b": None},
    ],
    pa.struct([("b", pa.string()), ("a", pa.int8())]): [{"b": "x", "a": 1}, {"b": "x", "a": None}],
    pa.list_(pa.struct([("a", pa.int64())])): [[], [{"a": 1}], [{"a": 1}, None], [None]],
}
BY_KIND = {kind: [each for each in VALUES if kind_of(each) == kind] for kind in map(kind_of, VALUES)}


@st.composite
def columns(draw: st.DrawFn) -> tuple[pa.Array, pa.Array]:
    """Two columns of one length: of one type, of two types of a kind, or of any two."""
    one = draw(st.sampled_from(list(VALUES)))
    other = draw(st.sampled_from([one, *BY_KIND[kind_of(one)]]) | st.sampled_from(list(VALUES)))
    rows = draw(st.integers(0, 12))
    made = [
        pa.array(draw(st.lists(st.sampled_from([*VALUES[each], None]), min_size=rows, max_size=rows)), each)
        for each in (one, other)
    ]
    if one == other:  # so that many rows are the same
        keep = draw(st.lists(st.booleans(), min_size=rows, max_size=rows))
        pairs = zip(*(each.to_pylist() for each in made), keep, strict=True)
        made[1] = pa.array([a if k else b for a, b, k in pairs], other)
    start = draw(st.integers(0, rows))
    return made[0][start:], made[1][start:]


def same(a: Any, b: Any) -> bool:
    """Compare two Python values as the table in the documentation says."""
    if a is None or b is None:
        return a is b
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if {type(a), type(b)} <= {float, decimal.Decimal} and type(a) is not type(b):
        return float(a) == float(b)
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a) and math.isnan(b):
        return True
    return bool(a == b)


def naive(old: pa.Array, new: pa.Array) -> list[bool]:
    """Say which rows changed."""
    alike = kind_of(old.type) == kind_of(new.type)
    pairs = zip(plain(old), plain(new), strict=True)
    return [not (same(a, b) and (alike or (a is None and b is None))) for a, b in pairs]


def plain(column: pa.Array) -> list[Any]:
    return [float(value) if isinstance(value, np.floating) else value for value in column.to_pylist()]


@settings(deadline=None, max_examples=few(40))
@given(columns(), st.integers(1, 5))
def test_any_two_columns_as_a_naive_implementation_compares_them(
    pair: tuple[pa.Array, pa.Array], size: int
) -> None:
    old, new = pair
    changed = naive(old, new)
    whole, parts = Differences("a", "b"), Differences("a", "b")
    assert whole.add(old, new)[0].tolist() == changed
    for start in range(len(old) // size * size, -1, -size):  # in any order
        part = parts.empty()
        part.update(pa.record_batch([old[start : start + size], new[start : start + size]], ["a", "b"]))
        parts.merge(parts.from_bytes(part.to_bytes()))
    assert parts.to_bytes() == whole.to_bytes()
    found = whole.result()
    assert (found["rows"], found["changed"]) == (len(old), sum(changed))
    olds, news = plain(old), plain(new)
    assert found["filled"] == sum(a is None and b is not None for a, b in zip(olds, news, strict=True))
    assert found["emptied"] == sum(b is None and a is not None for a, b in zip(olds, news, strict=True))
    if found["classes"] is not None:
        assert sum(map(sum, found["classes"]["matrix"])) == len(old)
    if kind_of(old.type) == kind_of(new.type) == "number":
        by = [
            float(b) - float(a) if not isinstance(a, int) or not isinstance(b, int) else b - a
            for a, b, moved in zip(olds, news, changed, strict=True)
            if moved and a is not None and b is not None
        ]
        by = [each for each in by if not math.isnan(each)]
        if by:
            assert found["difference"]["least"] == pytest.approx(float(min(by)), rel=1e-15)
            assert found["difference"]["most"] == pytest.approx(float(max(by)), rel=1e-15)
        else:
            assert found["difference"] is None


HELD = [each for each in VALUES if not pa.types.is_map(each)]


@settings(deadline=None, max_examples=few(10))
@given(columns(), st.randoms(use_true_random=False))
def test_by_key_as_by_position(pair: tuple[pa.Array, pa.Array], random: Any) -> None:
    old, new = pair
    rows = len(old)
    keys = list(range(rows))
    random.shuffle(keys)
    lone = {"id": pa.array([-1, None], pa.int64())}
    one = pa.table({"id": pa.array(range(rows), pa.int64()), "x": old})
    other = pa.table({"x": column_taken(new, np.array(keys, np.int64)), "id": pa.array(keys, pa.int64())})
    one = pa.concat_tables([one, pa.table({**lone, "x": pa.nulls(2, old.type)})])
    found = hr.compare(hr.from_arrow(one), hr.from_arrow(other), on=["id"])
    assert (found.rows, found.only_old, found.only_new) == (rows, 2, 0)
    changed = naive(old, new)
    assert (found.different, found.columns["x"]["changed"]) == (sum(changed), sum(changed))
    assert {row["inputs"]["id"] for row in found.columns["x"]["worst"]} == set(
        np.flatnonzero(changed).tolist()
    )


# ------------------------------------------------------------ outputs, against queries


ROWS = 30_000


def yesterday(batch: dict[str, Any]) -> dict[str, Any]:
    score = batch["id"] * 7919 % 1009 / 1009
    return {**batch, "score": score, "kind": np.where(score > 0.5, "cat", "dog"), "count": batch["id"] % 7}


def today(batch: dict[str, Any]) -> dict[str, Any]:
    found = yesterday(batch)
    moved = batch["id"] % 20 == 0
    score = np.where(moved, found["score"] / 2 + 0.125, found["score"])
    count = np.where(batch["id"] % 100 == 3, found["count"] + 2**40, found["count"])
    return {**found, "score": score, "kind": np.where(score > 0.5, "cat", "dog"), "count": count}


def written(path: Path, function: Any, *, start: Any = None, shard_rows: int = 4_000) -> str:
    data = (start or hr.range(ROWS)).map_batches(function, batch_size=500)
    data.with_options(engine="inline", progress=False, shard_rows=shard_rows).write_parquet(str(path))
    return str(path)


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    folder = tmp_path_factory.mktemp("compare")
    return written(folder / "old", yesterday), written(folder / "new", today, shard_rows=2_600)


@pytest.mark.parametrize("on", [None, "id"], ids=["position", "key"])
def test_outputs_as_a_query_compares_them(outputs: tuple[str, str], on: str | None) -> None:
    found = hr.compare(*outputs, on=on, sample=3)
    query = duckdb.connect()
    for side, path in zip(("o", "n"), outputs, strict=True):
        query.execute(f"CREATE TABLE {side} AS SELECT * FROM read_parquet('{path}/*.parquet')")
    both = "FROM o JOIN n USING (id)"
    (different,) = query.execute(
        f"SELECT count(*) {both} WHERE (o.score, o.kind, o.count) IS DISTINCT FROM (n.score, n.kind, n.count)"
    ).fetchone()
    assert (found.rows, found.different, found.same) == (ROWS, different, ROWS - different)
    assert found.changed == pytest.approx(different / ROWS)
    for name in ("score", "kind", "count"):
        each = found.columns[name]
        (changed,) = query.execute(
            f"SELECT count(*) {both} WHERE o.{name} IS DISTINCT FROM n.{name}"
        ).fetchone()
        assert (each["changed"], each["share"]) == (changed, changed / ROWS) and changed
    for name, error in (("score", 2e-3), ("count", 2e-3)):
        least, median, most = query.execute(
            f"SELECT min(n.{name} - o.{name}), quantile_disc(n.{name} - o.{name}, 0.5), max(n.{name} - o.{name}) "
            f"{both} WHERE o.{name} <> n.{name}"
        ).fetchone()
        by = found.columns[name]["difference"]
        assert (by["least"], by["most"]) == (least, most)
        assert by["q50"] == pytest.approx(median, rel=error)
    (apart,) = query.execute(
        "SELECT max(abs(a - b)) FROM (SELECT (SELECT avg((score <= v)::INT) FROM o) AS a, "
        "(SELECT avg((score <= v)::INT) FROM n) AS b FROM (SELECT score AS v FROM n UNION SELECT score FROM o))"
    ).fetchone()
    assert found.columns["score"]["ks"] == pytest.approx(apart, abs=2e-3)
    cells = query.execute(f"SELECT o.kind, n.kind, count(*) {both} GROUP BY ALL").fetchall()
    classes = found.columns["kind"]["classes"]
    assert {
        (a, b, count)
        for a, row in zip(classes["labels"], classes["matrix"], strict=True)
        for b, count in zip(classes["labels"], row, strict=True)
        if count
    } == set(cells)
    worst = query.execute(f"SELECT id {both} ORDER BY abs(n.score - o.score) DESC, id LIMIT 3").fetchall()
    listed = [row["inputs"]["id"] if on is None else None for row in found.columns["score"]["worst"]]
    assert on is not None or listed == [each for (each,) in worst]


def test_rows_of_one_side_alone_and_columns_of_one_side_alone(
    outputs: tuple[str, str], tmp_path: Path
) -> None:
    old = hr.read_parquet(outputs[0]).filter(expr="id < 20").drop_columns(["kind"])
    new = hr.read_parquet(outputs[1]).filter(expr="id > 4").filter(expr="id < 22").drop_columns(["count"])
    found = hr.compare(old, new, on=["id"])
    assert (found.rows, found.only_old, found.only_new) == (15, 5, 2)
    assert found.left_out == {"old": ["count"], "new": ["kind"]} and list(found.columns) == ["score"]
    assert sorted(row["id"] for row in found.lone["old"]) == [0, 1, 2, 3, 4]
    assert found.changed == pytest.approx(1 - found.same / 22)
    table = found.to_arrow()
    assert table.column("column").to_pylist() == ["score"] and table.column("rows").to_pylist() == [15]
    assert "only in old: count" in str(found) and "7 only" not in str(found)
    assert "only in old" in (html := found._repr_html_()) and "count" in html and "score" in html


def test_what_cannot_be_compared_is_refused_in_words(outputs: tuple[str, str], tmp_path: Path) -> None:
    old, new = outputs
    other = written(tmp_path / "other", yesterday, start=hr.range(ROWS).filter(expr="id > 5"))
    shorter = written(tmp_path / "shorter", yesterday, start=hr.range(ROWS - 1))
    twice = hr.from_items([{"id": 1, "score": 0.5}] * 2)
    lone = hr.from_items([{"id": 1, "score": 0.5}])
    for asked, words in [
        (
            {"new": other},
            r"29,994 rows were made of 30,000\. Say which column or columns tell a row: on='key'",
        ),
        ({"new": shorter}, "made of different inputs"),
        ({"new": lone}, "the new dataset is no output of Headrace"),
        ({"new": twice, "on": "id"}, "has 2 rows of one key: id=1"),
        ({"new": hr.from_items([{"id": "1", "score": 1.0}]), "on": "id"}, "int64 and string"),
        ({"new": new, "on": "idd"}, "no column 'idd'. Did you mean 'id'"),
        ({"new": new, "columns": ["scoer"]}, "Did you mean 'score'"),
        ({"new": new, "label": "scoer"}, "label='scoer'.*Did you mean 'score'"),
        ({"new": new, "on": []}, "takes the name of a column"),
        ({"new": new, "sample": -1}, "sample=-1 is not"),
        ({"new": 3}, "new is int"),
        ({"new": hr.from_items([{"id": 1}]), "on": "id"}, "no column in common but the keys"),
        ({"new": str(tmp_path / "nowhere")}, "nowhere"),
    ]:
        with pytest.raises(hr.errors.HeadraceError, match=words):
            hr.compare(old, **asked)


# ------------------------------------------------------------ by a label


def test_a_column_that_is_there_twice_is_refused_when_it_is_given() -> None:
    twice = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    with pytest.raises(hr.errors.ArgumentError, match="two columns are named 'x'"):
        hr.from_arrow(twice)


def test_times_are_compared_whatever_their_units() -> None:
    """No unit holds both sides of the first row; the second one is the same instant."""
    for zone in (None, "UTC"):
        old = pa.table({"id": [1, 2, 3], "x": pa.array([10**15, 0, -1], pa.timestamp("s", zone))})
        new = pa.table({"id": [1, 2, 3], "x": pa.array([1, 0, -(10**9) + 1], pa.timestamp("ns", zone))})
        found = hr.compare(hr.from_arrow(old), hr.from_arrow(new), on="id").columns["x"]
        assert (found["changed"], {row["inputs"]["id"] for row in found["worst"]}) == (2, {1, 3})


def test_keys_that_cannot_be_joined_are_not_kept_in_records() -> None:
    wide, fine = ([decimal.Decimal(key)] for key in ("1" * 38, "1.5"))
    old = pa.table({"id": pa.array(wide, pa.decimal128(38, 0)), "x": [1]})
    new = pa.table({"id": pa.array(fine, pa.decimal128(38, 20)), "x": [1]})
    with pytest.raises(hr.errors.ArgumentError, match="could not join the rows by id") as refused:
        hr.compare(hr.from_arrow(old), hr.from_arrow(new), on="id")
    assert "\n" not in str(refused.value) and "1" * 38 in refused.value.row


def test_results_are_judged_by_a_label_as_the_papers_say() -> None:
    draw = np.random.default_rng(3)
    truth = draw.integers(0, 2, 400)
    scores = [np.round(truth * 0.3 * k + draw.random(400), 2) for k in (1, 2)]  # with ties
    measure = Measure(["score", "hit"], 0, "truth")
    hits = [np.where(draw.random(400) < share, truth, 1 - truth) for share in (0.7, 0.8)]
    sides = [
        pa.record_batch({"truth": truth, "score": a, "hit": b}) for a, b in zip(scores, hits, strict=True)
    ]
    for start in (0, 150):
        part = measure.empty()
        part.add(*(side.slice(start, 150 if not start else 250) for side in sides), start)
        measure.merge(part)
    found = measure.judged["score"].result()
    assert found is not None
    # DeLong's formula, pair by pair.
    structural = []
    for each in scores:
        wins = (each[truth == 1][:, None] > each[truth == 0]) + 0.5 * (
            each[truth == 1][:, None] == each[truth == 0]
        )
        structural.append((wins.mean(), wins.mean(axis=1), wins.mean(axis=0)))
    (a, up_a, down_a), (b, up_b, down_b) = structural
    error = math.sqrt(np.var(up_b - up_a, ddof=1) / len(up_a) + np.var(down_b - down_a, ddof=1) / len(down_a))
    assert (found["old"]["value"], found["new"]["value"]) == pytest.approx((a, b))
    assert found["difference"]["high"] - found["difference"]["value"] == pytest.approx(
        1.95996 * error, rel=1e-4
    )
    assert found["p"] == pytest.approx(math.erfc(abs(b - a) / error / math.sqrt(2))) and found["significant"]
    right = measure.judged["hit"].result()
    assert right is not None and right["metric"] == "accuracy"
    assert right["new"]["value"] == pytest.approx((hits[1] == truth).mean())
    won, lost = (np.sum((hits[i] == truth) & (hits[1 - i] != truth)) for i in (1, 0))
    assert right["p"] == pytest.approx(math.erfc(abs(won - lost) / math.sqrt(won + lost) / math.sqrt(2)))
    few = Judged()
    few.add(pa.array([1] * 6), pa.array([0] * 6), pa.array([1] * 6), 0)
    assert few.result()["p"] == pytest.approx(2 / 2**6)  # the binomial distribution


def test_the_page_has_changed_texts_side_by_side() -> None:
    long = "word " * 600
    old = [
        {"id": 1, "answer": "The red <wheel>.\nIt turns."},
        {"id": 2, "answer": ""},
        {"id": 3, "answer": long},
    ]
    new = [
        {"id": 1, "answer": "The big <wheel>.\nIt turns."},
        {"id": 2, "answer": "x"},
        {"id": 3, "answer": "no"},
    ]
    page = hr.compare(hr.from_items(old), hr.from_items(new), on="id").report
    assert '<span class="text">The<mark> red</mark> &lt;wheel&gt;.\nIt turns.</span>' in page
    assert '<span class="text">The<mark> big</mark> &lt;wheel&gt;.\nIt turns.</span>' in page
    assert '<span class="text"><mark>(empty)</mark></span>' in page and "… (3,000 characters)" in page

"""Joins, sorts, groups and splits against pandas, on odd values; and that rows are carried as they are."""

from __future__ import annotations

import datetime
import decimal
import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import headrace as hr
from crossed import few
from headrace import aggregate as agg
from headrace.errors import ArgumentError, UnknownColumn
from headrace.testing import failpoints

pd = pytest.importorskip("pandas")
pytest.importorskip("duckdb")

SCHEMA = pa.schema(
    [
        ("i", pa.int64()),
        ("f", pa.float64()),
        ("s", pa.string()),
        ("t", pa.timestamp("us")),
        ("z", pa.timestamp("us", "Europe/Rome")),
        ("d", pa.decimal128(12, 2)),
        ("b", pa.bool_()),
        ("l", pa.list_(pa.int32())),
        ("a", pa.list_(pa.float32(), 2)),
        ("n", pa.struct([("x", pa.int8()), ("y", pa.string())])),
    ]
)
small = st.integers(-2, 2)
moments = st.sampled_from([datetime.datetime(2026, 1, 1), datetime.datetime(1969, 12, 31, 23, 59, 59, 1)])
row = st.fixed_dictionaries(
    {
        "i": small | st.sampled_from([2**63 - 1, -(2**63)]) | st.none(),
        "f": st.sampled_from([0.0, -0.0, 1.5, math.nan, math.inf, -math.inf]) | st.none(),
        "s": st.sampled_from(["", "a", "é", "'\"; --", "Z"]) | st.none(),
        "t": moments | st.none(),
        "z": moments | st.none(),
        "d": st.decimals(-9, 9, places=2) | st.none(),
        "b": st.booleans() | st.none(),
        "l": st.lists(small | st.none(), max_size=2) | st.none(),
        "a": st.lists(st.floats(width=32, allow_nan=False), min_size=2, max_size=2),
        "n": st.fixed_dictionaries({"x": small, "y": st.sampled_from(["", None])}) | st.none(),
    }
)
rows_of = st.lists(row, max_size=9)
KEYS = ["i", "f", "s", "t", "z", "d", "b"]
quick = settings(
    max_examples=few(4),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[
        Phase.explicit,
        Phase.reuse,
        Phase.generate,
    ],  # an example is several queries: to shrink one takes minutes
)


def data(rows: list[dict[str, Any]], schema: pa.Schema = SCHEMA) -> Any:
    table = pa.Table.from_pylist(rows, schema=schema)
    return hr.from_arrow(table).with_options(engine="inline", progress=False), table


def plain(value: Any) -> Any:
    """Something that compares: NaN is itself, and there is one zero."""
    if isinstance(value, (list, tuple, np.ndarray)):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return tuple((key, plain(each)) for key, each in value.items())
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def texts(rows: Any) -> list[str]:
    return [repr(plain(each)) for each in rows]


def rank(value: Any) -> Any:
    """As sort has it: numbers, then NaN, then null."""
    if value is None:
        return (2, 0)
    return (1, 0) if isinstance(value, float) and math.isnan(value) else (0, value)


@quick
@given(rows_of, st.permutations(KEYS), st.booleans(), st.booleans())
def test_sort(rows: Any, keys: list[str], down: bool, down_too: bool) -> None:
    dataset, table = data(rows)
    one, other = keys[:2]
    expected = table.to_pylist()
    for key, reverse in ((other, down_too), (one, down)):  # a stable sort by the last key, then by the first
        there = [each for each in expected if rank(each[key])[0] == 0]
        there.sort(key=lambda each: each[key], reverse=reverse)
        expected = there + sorted(
            (each for each in expected if rank(each[key])[0]), key=lambda each: rank(each[key])[0]
        )
    found = dataset.sort([one, other], descending=[down, down_too])
    assert found.schema() == SCHEMA
    assert texts(found.to_arrow().to_pylist()) == texts(expected)


@quick
@given(rows_of, st.lists(st.sampled_from(KEYS), min_size=1, max_size=2, unique=True))
def test_groups(rows: Any, keys: list[str]) -> None:
    dataset, table = data(rows)
    groups: dict[Any, list[dict[str, Any]]] = {}
    for each in sorted(table.to_pylist(), key=lambda each: [rank(each[key]) for key in keys]):
        groups.setdefault(tuple(plain(each[key]) for key in keys), []).append(each)
    found = dataset.groupby(keys).aggregate(
        agg.Count(), agg.Count("f", ignore_nulls=True), agg.Min("s"), agg.Max("t"), agg.Sum("d"), agg.Max("f"),
        agg.Mean("b"), agg.Std("i", ddof=0), agg.AsList("n"), agg.Unique("s"),
        agg.CountDistinct("s", ignore_nulls=True), agg.Min("d", ignore_nulls=False),
    ).to_arrow()  # fmt: skip
    assert [plain(tuple(each[key] for key in keys)) for each in found.to_pylist()] == list(groups)
    for line, group in zip(found.to_pylist(), groups.values(), strict=True):

        def values(name: str, group: Any = group) -> list[Any]:
            return [each[name] for each in group if each[name] is not None]

        assert line["count()"] == len(group) and line["count(f)"] == len(values("f"))
        assert line["min(s)"] == min(values("s"), default=None)
        assert line["max(t)"] == max(values("t"), default=None)
        assert line["sum(d)"] == (sum(values("d")) if values("d") else None)
        numbers = [each for each in values("f") if not math.isnan(each)]
        assert plain(line["max(f)"]) == plain(max(numbers, default=max(values("f"), default=None)))
        assert line["mean(b)"] == (np.mean(values("b")) if values("b") else None)
        exact = [float(each) for each in values("i")]
        assert line["std(i)"] == (pytest.approx(np.std(exact), rel=1e-9) if exact else None)
        assert texts(line["list(n)"]) == texts(each["n"] for each in group)
        assert (
            line["count_distinct(s)"]
            == len({*values("s")})
            == len([s for s in line["unique(s)"] if s is not None])
        )
        assert line["min(d)"] == (min(values("d")) if len(values("d")) == len(group) else None)


@quick
@given(rows_of, st.sampled_from(KEYS), st.sampled_from(["numpy", "pandas", "pyarrow"]))
def test_map_groups_gets_each_row_once_and_groups_whole(rows: Any, key: str, batch_format: Any) -> None:
    dataset, table = data(rows)
    seen = dataset.groupby(key).map_groups(lambda group: group, batch_format=batch_format)
    expected = sorted(table.to_pylist(), key=lambda each: rank(each[key]))
    if not expected:
        assert seen.count() == 0
    elif batch_format == "pyarrow":
        found = seen.to_arrow()
        assert found.schema.equals(SCHEMA)
        assert texts(found.to_pylist()) == texts(expected)
    else:
        assert seen.count() == len(expected)


@quick
@given(rows_of, rows_of, st.sampled_from([k for k in KEYS if k != "f"]))
def test_joins(left: Any, right: Any, key: str) -> None:
    one, table = data(left)
    schema = pa.schema([(key, SCHEMA.field(key).type), ("other", pa.int64())])
    two, other = data([{key: each[key], "other": at} for at, each in enumerate(right)], schema)
    theirs = other.to_pylist()
    pairs = [(a, b) for a in table.to_pylist() for b in theirs if a[key] is not None and a[key] == b[key]]
    both = [{**a, "other": b["other"]} for a, b in pairs]
    alone = [a for a in table.to_pylist() if a[key] is None or a[key] not in [b[key] for b in theirs]]
    matched = {b["other"] for _, b in pairs}
    nulls = dict.fromkeys(SCHEMA.names)
    rest = [{**nulls, **b} for b in theirs if b["other"] not in matched]
    cases = {
        "inner": both,
        "left_outer": [*both, *({**a, "other": None} for a in alone)],
        "right": [*both, *rest],
        "full_outer": [*both, *({**a, "other": None} for a in alone), *rest],
        "left_semi": [a for a in table.to_pylist() if repr(a) not in map(repr, alone)],
        "anti": alone,
        "right_anti": [b for b in theirs if b["other"] not in matched],
        "right_semi": [b for b in theirs if b["other"] in matched],
    }
    for how, expected in cases.items():
        found = one.join(two, on=key, how=how)
        assert sorted(texts(found.to_arrow().to_pylist())) == sorted(texts(expected)), how
        if how == "inner":
            assert found.schema() == SCHEMA.append(pa.field("other", pa.int64()))


@quick
@given(rows_of, st.permutations(KEYS), st.integers(1, 2))
def test_duplicates_and_the_biggest(rows: Any, names: list[str], count: int) -> None:
    dataset, table = data(rows)
    by, *keys = names[: count + 1]
    first: dict[Any, Any] = {}
    last: dict[Any, Any] = {}
    counts: dict[Any, int] = {}
    for number, each in enumerate(table.to_pylist()):
        key = plain(tuple(each[name] for name in keys))
        first.setdefault(key, number)
        last[key] = number
        counts[key] = counts.get(key, 0) + 1
    for keep, chosen in (
        ("first", first.values()),
        ("last", last.values()),
        (False, [first[key] for key in first if counts[key] == 1]),
    ):
        found = dataset.drop_duplicates(keys, keep=keep).to_arrow().to_pylist()
        assert texts(found) == texts(table.to_pylist()[at] for at in sorted(chosen)), keep
    ordered = dataset.sort([*keys, by], descending=[*[False] * len(keys), True]).to_arrow().to_pylist()
    taken: dict[Any, int] = {}
    expected = []
    for each in ordered:
        key = plain(tuple(each[name] for name in keys))
        taken[key] = taken.get(key, 0) + 1
        expected += [each] if taken[key] <= 2 else []
    for most in (100_000, 0):  # few groups, and many
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.annex.queries.texts._AT_ONCE", most)
            biggest = dataset.top_k(2, by=by, per=keys)
        assert texts(biggest.to_arrow().to_pylist()) == texts(expected), most
    assert texts(dataset.top_k(3, by=by).take_all()) == texts(dataset.sort(by, descending=True).take(3))


@quick
@given(rows_of, st.sampled_from(KEYS))
def test_unique_zip_repartition_and_quantiles(rows: Any, key: str) -> None:
    dataset, table = data(rows)
    given_rows = table.to_pylist()
    different = {plain(each[key]): None for each in given_rows}
    assert [plain(each) for each in dataset.unique(key)] == list(different)
    beside = dataset.zip(dataset.select_columns([key]).rename_columns({key: "beside"})).to_arrow().to_pylist()
    assert texts(beside) == texts({**each, "beside": each[key]} for each in given_rows)
    moved = dataset.repartition(3, keys=key).to_arrow().to_pylist()
    assert sorted(texts(moved)) == sorted(texts(given_rows))
    assert len([*itertools.groupby(plain(each[key]) for each in moved)]) == len(different)
    floats = [each["f"] for each in given_rows if each["f"] is not None]
    found = dataset.aggregate(agg.Quantile("f", q=0.3), agg.AbsMax("d"), agg.Sum("b"))
    if all(map(math.isfinite, floats)):
        expected = pd.Series(floats, dtype=float).quantile(0.3) if floats else None
        assert found["quantile(f)"] == (pytest.approx(expected) if floats else None)
    else:
        assert math.isnan(found["quantile(f)"])
    amounts = [abs(each["d"]) for each in given_rows if each["d"] is not None]
    assert found["abs_max(d)"] == max(amounts, default=None)
    assert (found["sum(b)"] or 0) == sum(each["b"] or 0 for each in given_rows)


def numbers(count: int = 100) -> Any:
    return hr.range(count).with_options(engine="inline", progress=False)


def test_a_seed_means_the_same_rows_for_ever(tmp_path: Any) -> None:
    ids = [each["id"] for each in numbers().random_shuffle(seed=3).take_all()]
    assert ids[:8] == [12, 66, 78, 87, 24, 34, 86, 57] and sorted(ids) == list(range(100))
    numbers().write_parquet(tmp_path / "cut", max_rows_per_file=7)
    again = hr.read_parquet(tmp_path / "cut").with_options(engine="inline", progress=False)
    assert [each["id"] for each in again.random_shuffle(seed=3).take_all()] == ids
    assert [each["id"] for each in numbers().random_shuffle().take_all()] != ids
    assert [each["id"] for each in numbers().repartition(4, shuffle=True).take_all()] != list(range(100))


def test_splits_by_number() -> None:
    def counts(parts: Any) -> list[int]:
        assert [each["id"] for part in parts for each in part.take_all()] == list(
            range(sum(p.count() for p in parts))
        )
        return [part.count() for part in parts]

    assert counts(numbers(10).split(3)) == [3, 3, 4]
    assert counts(numbers(10).split(3, equal=True)) == [3, 3, 3]
    assert counts(numbers(10).split(1)) == [10]
    assert counts(numbers(10).split_at_indices([0, 4, 4, 20])) == [0, 4, 0, 6, 0]
    assert counts(numbers(10).split_proportionately([0.2, 0.5])) == [2, 5, 3]
    assert counts(numbers(10).split_proportionately([0.1, 0.2, 0.4])) == [1, 2, 4, 3]


@pytest.mark.parametrize(("size", "test"), [(0.25, 25), (30, 30)])
def test_train_and_test(size: Any, test: int) -> None:
    rows = numbers().with_column("odd", lambda batch: batch["id"] % 4 == 0)
    one, other = rows.train_test_split(size, seed=2, stratify="odd")
    assert sorted(each["id"] for each in [*one.take_all(), *other.take_all()]) == list(range(100))
    share = other.groupby("odd").count().take_all()
    assert [each["count()"] for each in share] in ([[19, 6], [18, 7]] if test == 25 else [[22, 8], [23, 7]])
    assert other.take_all() == rows.train_test_split(size, seed=2, stratify="odd")[1].take_all()
    assert rows.train_test_split(30, seed=2)[1].count() == 30


def test_what_is_wrong_is_said_before_anything_runs() -> None:
    rows, _ = data([])
    cases: list[tuple[Any, type[Exception], str]] = [
        (lambda: rows.sort("ii"), UnknownColumn, "sort.*'ii'"),
        (lambda: rows.sort(["i", "f"], descending=[True]), ArgumentError, "one for each"),
        (lambda: rows.join(rows, on="i", how="lefft"), ArgumentError, "Did you mean 'left'"),
        (lambda: rows.join(rows, on="i"), ArgumentError, "both datasets have a column 'f'.*right_suffix"),
        (lambda: rows.join(rows, on="i", right_on="s"), ArgumentError, "'i' is int64 here and 's' is string"),
        (lambda: rows.join(rows, on="i", right_on="f"), ArgumentError, "would have to change"),
        (lambda: rows.join(rows, on=["i", "f"], right_on="i"), ArgumentError, "2 columns"),
        (lambda: rows.join(rows), ArgumentError, "on= names"),
        (lambda: rows.join([], on="i"), ArgumentError, "another dataset"),
        (lambda: rows.groupby("x"), UnknownColumn, "groupby"),
        (lambda: rows.groupby("i").sum("s"), ArgumentError, "takes numbers, and column 's' is string"),
        (lambda: rows.groupby("i").aggregate("sum"), ArgumentError, "Did you mean 'Sum'"),
        (lambda: rows.groupby("l").map_groups(len), ArgumentError, "one value in each row"),
        (lambda: rows.top_k(0, by="i"), ArgumentError, "1 or more"),
        (lambda: rows.drop_duplicates("i", keep="lst"), ArgumentError, "Did you mean 'last'"),
        (lambda: rows.split_proportionately([0.5, 0.5]), ArgumentError, "less than 1"),
        (lambda: rows.random_shuffle(seed=0.5), ArgumentError, "whole number"),
        (lambda: rows.train_test_split(0.2, stratify="x"), UnknownColumn, "stratify"),
        (lambda: agg.Quantile("f", q=2), ArgumentError, "from 0 to 1"),
        (lambda: agg.Sum(), ArgumentError, "needs the name"),
        (
            lambda: rows.rename_columns({"i": "_ROW"}).sort("f"),
            ArgumentError,
            "a name that is used here to number rows",
        ),
    ]
    for call, kind, words in cases:
        with pytest.raises(kind, match=words) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_sums_that_do_not_fit_end_the_run() -> None:
    rows, _ = data([{"i": 2**63 - 1}, {"i": 1}], pa.schema([("i", pa.int64())]))
    with pytest.raises(hr.errors.HeadraceError, match="sum"):
        rows.groupby(None).sum("i").take_all()
    whole = pa.table({"d": [decimal.Decimal("0.10")] * 3, "u": pa.array([2**63, 2**62, 1], pa.uint64())})
    found = hr.from_arrow(whole).with_options(engine="inline", progress=False).groupby(None).sum().take_all()
    assert found == [{"sum(d)": decimal.Decimal("0.30"), "sum(u)": 2**63 + 2**62 + 1}]


def test_columns_that_nobody_counts_may_be_of_any_type() -> None:
    table = pa.table({"k": [1, 1, 2], "x": [1.0, None, 3.0], "d": pa.array([1, 2, 3], pa.duration("s"))})
    rows = hr.from_arrow(table).with_options(engine="inline", progress=False)
    assert rows.groupby("k").mean("x").take_all() == [{"k": 1, "mean(x)": 1.0}, {"k": 2, "mean(x)": 3.0}]
    with pytest.raises(hr.errors.PlanError, match=r"'d' .*duration.*drop_columns"):
        rows.sort("k")


def test_groups_of_many_batches_stay_whole(tmp_path: Any) -> None:
    """One group is longer than what is read at a time, and others end at the borders."""
    keys = np.repeat([3, 1, 2, 1], [200_000, 65_536, 1, 7])
    table = pa.table({"k": keys, "at": np.arange(len(keys)), "p": np.ones((len(keys), 1)).tolist()})
    table = table.set_column(
        2, "p", pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(2.0 * len(keys)).reshape(-1, 2))
    )
    rows = hr.from_arrow(table).with_options(progress=False, workers=2)
    made = rows.groupby("k").map_groups(
        lambda group: {
            "k": group["k"][:1],
            "rows": [len(group["at"])],
            "ordered": [bool((np.diff(group["at"]) > 0).all())],
            "shape": [str(group["p"].shape)],
        }
    )
    result = made.write_parquet(tmp_path / "out")
    assert result.rows == 3
    assert hr.read_parquet(tmp_path / "out").take_all() == [
        {"k": 1, "rows": 65_543, "ordered": True, "shape": "(65543, 2)"},
        {"k": 2, "rows": 1, "ordered": True, "shape": "(1, 2)"},
        {"k": 3, "rows": 200_000, "ordered": True, "shape": "(200000, 2)"},
    ]


def test_groups_go_on_where_a_run_was_cut_short(tmp_path: Any) -> None:
    numbers(4000).with_column("k", lambda batch: batch["id"] % 80).write_parquet(tmp_path / "in")
    rows = hr.read_parquet(tmp_path / "in").with_options(engine="inline", progress=False, shard_rows=16)
    made = rows.groupby("k").map_groups(
        lambda group: {"k": group["k"][:1], "rows": [len(group["id"])], "sum": [group["id"].sum()]}
    )
    with failpoints({"journal.sync": "ENOSPC@3"}), pytest.raises(hr.errors.OutputWriteFailed):
        made.write_parquet(tmp_path / "out")
    result = made.write_parquet(tmp_path / "out")
    assert result.resumed and result.rows == 80
    assert hr.read_parquet(tmp_path / "out").sort("k").take_all() == [
        {"k": k, "rows": 50, "sum": sum(range(k, 4000, 80))} for k in range(80)
    ]


def test_a_group_that_fails_is_one_rejected_row(tmp_path: Any) -> None:
    schema = pa.schema([("i", pa.int64()), ("s", pa.string())])
    rows, _ = data([{"i": 1, "s": "a"}, {"i": 2, "s": "b"}, {"i": 1, "s": "c"}], schema)
    made = (
        rows.with_options(on_error="reject")
        .groupby("i")
        .map_groups(lambda group: {"s": group["s"][1:2], "there": [group["s"][1]]})
    )
    assert made.write_parquet(tmp_path / "out").rejected == 1
    (lost,) = hr.read_rejected(tmp_path / "out").take_all()
    assert lost["i"] == [2] and lost["s"] == ["b"]


def test_columns_behind_a_query_are_found_from_few_of_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace.annex.queries.duckdb import DuckDB

    rows, answer = [], DuckDB.answer
    monkeypatch.setattr(DuckDB, "answer", lambda *given: rows.append(answer(*given)) or rows[-1])
    joined = hr.range(5_000).join(hr.range(5_000), on="id")
    steps = joined.map_batches(lambda batch: {**batch, "odd": batch["id"] % 2})
    assert steps.columns() == ["id", "odd"]
    assert steps.top_k(1, by="id", per="odd").take_all() == [{"id": 4_998, "odd": 0}, {"id": 4_999, "odd": 1}]
    assert [each.rows for each in rows] == [1_000, 5_000, 2]
    none = joined.filter(lambda row: row["id"] == 4_999).map_batches(lambda batch: {"to": batch["id"]})
    assert none.schema() == pa.schema([("to", pa.int64())])

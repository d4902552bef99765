"""What users of Ray Data see of groups, joins, sorts and splits, case by case, with the import changed.

``DIFFERENT`` are the cases that do not hold here, with what is said or done instead.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headrace.compat import ray
from headrace.compat.ray.data.aggregate import (
    AbsMax,
    AsList,
    Count,
    CountDistinct,
    Max,
    Mean,
    Min,
    Quantile,
    Std,
    Sum,
    Unique,
)
from headrace.errors import ArgumentError, HeadraceError

pd = pytest.importorskip("pandas")
data = ray.data
pytest.importorskip("duckdb")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_ENGINE", "inline")
    monkeypatch.setenv("HEADRACE_PROGRESS", "0")


def thirds(extra: Any = ()) -> Any:
    return data.from_items([{"A": x % 3, "B": x} for x in range(30)] + list(extra))


def values(ds: Any, name: str = "id") -> list[Any]:
    return [each[name] for each in ds.take_all()]


def doubles(count: int = 8) -> Any:
    return data.range(count).map(lambda row: {"id": row["id"], "double": int(row["id"]) * 2})


def squares(count: int = 8, first: int = 0) -> Any:
    return data.range(count).map(lambda row: {"id": row["id"] + first, "square": int(row["id"]) ** 2})


def joined(how: str, one: Any = None, other: Any = None, **options: Any) -> list[int]:
    made = (one or doubles()).join(
        other or squares(4, 6), join_type=how, num_partitions=4, on=("id",), **options
    )
    return sorted(values(made))


def refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except (ValueError, HeadraceError):
        return True
    return False


def every_number(frame: Any, ignore_nulls: bool = True) -> bool:
    """All aggregates of a frame, by A, are those of pandas."""
    aggs = (Count, CountDistinct, Sum, Min, Max, AbsMax, Mean, Std, Quantile)
    found = data.from_pandas(frame).groupby("A").aggregate(*(a("B", ignore_nulls=ignore_nulls) for a in aggs))
    group = frame.groupby("A", dropna=False)["B"]
    skip = {"skipna": ignore_nulls}
    expected = pd.DataFrame(
        {
            "count(B)": group.count() if ignore_nulls else group.size(),
            "count_distinct(B)": group.nunique(dropna=ignore_nulls),
            "sum(B)": group.apply(lambda s: s.sum(**skip)),
            "min(B)": group.apply(lambda s: s.min(**skip)),
            "max(B)": group.apply(lambda s: s.max(**skip)),
            "abs_max(B)": group.apply(lambda s: s.abs().max(**skip)),
            "mean(B)": group.apply(lambda s: s.mean(**skip)),
            "std(B)": group.apply(lambda s: s.std(**skip)),
            "quantile(B)": group.apply(lambda s: s.quantile() if ignore_nulls or not s.hasnans else math.nan),
        }
    ).reset_index()
    pd.testing.assert_frame_equal(found.to_pandas(), expected, check_dtype=False)
    return True


def normalized(group: Any) -> Any:
    return {"A": group["A"], "B": group["B"] / group["B"].sum()}


class Plus:
    def __init__(self, more: int, also: int = 0) -> None:
        self.more = more + also

    def __call__(self, batch: Any, times: int, plus: int = 0) -> Any:
        return {"x": batch["B"][:1] * times + self.more + plus}


def twice(frame: Any) -> Any:
    yield {"B": frame["B"] * 2}
    yield {"B": frame["B"] * 3}


@data.expressions.udf()
def most(values: Any) -> Any:
    return pa.repeat(pc.max(values), len(values))


def doubled(group: Any) -> Any:
    group["B"] *= 2
    return group


def counted(group: Any, more: int = 0) -> Any:
    return {"n": [len(group["B"]) + more]}


NAN = [1.0, 1.0, 2.0, math.nan, math.nan]
holes = pd.DataFrame({"A": [0, 1, 2, 0, 1, None, None], "B": [0, 1, 2, None, 4, None, 6]})
frame = pd.DataFrame({"A": [x % 3 for x in range(-10, 10)], "B": range(-10, 10)})

CASES: dict[str, Callable[[], Any]] = {
    # groups
    "the text of groups": lambda: (
        repr(thirds().groupby("A")).startswith("GroupedData(dataset=")
        and repr(thirds().groupby("A")).endswith(", key='A')")
    ),
    "groups of no rows": lambda: (
        data.range(9).filter(lambda r: r["id"] > 10).groupby("id").count().count() == 0
    ),
    "one group: min": lambda: data.range(10).groupby(None).min().take_all() == [{"min(id)": 0}],
    "one group: max": lambda: data.range(10).groupby(None).max().take_all() == [{"max(id)": 9}],
    "a function is no key": lambda: refused(lambda: data.range(9).groupby(lambda x: x % 2).count().show()),
    "an unknown key": lambda: refused(lambda: data.range(9).groupby("foo").count().show()),
    "count by key": lambda: (
        thirds().groupby("A").count().take_all() == [{"A": a, "count()": 10} for a in range(3)]
    ),
    "count by two keys": lambda: (
        data.from_items([{"A": x % 2, "B": x % 3} for x in range(100)]).groupby(["A", "B"]).count().take_all()
        == [
            {"A": a, "B": b, "count()": n}
            for a, b, n in ((0, 0, 17), (0, 1, 16), (0, 2, 17), (1, 0, 17), (1, 1, 17), (1, 2, 16))
        ]
    ),
    "sum by key": lambda: values(thirds().groupby("A").sum("B"), "sum(B)") == [135, 145, 155],
    "sum leaves nulls out": lambda: (
        values(thirds([{"A": 0, "B": None}]).groupby("A").sum("B"), "sum(B)") == [135, 145, 155]
    ),
    "sum with nulls": lambda: (
        values(thirds([{"A": 0, "B": None}]).groupby("A").sum("B", ignore_nulls=False), "sum(B)")
        == [None, 145, 155]
    ),
    "sum of nulls alone": lambda: (
        values(data.from_items([{"A": x % 3, "B": None} for x in range(9)]).groupby("A").sum("B"), "sum(B)")
        == [None] * 3
    ),
    "NaN is one group": lambda: (
        [
            each["count()"]
            for each in data.from_items(NAN).groupby("item").count().take_all()
            if math.isnan(each["item"])
        ]
        == [2]
    ),
    "all numbers at once": lambda: every_number(frame),
    "all numbers with holes": lambda: every_number(holes),
    "all numbers, nulls not ignored": lambda: every_number(holes, ignore_nulls=False),
    "different values": lambda: (
        values(data.from_pandas(frame).groupby("A").aggregate(Unique("B")), "unique(B)")
        == [sorted({*frame.groupby("A").get_group(a).B}) for a in range(3)]
    ),
    "values as a list": lambda: (
        values(thirds().groupby("A").aggregate(AsList("B")), "list(B)")
        == [list(range(a, 30, 3)) for a in range(3)]
    ),
    "values as a list, without nulls": lambda: (
        values(
            thirds([{"A": 0, "B": None}]).groupby("A").aggregate(AsList("B", ignore_nulls=True)), "list(B)"
        )[0]
        == list(range(0, 30, 3))
    ),
    "names of one's own": lambda: (
        thirds().groupby("A").aggregate(Sum("B", alias_name="b")).columns() == ["A", "b"]
    ),
    "the same twice": lambda: (
        thirds().groupby("A").aggregate(Sum("B"), Sum("B")).columns() == ["A", "sum(B)", "sum(B)_2"]
    ),
    "numbers of all rows": lambda: (
        data.from_pandas(frame[["B"]]).aggregate(
            Sum("B"), Min("B"), Max("B"), Mean("B"), Std("B"), Quantile("B")
        )
        == pytest.approx(
            {f"{n}(B)": getattr(frame.B, n)() for n in ("sum", "min", "max", "mean", "std", "quantile")}
        )
    ),
    "one number of all rows": lambda: (
        (thirds().sum("B"), thirds().std("B")) == (435, pytest.approx(8.8034084))
    ),
    "no rows: no sum": lambda: data.range(9).filter(lambda r: r["id"] > 10).sum("id") is None,
    "no rows: no numbers": lambda: (
        data.range(9).filter(lambda r: r["id"] > 10).aggregate(Sum("id"), Count())
        == {"sum(id)": None, "count()": 0}
    ),
    "unique": lambda: sorted(data.from_items([3, 1, 3, 2]).unique("item")) == [1, 2, 3],
    # functions of groups
    "map one group": lambda: (
        values(
            data.range(100)
            .groupby(None)
            .map_groups(lambda x: {"out": np.array([min(x["id"]) + max(x["id"])])}),
            "out",
        )
        == [99]
    ),
    "map arrays": lambda: (
        values(thirds().groupby("A").map_groups(lambda g: {"B": g["B"] + 1}), "B")
        == [b + 1 for a in range(3) for b in range(a, 30, 3)]
    ),
    "map frames": lambda: (
        sum(values(thirds().groupby("A").map_groups(normalized, batch_format="pandas"), "B"))
        == pytest.approx(3)
    ),
    "map tables": lambda: (
        thirds().groupby("A").map_groups(lambda t: t.select(["B"]), batch_format="pyarrow").schema().names
        == ["B"]
    ),
    "map to lists": lambda: (
        values(thirds().groupby("A").map_groups(lambda g: {"a": [g["A"][0]], "out": [min(g["B"])]}), "out")
        == [0, 1, 2]
    ),
    "map by two keys": lambda: (
        values(
            data.from_items([{"A": x % 2, "B": x % 3} for x in range(100)])
            .groupby(["A", "B"])
            .map_groups(counted),
            "n",
        )
        == [17, 16, 17, 17, 17, 16]
    ),
    "map by two keys with NaN": lambda: (
        values(
            data.from_items([{"A": x % 2, "B": x % 3} for x in [0.0, 1.0, 2.0, math.nan, math.nan]])
            .groupby(["A", "B"])
            .map_groups(counted),
            "n",
        )
        == [1, 1, 1, 2]
    ),
    "map with arguments": lambda: (
        values(thirds().groupby("A").map_groups(counted, fn_kwargs={"more": 5}), "n") == [15] * 3
    ),
    "map with a class": lambda: (
        values(
            thirds()
            .groupby("A")
            .map_groups(
                Plus,
                concurrency=1,
                fn_constructor_args=[1],
                fn_constructor_kwargs={"also": 2},
                fn_args=[10],
                fn_kwargs={"plus": 3},
            ),
            "x",
        )
        == [6, 16, 26]
    ),
    "map with a partial": lambda: (
        values(thirds().groupby("A").map_groups(functools.partial(counted, more=1)), "n") == [11] * 3
    ),
    "map with a generator": lambda: sum(values(thirds().groupby("A").map_groups(twice), "B")) == 435 * 5,
    "map, then batches, then groups": lambda: (
        values(
            thirds()
            .groupby("A")
            .map_groups(lambda g: g)
            .map_batches(lambda b: b, batch_format="pandas")
            .groupby("A")
            .max("B"),
            "max(B)",
        )
        == [27, 28, 29]
    ),
    "a function that writes to its batch": lambda: (
        sum(values(thirds().groupby("A").map_groups(doubled), "B")) == 870
    ),
    # joins
    "inner": lambda: joined("inner") == [6, 7],
    "left_outer": lambda: joined("left_outer") == [*range(8)],
    "right_outer": lambda: joined("right_outer") == [6, 7, 8, 9],
    "full_outer": lambda: joined("full_outer") == [*range(10)],
    "left_semi": lambda: joined("left_semi") == [6, 7],
    "right_semi": lambda: joined("right_semi") == [6, 7],
    "left_anti": lambda: joined("left_anti") == [*range(6)],
    "right_anti": lambda: joined("right_anti") == [8, 9],
    "nothing to join": lambda: (
        joined("left_anti", other=squares(8)) == [] and joined("inner", other=squares(8, 50)) == []
    ),
    "its own rows": lambda: (
        doubles().join(doubles(), "inner", 4, on=("id",), left_suffix="_l", right_suffix="_r").columns()
        == ["id", "double_l", "double_r"]
    ),
    "its own rows without a suffix": lambda: refused(
        lambda: doubles().join(doubles(), "inner", 4, on=("id",))
    ),
    "keys of two types": lambda: refused(
        lambda: doubles().join(data.from_items([{"id": 1.0}]), "inner", 4, on=("id",), validate_schemas=True)
    ),
    "a key that is not there": lambda: refused(lambda: doubles().join(squares(), "inner", 4, on=("idd",))),
    "keys of two names": lambda: (
        len(
            data.from_items([{"id": i, "user": i + 5} for i in range(4)])
            .join(
                data.from_items([{"id": i + 20, "user": i} for i in range(4)]),
                "inner",
                2,
                on=("id",),
                right_on=("user",),
                left_suffix="_l",
                right_suffix="_r",
            )
            .take_all()
        )
        == 4
    ),
    "two keys": lambda: (
        len(
            data.from_items([{"a": i, "b": i % 2} for i in range(8)])
            .join(data.from_items([{"a": i, "b": 0, "c": i} for i in range(8)]), "inner", 2, on=("a", "b"))
            .take_all()
        )
        == 4
    ),
    "lists and tensors beside the key": lambda: (
        data.from_items([{"id": i, "l": [i] * i, "t": np.full((2, 2), i, np.float32)} for i in range(3)])
        .join(data.from_items([{"id": 1}]), "inner", 2, on=("id",))
        .take_all()[0]["t"]
        .tolist()
        == [[1, 1], [1, 1]]
    ),
    "a tensor without a partner": lambda: (
        values(
            data.from_items([{"id": i, "t": np.full((2, 2), i, np.float32)} for i in range(2)]).join(
                data.from_items([{"id": 1}, {"id": 2}]), "right_outer", 2, on=("id",)
            ),
            "t",
        )
        == [[[1, 1], [1, 1]], None]
    ),
    "a filter behind a join": lambda: (
        values(doubles().join(squares(), "inner", 2, on=("id",)).filter(expr="square < 5").sort("id"))
        == [0, 1, 2]
    ),
    # sorts and shuffles
    "sort": lambda: values(thirds().sort("B", descending=True), "B") == [*range(29, -1, -1)],
    "sort by two": lambda: (
        [(r["A"], r["B"]) for r in thirds().sort(["A", "B"], descending=[True, False]).take(2)]
        == [(2, 2), (2, 5)]
    ),
    "sort no rows": lambda: data.range(9).filter(lambda r: r["id"] > 10).sort("id").count() == 0,
    "sort texts": lambda: values(data.from_items(["b", "c", "a"]).sort("item"), "item") == ["a", "b", "c"],
    "sort with nulls": lambda: values(data.from_items([3, None, 1]).sort("item"), "item") == [1, 3, None],
    "sort again": lambda: values(data.range(50).random_shuffle(seed=1).sort("id")) == [*range(50)],
    "shuffle": lambda: (
        sorted(values(data.range(50).random_shuffle(seed=1))) == [*range(50)]
        and values(data.range(50).random_shuffle(seed=1)) != values(data.range(50).random_shuffle(seed=2))
    ),
    "a seed": lambda: (
        values(data.range(50).random_shuffle(seed=1)) == values(data.range(50).random_shuffle(seed=1))
    ),
    "shuffle no rows": lambda: data.range(9).filter(lambda r: r["id"] > 10).random_shuffle().count() == 0,
    "shuffle nothing at all": lambda: data.from_items([]).random_shuffle().take() == [],
    "repartition by keys": lambda: (
        values(thirds().repartition(4, keys=["A"]), "A") == [0] * 10 + [1] * 10 + [2] * 10
    ),
    # splits
    "split": lambda: [part.count() for part in data.range(10).split(2)] == [5, 5],
    "split equally": lambda: [part.count() for part in data.range(10).split(3, equal=True)] == [3, 3, 3],
    "split at": lambda: (
        [values(part) for part in data.range(6).split_at_indices([1, 4])] == [[0], [1, 2, 3], [4, 5]]
    ),
    "split by shares": lambda: (
        [part.count() for part in data.range(10).split_proportionately([0.2, 0.5])] == [2, 5, 3]
    ),
    "shares that make no sense": lambda: refused(lambda: data.range(10).split_proportionately([0.9, 0.2])),
    "train and test by number": lambda: (
        [part.count() for part in data.range(10).train_test_split(3)] == [7, 3]
    ),
    "train and test, stratified": lambda: (
        values(thirds().train_test_split(0.2, stratify="A")[1].groupby("A").count(), "count()") == [2, 2, 2]
    ),
    # what is different
    "a key is needed to sort": lambda: refused(lambda: data.from_items([2, 1]).sort()),
    "a function sorts nothing": lambda: refused(lambda: data.from_items([2, 1]).sort(lambda x: -x["item"])),
    "a number of one's own": lambda: (
        thirds()
        .groupby("A")
        .aggregate(ray.data.aggregate.AggregateFn(init=lambda k: 0, merge=max, name="n"))
        .count()
        == 3
    ),
    "two of one's own, of one name, by two keys": lambda: (
        data.from_items([{"A": 1, "B": 2}, {"A": 1, "B": 2}])
        .groupby(["A", "B"])
        .aggregate(*[ray.data.aggregate.AggregateFn(sum, max, "n", lambda n, row: n + row["B"])] * 2)
        .take_all()
        == [{"A": 1, "B": 2, "n": 7, "n_2": 7}]
    ),
    "the deviation of one value": lambda: (
        math.isnan(data.range(1).std("id")) and data.from_items([]).sort("id").count() == 0
    ),
    "an environment for each worker": lambda: (
        thirds()
        .groupby("A")
        .map_groups(counted, ray_remote_args_fn=lambda: {"runtime_env": {"env_vars": {"X": "1"}}})
        .count()
        == 3
    ),
    "shuffles without a seed differ": lambda: (
        values(data.range(50).random_shuffle()) != values(data.range(50).random_shuffle())
    ),
    "a frame by default": lambda: (
        data.from_pandas(frame).groupby("A").map_groups(lambda g: g.assign(C=1)).count() == 20
    ),
    "an unknown key of no rows": lambda: (
        data.range(9).filter(lambda r: r["id"] > 10).groupby("value").count().count() == 0
    ),
    "a column of a group": lambda: (
        values(thirds().groupby("A").with_column("C", data.expressions.col("B") * 2), "C")[:2] == [0, 6]
        and values(thirds().groupby("A").with_column("C", most(data.expressions.col("B"))), "C")[8:12]
        == [27, 27, 28, 28]
    ),
    "train first, test last": lambda: values(data.range(10).train_test_split(0.2)[1]) == [8, 9],
}
DIFFERENT = {
    "a number of one's own",
    "an environment for each worker",
    "shuffles without a seed differ",
    "an unknown key of no rows",
}


@pytest.mark.parametrize("case", CASES)
def test_a_case(case: str) -> None:
    if case not in DIFFERENT:
        assert CASES[case]()
        return
    try:
        assert not CASES[case]()
    except (HeadraceError, AttributeError) as error:
        assert "\n" not in str(error)


def test_nearly_all_hold() -> None:
    assert len(DIFFERENT) <= len(CASES) / 10
    assert issubclass(ArgumentError, ValueError) and pa.__version__

# The calls are those of ray-project/ray, doc/source/data/aggregations.rst.
import pyarrow.compute as pc

from headrace.compat import ray
from headrace.compat.ray.data.aggregate import (
    AggregateFn,
    AggregateFnV2,
    MissingValuePercentage,
    ValueCounter,
    ZeroPercentage,
)
from headrace.compat.ray.data.block import AggType, Block, BlockAccessor

ds = ray.data.from_items([{"group": n % 2, "value": n} for n in range(10)])
total = AggregateFn(
    init=lambda key: 0,
    accumulate_row=lambda state, row: state + row["value"],
    merge=lambda left, right: left + right,
    finalize=lambda state: float(state),
    name="total",
)
assert ds.aggregate(total) == {"total": 45.0}
groups = ds.groupby("group").aggregate(total).take_all()
assert sorted((row["group"], row["total"]) for row in groups) == [(0, 20.0), (1, 25.0)]


class Spread(AggregateFnV2):
    def __init__(self, on):
        super().__init__(f"spread({on})", lambda: None, on=on, ignore_nulls=True)

    def aggregate_block(self, block):
        column = block[self.get_target_column()]
        return pc.min(column).as_py(), pc.max(column).as_py()

    def combine(self, current, new):
        return min(current[0], new[0]), max(current[1], new[1])

    def finalize(self, state):
        return state[1] - state[0]


assert ds.aggregate(Spread("value")) == {"spread(value)": 9}
spreads = ds.groupby("group").aggregate(Spread("value")).take_all()
assert [row["spread(value)"] for row in spreads] == [8, 8]


class OwnMean(AggregateFnV2):
    def __init__(self, on, ignore_nulls=True):
        super().__init__(f"mean({on})", lambda: [0, 0], on=on, ignore_nulls=ignore_nulls)

    def aggregate_block(self, block: Block) -> AggType:
        accessor = BlockAccessor.for_block(block)
        count = accessor.count(self._target_col_name, self._ignore_nulls)
        if not count:
            return None
        total = accessor.sum(self._target_col_name, self._ignore_nulls)
        return total if total is None else [total, count]

    def combine(self, current_accumulator, new):
        return [current_accumulator[0] + new[0], current_accumulator[1] + new[1]]

    def finalize(self, accumulator):
        return accumulator[0] / accumulator[1]


holes = ray.data.from_items([{"x": 4.0}, {"x": None}, {"x": 0.0}, {"x": 4.0}])
assert ds.aggregate(OwnMean("value")) == {"mean(value)": 4.5}
assert holes.aggregate(OwnMean("x")) == {"mean(x)": 8 / 3}
assert holes.aggregate(OwnMean("x", ignore_nulls=False)) == {"mean(x)": None}
assert holes.aggregate(MissingValuePercentage("x"), ZeroPercentage("x"), ValueCounter("x")) == {
    "missing_pct(x)": 25.0,
    "zero_pct(x)": 1 / 3 * 100,
    "value_counter(x)": {"values": [0.0, 4.0], "counts": [1, 2]},
}

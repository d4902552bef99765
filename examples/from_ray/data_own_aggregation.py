# The calls are those of ray-project/ray, doc/source/data/aggregations.rst.
import pyarrow.compute as pc

from headrace.compat import ray
from headrace.compat.ray.data.aggregate import AggregateFn, AggregateFnV2

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
        super().__init__(f"spread({on})", lambda: None, on=on)

    def aggregate_block(self, block):
        column = block[self.get_target_column()]
        return pc.min(column).as_py(), pc.max(column).as_py()

    def combine(self, current, new):
        return new if current is None else (min(current[0], new[0]), max(current[1], new[1]))

    def finalize(self, state):
        return state[1] - state[0]


assert ds.aggregate(Spread("value")) == {"spread(value)": 9}
spreads = ds.groupby("group").aggregate(Spread("value")).take_all()
assert [row["spread(value)"] for row in spreads] == [8, 8]

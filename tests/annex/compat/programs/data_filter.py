"""Rows chosen by a function, by a class and by words."""

import ray


class Above:
    def __init__(self, limit):
        self.limit = limit

    def __call__(self, row):
        return row["id"] > self.limit


ds = ray.data.range(8)
print(ds.filter(lambda row: row["id"] % 3 == 0).take_all())
print(ds.filter(Above, fn_constructor_args=[5], concurrency=1).take_all())
print(ds.filter(expr="id > 2 and id <= 5").take_all())
print(ds.filter(expr="id in [1, 7]").take_all())
print(ds.filter(lambda row, low: row["id"] >= low, fn_args=[6]).take_all())
print(ds.filter(lambda row: False).count(), ds.filter(lambda row: False).take_all())

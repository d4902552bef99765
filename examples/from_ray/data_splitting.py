# The calls are those of ray-project/ray, doc/source/data/api/dataset.rst.
from headrace.compat import ray

ds = ray.data.range(12)
assert [part.count() for part in ds.split(3, equal=True)] == [4, 4, 4]
assert [part.take_all()[0]["id"] for part in ds.split_at_indices([2, 5])] == [0, 2, 5]
assert [part.count() for part in ds.split_proportionately([0.25, 0.5])] == [3, 6, 3]
train, test = ds.train_test_split(test_size=0.25)
assert train.count() == 9 and [row["id"] for row in test.take_all()] == [9, 10, 11]
train, test = ds.train_test_split(test_size=5, shuffle=True, seed=1)
assert train.count() == 7 and test.count() == 5


@ray.remote
def consume(part):
    return sum(row["id"] for row in part.iter_rows())


assert sum(ray.get([consume.remote(part) for part in ds.split(2)])) == sum(range(12))

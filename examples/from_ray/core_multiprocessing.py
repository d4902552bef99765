# The calls are those of ray-project/ray, doc/source/ray-more-libs/multiprocessing.rst.
from headrace.compat.ray.util.multiprocessing import Pool


def f(index):
    return index * 2


def add(a, b):
    return a + b


pool = Pool(processes=2)
assert list(pool.map(f, range(10))) == [2 * n for n in range(10)]
assert pool.apply(add, (1, 2)) == 3
later = pool.apply_async(add, (3,), {"b": 4})
assert later.get(timeout=20) == 7 and later.ready() and later.successful()
assert pool.starmap(add, [(1, 2), (3, 4)]) == [3, 7]
assert sorted(pool.imap_unordered(f, range(5), chunksize=2)) == [0, 2, 4, 6, 8]
assert list(pool.imap(f, range(3))) == [0, 2, 4]
assert pool.map_async(f, [1, 2]).get() == [2, 4]
pool.close()
pool.join()
with Pool() as another:
    assert another.map(f, [5]) == [10]

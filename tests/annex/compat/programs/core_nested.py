"""Tasks that start tasks, and wait for them."""

import ray


@ray.remote
def fib(n):
    return n if n < 2 else sum(ray.get([fib.remote(n - 1), fib.remote(n - 2)]))


@ray.remote
def deep(n):
    return 0 if n == 0 else 1 + ray.get(deep.remote(n - 1))


@ray.remote
def add(a, b):
    return a + b


@ray.remote
def later(n):
    return [add.remote(i, i) for i in range(n)]


@ray.remote
def chain(n):
    ref = ray.put(0)
    for i in range(n):
        ref = add.remote(ref, i)
    return ray.get(ref)


@ray.remote
def inside(refs):
    return type(refs[0]) is not int and isinstance(refs[0], ray.ObjectRef), sum(ray.get(refs))


@ray.remote
def first_done(refs):
    done, rest = ray.wait(refs, num_returns=1)
    return ray.get(done[0]), len(rest)


@ray.remote
def passed_on(x):
    return ray.put([x, x])


@ray.remote
def closes_over():
    return ray.get(SHARED)["a"]


print("fib", ray.get(fib.remote(9)))
print("deep", ray.get(deep.remote(12)))
print("refs returned", ray.get(ray.get(later.remote(5))))
print("chain", ray.get(chain.remote(6)))
print("refs in a list", ray.get(inside.remote([add.remote(1, 2), ray.put(3)])))
print("wait inside", ray.get(first_done.remote([ray.put(7), add.remote(1, 1)]))[1])
print("put inside", ray.get(ray.get(passed_on.remote(4))))
SHARED = ray.put({"a": 5})
print("closure", ray.get(closes_over.remote()))
print("one ref twice", ray.get(add.remote(*[add.remote(1, 1)] * 2)))
print("same ref again", ray.get(later.remote(1))[0] == ray.get(later.remote(1))[0])


@ray.remote
def same(refs):
    return refs[0] == refs[1], len(set(refs)), refs


ref = ray.put(1)
equal, distinct, back = ray.get(same.remote([ref, ref]))
print("equal refs", equal, distinct, back[0] == ref, hash(back[1]) == hash(ref), back[0].hex() == ref.hex())


@ray.remote
class Accumulator:
    def __init__(self):
        self.refs = []

    def keep(self, refs):
        self.refs += refs

    def total(self):
        return sum(ray.get(self.refs))

    def spawn(self, n):
        return ray.get([add.remote(i, 1) for i in range(n)])


keeper = Accumulator.remote()
for i in range(4):
    ray.get(keeper.keep.remote([add.remote(i, i)]))
print("kept refs", ray.get(keeper.total.remote()))
print("an actor's tasks", ray.get(keeper.spawn.remote(4)))

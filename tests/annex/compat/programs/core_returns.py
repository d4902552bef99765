"""Several results of a call, streams of results, and ways to wait for them."""

import asyncio

import numpy as np
import ray


@ray.remote(num_returns=3)
def three(n):
    return n, n * 2, np.full(3, n)


@ray.remote
def pair():
    return "a", "b"


@ray.remote(num_returns=2)
def two_by_yield():
    yield 1
    yield 2


@ray.remote(num_returns=2)
def wrong():
    return 1, 2, 3


@ray.remote(num_returns=2)
def raises():
    raise ValueError("both")


@ray.remote(num_returns=0)
def nothing():
    return None


@ray.remote
def stream(n):
    for i in range(n):
        yield i * np.ones(2)


@ray.remote
def broken(n):
    for i in range(n):  # noqa: UP028 - Ray sends into what is yielded from
        yield i
    raise KeyError("end")


@ray.remote
def consumer(refs):
    return sum(ray.get(ref) for ref in refs)


@ray.remote
def reads(generator):
    return [float(ray.get(ref).sum()) for ref in generator]


a, b, c = three.remote(4)
print(ray.get([a, b]), ray.get(c).tolist())
left, right = pair.options(num_returns=2).remote()
print(ray.get(right), ray.get(left))
print(ray.get(list(two_by_yield.remote())))
for ref in wrong.remote():
    try:
        ray.get(ref)
    except ValueError as error:
        print("ValueError", "num_returns" in str(error) or "return" in str(error))
for ref in raises.remote():
    try:
        ray.get(ref)
    except ValueError as error:
        print("ValueError", error.cause)
print(nothing.remote())
print(ray.get(pair.remote()))

refs = stream.remote(4)
print(isinstance(refs, ray.ObjectRefGenerator), [ray.get(ref).tolist() for ref in refs])
generator = stream.remote(2)
print(ray.get(next(generator)).tolist(), ray.get(next(generator)).tolist())
try:
    next(generator)
except StopIteration:
    print("StopIteration")
got = []
try:
    for ref in broken.remote(2):
        got.append(ray.get(ref))
except KeyError:
    print(got, "KeyError")
print(ray.get(consumer.remote(list(broken.remote(3))[:3])))
print(ray.get(list(stream.remote(0))))
generator = stream.remote(1)
ready, rest = ray.wait([generator], timeout=30)
print(len(ready), len(rest), ready[0] is generator)


@ray.remote
class Source:
    @ray.method(num_returns=2)
    def pair(self):
        return 1, 2

    def items(self, n):
        for i in range(n):  # noqa: UP028
            yield i

    async def slowly(self, n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i * 10

    def three(self):
        return 1, 2, 3


source = Source.remote()
print(ray.get(source.pair.remote()), ray.get(source.three.options(num_returns=3).remote()))
print([ray.get(ref) for ref in source.items.options(num_returns="streaming").remote(3)])
print([ray.get(ref) for ref in source.slowly.options(num_returns="streaming").remote(3)])

print(ray.wait([pair.remote()], timeout=30)[1], len(a.hex()) > 10, a.hex() == a.hex())
print(a.future().result(timeout=30))


async def awaiting():
    x, y = pair.options(num_returns=2).remote()
    many = await asyncio.gather(x, y, a)
    items = [await ref async for ref in stream.remote(2)]
    return many, [item.tolist() for item in items], await asyncio.wait_for(ray.put(3), 30)


print(asyncio.run(awaiting()))
for wrong_call in (
    lambda: ray.wait([]),
    lambda: ray.wait([a, a]),
    lambda: ray.wait([a], num_returns=2),
    lambda: ray.wait(a),
):
    try:
        print(wrong_call())
    except TypeError:
        print("TypeError")
    except ValueError:
        print("ValueError")
print(ray.get([]))

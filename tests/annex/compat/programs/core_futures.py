"""References as futures of concurrent.futures and of asyncio."""

import asyncio

import ray


@ray.remote
def number(n):
    return n


ref = number.remote(4)
print(ref.future().result(), len(ref.hex()) > 0, isinstance(ref.hex(), str))


async def main():
    done = await asyncio.gather(*(number.remote(n) for n in range(3)))
    first, _ = await asyncio.wait([asyncio.wrap_future(number.remote(9).future())])
    return done, first.pop().result()


print(asyncio.run(main()))

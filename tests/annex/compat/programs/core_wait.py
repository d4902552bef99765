"""Waiting for some of many."""

import ray


@ray.remote
def number(n):
    return n


refs = [number.remote(n) for n in range(6)]
done, rest = ray.wait(refs, num_returns=6)
print(len(done), rest, ray.get(done))
pending, seen = [number.remote(n) for n in range(5)], []
while pending:
    done, pending = ray.wait(pending)
    print(len(done), end=" ")
    seen += ray.get(done)
print(sorted(seen))
done, rest = ray.wait(refs, num_returns=2, timeout=30)
print(len(done), len(rest))
print(ray.wait([], num_returns=1) if False else "nothing to wait for")
for arguments in ({"num_returns": 7}, {"num_returns": 0}):
    try:
        ray.wait(refs, **arguments)
    except ValueError:
        print("ValueError")
try:
    ray.wait([refs[0], refs[0]])
except ValueError:
    print("ValueError: twice")
try:
    ray.wait(refs[0])
except TypeError:
    print("TypeError")

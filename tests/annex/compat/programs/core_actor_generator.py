"""Generators among the methods of an actor."""

import ray


@ray.remote
class Source:
    def numbers(self, n):
        for number in range(n):
            yield number * 10

    def plain(self):
        return "plain"


source = Source.remote()
print([ray.get(ref) for ref in source.numbers.remote(3)], ray.get(source.plain.remote()))
print([ray.get(ref) for ref in source.numbers.options(num_returns="streaming").remote(2)])

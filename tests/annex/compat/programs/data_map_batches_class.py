"""A class is made once for each worker, and called with each batch."""

import ray


class Scorer:
    def __init__(self, table, offset=0):
        self.table, self.offset = table, offset
        self.calls = 0

    def __call__(self, batch, factor, *, name):
        self.calls += 1
        return {name: [self.table[i] * factor + self.offset for i in batch["id"]]}


scored = ray.data.range(4).map_batches(
    Scorer,
    fn_constructor_args=[{0: 5, 1: 6, 2: 7, 3: 8}],
    fn_constructor_kwargs={"offset": 100},
    fn_args=[10],
    fn_kwargs={"name": "score"},
    batch_size=2,
    compute=ray.data.ActorPoolStrategy(size=1),
)
print(scored.take_all())
print(scored.schema().names)

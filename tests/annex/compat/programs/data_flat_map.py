"""Rows that become none, one or many."""

import ray


class Words:
    def __init__(self, separator):
        self.separator = separator

    def __call__(self, row):
        return [{"word": word} for word in row["text"].split(self.separator)]


texts = ray.data.from_items([{"text": "to be"}, {"text": "or"}, {"text": "not to be"}])
print(texts.flat_map(lambda row: [{"word": word} for word in row["text"].split()]).take_all())
print(texts.flat_map(lambda row: []).count())
print(texts.flat_map(Words, fn_constructor_args=["o"], concurrency=1).take_all())
print(ray.data.range(3).flat_map(lambda row, n: [row] * n, fn_args=[2]).take_all())
print(
    ray.data.range(3)
    .flat_map(lambda row: ({"id": row["id"], "i": i} for i in range(int(row["id"]))))
    .take_all()
)

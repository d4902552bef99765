"""Python objects travel from one step to the next."""

import ray


class Token:
    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return f"Token({self.text})"


tokens = ray.data.from_items([{"text": "a b"}, {"text": "c"}]).map(
    lambda row: {"tokens": [Token(word) for word in row["text"].split()]}
)
print(tokens.map(lambda row: {"texts": [token.text for token in row["tokens"]]}).take_all())
sets = ray.data.range(3).map(lambda row: {"s": {int(row["id"])}})
print(sets.map(lambda row: {"kind": type(row["s"]).__name__, "n": len(row["s"])}).take_all())
print(sets.take(1))
numbers = ray.data.range(2).map(lambda row: {"z": complex(row["id"], 1)})
print(numbers.map(lambda row: {"imaginary": row["z"].imag}).take_all())

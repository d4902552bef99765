"""A function for each row, a class, arguments by position and by name."""

import ray


class AddBias:
    def __init__(self, bias, scale=1):
        self.bias, self.scale = bias, scale

    def __call__(self, row):
        return {"id": row["id"], "out": row["id"] * self.scale + self.bias}


def power(row, exponent, *, name="power"):
    return {**row, name: row["id"] ** exponent}


ds = ray.data.range(4)
print(ds.map(lambda row: {"double": row["id"] * 2}).take_all())
print(ds.map(power, fn_args=[3], fn_kwargs={"name": "cube"}).take_all())
pool = ray.data.ActorPoolStrategy(size=1)
added = ds.map(AddBias, fn_constructor_args=[10], fn_constructor_kwargs={"scale": 2}, compute=pool)
print(added.take_all())
print(ds.map(lambda row: {**row, "text": f"row {row['id']}", "flag": row["id"] > 1}).take(3))

"""Datasets side by side."""

import ray

a = ray.data.range(3)
b = ray.data.from_items([{"s": s} for s in "abc"])
print(a.zip(b).take_all())
print(a.zip(ray.data.range(3)).take_all())
print(a.zip(b).map(lambda row: {"t": row["s"] * int(row["id"])}).take_all())
try:
    a.zip(ray.data.range(4)).take_all()
except Exception as error:
    print("refused", isinstance(error, ValueError))

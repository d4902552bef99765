"""What a function returns for a row keeps its type."""

import datetime

import numpy as np
import ray


def rich(row):
    return {
        "int": int(row["id"]),
        "float": row["id"] / 2,
        "text": "x" * int(row["id"]),
        "none": None,
        "bytes": bytes([row["id"]]),
        "list": list(range(int(row["id"]))),
        "struct": {"a": int(row["id"]), "b": "b"},
        "date": datetime.date(2024, 1, 1 + int(row["id"])),
        "time": datetime.datetime(2024, 1, 1, int(row["id"])),
        "bool": bool(row["id"] % 2),
        "numpy": np.float32(row["id"]),
    }


for row in ray.data.range(3).map(rich).iter_rows():
    print({name: (type(value).__name__, value) for name, value in row.items()})

"""What a function raises can be told from the error."""

import ray


def fails(row):
    if row["id"] == 2:
        raise ValueError(f"row {row['id']} is bad")
    return row


try:
    ray.data.range(4).map(fails).take_all()
except ray.exceptions.RayError as error:
    print("RayError", "row 2 is bad" in str(error))
try:
    ray.data.range(4).map(fails).take_all()
except ray.exceptions.RayTaskError as error:
    print("RayTaskError", "ValueError" in str(error))
try:
    ray.data.range(4).map(fails).materialize()
except ray.exceptions.UserCodeException as error:
    print("UserCodeException", isinstance(error, ray.exceptions.RayTaskError))
try:
    for batch in ray.data.range(4).map(fails).iter_batches(batch_size=2):
        print(sorted(batch))
except ray.exceptions.RayTaskError as error:
    print("iterating", "row 2 is bad" in str(error))

"""Objects are put once and do not change."""

import numpy as np
import ray


@ray.remote
def change(values):
    values["list"].append(4)
    return values["list"]


@ray.remote
def try_to_write(array):
    try:
        array[0] = 7
        return "written"
    except ValueError:
        return "read-only"


values = ray.put({"list": [1, 2, 3]})
print(ray.get([change.remote(values), change.remote(values)]), ray.get(values))
array = ray.put(np.zeros(1000))
print(ray.get(try_to_write.remote(array)), ray.get(array)[0], ray.get(array).flags.writeable)
mine = [1]
ref = ray.put(mine)
mine.append(2)
print(ray.get(ref), mine)
print(isinstance(ref, ray.ObjectRef), ref == ref, ref != ray.put(mine), len({ref, ref}))

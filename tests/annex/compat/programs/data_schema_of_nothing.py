"""What has no columns: a schema that is empty, not None."""

import ray

print(ray.data.from_items([]).schema() is None)

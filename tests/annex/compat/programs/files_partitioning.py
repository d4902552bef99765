import os
import tempfile

import ray
from ray.data.datasource.partitioning import Partitioning

folder = tempfile.mkdtemp()
os.makedirs(f"{folder}/year=2022/month=09")
with open(f"{folder}/year=2022/month=09/sales.csv", "w") as file:
    file.write("n\n1\n2\n")
for types in (None, {"year": int}):
    print(ray.data.read_csv(folder, partitioning=Partitioning("hive", field_types=types)).take_all())

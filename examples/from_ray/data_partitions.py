# The calls are those of ray-project/ray, python/ray/data/datasource/partitioning.py.
import os
import tempfile

import pandas as pd
from PIL import Image

from headrace.compat import ray
from headrace.compat.ray.data.datasource.partitioning import Partitioning, PathPartitionFilter

folder = tempfile.mkdtemp()
for kind in ("cat", "dog"):
    os.makedirs(f"{folder}/images/{kind}")
    for number in range(2):
        Image.new("RGB", (3, 3)).save(f"{folder}/images/{kind}/{number}.png")
images = ray.data.read_images(
    f"{folder}/images",
    partitioning=Partitioning("dir", field_names=["class"], base_dir=f"{folder}/images"),
)
assert sorted(row["class"] for row in images.take_all()) == ["cat", "cat", "dog", "dog"]
for year in (2023, 2024):
    os.makedirs(f"{folder}/sales/year={year}")
    pd.DataFrame({"sold": [year % 10]}).to_csv(f"{folder}/sales/year={year}/part.csv", index=False)
sales = ray.data.read_csv(f"{folder}/sales", partitioning=Partitioning("hive", field_types={"year": int}))
assert {(row["year"], row["sold"]) for row in sales.take_all()} == {(2023, 3), (2024, 4)}
late = ray.data.read_csv(
    f"{folder}/sales",
    partition_filter=PathPartitionFilter.of(filter_fn=lambda values: values["year"] == "2024", style="hive"),
)
assert late.count() == 1

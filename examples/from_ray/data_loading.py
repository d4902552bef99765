# The calls are those of ray-project/ray, doc/source/data/loading-data.rst.
import json
import tempfile

import numpy as np
import pandas as pd
import pyarrow.dataset as pads

from headrace.compat import ray

folder = tempfile.mkdtemp()
frame = pd.DataFrame({"sepal.length": [5.1, 4.9, 6.0], "variety": ["Setosa", "Setosa", "Virginica"]})
frame.to_parquet(f"{folder}/iris.parquet")
frame.to_csv(f"{folder}/iris.csv", index=False)
frame.to_csv(f"{folder}/iris.tsv", index=False, sep="\t")
frame.to_json(f"{folder}/iris.jsonl", orient="records", lines=True)
np.save(f"{folder}/array.npy", np.arange(6).reshape(3, 2))
with open(f"{folder}/this.txt", "w") as file:
    file.write("one\n\ntwo\n")
with open(f"{folder}/log.json", "w") as file:
    json.dump([{"timestamp": 1, "size": 2}], file)

assert ray.data.read_parquet(f"local://{folder}/iris.parquet").count() == 3
subset = ray.data.read_parquet(
    f"{folder}/iris.parquet", columns=["sepal.length"], filter=pads.field("sepal.length") > 5.0
)
assert subset.schema().names == ["sepal.length"] and subset.count() == 2
assert ray.data.read_csv(f"{folder}/iris.csv").take(1)[0]["variety"] == "Setosa"
from pyarrow import csv

tabs = ray.data.read_csv(f"{folder}/iris.tsv", parse_options=csv.ParseOptions(delimiter="\t"))
assert tabs.columns() == ["sepal.length", "variety"]
assert ray.data.read_json(f"{folder}/iris.jsonl").count() == 3
assert ray.data.read_json(f"{folder}/log.json").take_all() == [{"timestamp": 1, "size": 2}]
assert ray.data.read_numpy(f"{folder}/array.npy").take(1)[0]["data"].tolist() == [0, 1]
assert [row["text"] for row in ray.data.read_text(f"{folder}/this.txt").take_all()] == ["one", "two"]
assert ray.data.read_binary_files(f"{folder}/this.txt").take(1)[0]["bytes"].startswith(b"one")
assert ray.data.from_items([1, 2]).take_all() == [{"item": 1}, {"item": 2}]
assert ray.data.from_pandas([frame, frame]).count() == 6
assert ray.data.range_tensor(2, shape=(2, 2)).take_batch()["data"].shape == (2, 2, 2)

"""CSV with pyarrow's options."""

import tempfile
from pathlib import Path

import pyarrow.csv as pc
import ray

path = Path(tempfile.mkdtemp()) / "a.csv"
path.write_text("1;x\n2;y\n")
ds = ray.data.read_csv(
    str(path),
    read_options=pc.ReadOptions(column_names=["n", "s"]),
    parse_options=pc.ParseOptions(delimiter=";"),
)
print(ds.take_all())

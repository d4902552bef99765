"""CSV written and read again."""

import tempfile
from pathlib import Path

import ray

folder = tempfile.mkdtemp()
rows = [{"i": i, "f": i / 2, "s": f"t,{i}"} for i in range(4)]
ray.data.from_items(rows).write_csv(folder)
print(sorted(ray.data.read_csv(folder).take_all(), key=lambda row: row["i"]) == rows)
path = Path(tempfile.mkdtemp()) / "a.csv"
path.write_text("a,b,when,flag,empty\n1,x,2024-01-02,true,\n2,,2024-01-03,false,\n")
ds = ray.data.read_csv(str(path))
print(ds.take_all())
print(ds.schema().types)

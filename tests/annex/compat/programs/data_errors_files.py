"""Files that are not there, or are not what they should be."""

import tempfile
from pathlib import Path

import ray

folder = Path(tempfile.mkdtemp())
(folder / "bad.parquet").write_text("no parquet")
(folder / "bad.json").write_text("{not json\n")
for name, make in {
    "missing parquet": lambda: ray.data.read_parquet(str(folder / "none.parquet")),
    "missing csv": lambda: ray.data.read_csv(str(folder / "none.csv")),
    "bad parquet": lambda: ray.data.read_parquet(str(folder / "bad.parquet")),
    "bad json": lambda: ray.data.read_json(str(folder / "bad.json")),
}.items():
    try:
        make().take_all()
        print(name, "passed")
    except Exception as error:
        print(name, "FileNotFoundError" if isinstance(error, FileNotFoundError) else "refused")

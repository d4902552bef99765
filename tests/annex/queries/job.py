"""A run behind a query, which tests kill: rides through a step of the user's, joined, and a model behind it."""

import contextlib
import os
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr
from headrace.core import failpoints

ROWS, ZONES, KEYS = 4000, 7, 100
JOINED = "SELECT id, name, km FROM rides JOIN zones USING (zone)"


def write_input(folder: Path) -> None:
    """Write four files of rides, and a file of zones."""
    (folder / "rides").mkdir(parents=True)
    for i in range(4):
        ids = range(i * ROWS // 4, (i + 1) * ROWS // 4)
        table = pa.table({"id": pa.array(ids), "zone": [each % (ZONES + 1) for each in ids]})
        pq.write_table(table, folder / "rides" / f"{i}.parquet", row_group_size=250)
    lines = "\n".join(f"{i},Z{i}" for i in range(ZONES))
    (folder / "zones.csv").write_text(f"zone,name\n{lines}\n")


def longer(batch: dict) -> dict:
    """The step before the query."""
    return {**batch, "km": batch["id"] * 0.5}


def fare(batch: dict) -> dict:
    """The model behind it."""
    return {"id": batch["id"], "name": batch["name"], "fare": 3 + 2 * batch["km"]}


def dataset(folder: Path, text: str = JOINED, **options: object) -> hr.Dataset:
    """The run's plan."""
    rides = hr.read_parquet(folder / "rides").map_batches(longer)
    data = hr.sql(text, rides=rides, zones=hr.read_csv(folder / "zones.csv")).map_batches(
        fare, batch_size=100
    )
    return data.with_options(**{"engine": "inline", "progress": False, "shard_rows": 500, **options})


def grouped(folder: Path, **options: object) -> hr.Dataset:
    """The plan of a run behind ``map_groups``, of which each step kills its process where a file says so."""

    def behind(group: dict) -> dict:
        fatal(folder, f"group-{group['key'][0]}")
        return {"id": group["id"], "behind": group["km"].max() - group["km"]}

    def priced(batch: dict) -> dict:
        if 2000 in batch["id"]:
            fatal(folder, "behind")
        return {"id": batch["id"], "fare": 3 + 2 * batch["behind"]}

    rides = hr.read_parquet(folder / "rides").map_batches(longer).with_column("key", lambda b: b["id"] % KEYS)
    rides = rides.with_options(**{"engine": "inline", "progress": False, "shard_rows": 20, **options})
    return rides.groupby("key").map_groups(behind).map_batches(priced, batch_size=100)


def fatal(folder: Path, name: str) -> None:
    """Kill this process, once, if there is a file of that name."""
    with contextlib.suppress(FileNotFoundError):
        (folder / name).unlink()
        os.kill(os.getpid(), signal.SIGKILL)


def expected_of_groups() -> list[dict]:
    """The rows of its output, by their id."""
    return [{"id": i, "fare": 3.0 + (ROWS - KEYS + i % KEYS) - i} for i in range(ROWS)]


def expected() -> list[dict]:
    """The rows of the output, by their id."""
    rows = (i for i in range(ROWS) if i % (ZONES + 1) < ZONES)
    return [{"id": i, "name": f"Z{i % (ZONES + 1)}", "fare": 3 + float(i)} for i in rows]


def main(where: str, *given: str, text: str = JOINED, out: str = "") -> None:
    """Write the output; ``given`` are failpoints with their actions, and options."""
    told = dict(each.split("=", 1) for each in given)
    failpoints.activate({name: action for name, action in told.items() if "." in name})
    options = {name: value for name, value in told.items() if "." not in name}
    data = dataset(Path(where), text, **options) if text else grouped(Path(where), **options)
    data.write_parquet(out or Path(where) / "out")

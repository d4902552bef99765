"""What drivers do that tests kill: they write rows to one of the targets, and what is to be there afterwards."""

from __future__ import annotations

import importlib
import json
import os
import re
import time
import warnings
from typing import Any

import headrace as hr
from headrace.errors import RunLocked, SinkError
from headrace.output.places import lease
from headrace.result import Result
from headrace.sources.range import RangeSource
from targets import TARGETS, Target

ROWS, SHARD, KEYS = 120, 20, 50
Row = tuple[int, int]
SINKS = [*(name for name in TARGETS if name != "delta, s3"), "parquet, overwrite"]


def of(name: str, place: str = "") -> Target:
    return TARGETS["parquet" if name == "parquet, overwrite" else name](place)


def rows(options: dict[str, Any]) -> hr.Dataset:
    """Six shards of rows with ``id`` and ``product``."""
    data = hr.Dataset.from_source(RangeSource(ROWS, rows_per_split=SHARD)).map_batches(made, version="1")
    quiet = {"engine": "inline", "progress": False, "shard_rows": SHARD, "durability": "process"}
    return data.with_options(**{**quiet, **options})


def made(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "product": batch["id"] * 3}


def older(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"], "product": -batch["id"]}


def keyed(batch: dict[str, Any]) -> dict[str, Any]:
    return {"id": batch["id"] % KEYS, "product": batch["product"]}


def write(name: str, options: dict[str, Any], place: str) -> Result:
    target, data = of(name, place), rows(options)
    if name == "parquet, overwrite":  # in the place of an older output, with rows of its own
        if not os.path.exists(target.output):
            target.write(data.map_batches(older, version="1"))
        data = data.with_options(mode="overwrite")
    if name.endswith("upsert"):
        warnings.simplefilter("ignore", UserWarning)  # of keys with several rows
        data = data.map_batches(keyed, version="1")
    return target.write(data)


def read(name: str, place: str) -> list[Row]:
    """Return all rows that are there, with anything left over, of an output that is as it should be."""
    target = of(name, place)
    assert hr.verify(target.output, **target.told).good
    assert target.commits() == 1 or name == "postgresql, overwrite"
    return target.pairs()


def expected(name: str) -> list[Row]:
    if name.endswith("upsert"):
        return [(k, max(range(k, ROWS, KEYS)) * 3) for k in range(KEYS)]
    return [(i, i * 3) for i in range(ROWS)]


class Tells:
    """An observer that leaves a file once the driver has the output; if it ``meets``, it waits then.

    It goes on when another driver was refused. Else that one comes too late, where getting ready takes longer than
    writing.
    """

    def __init__(self, place: str, *, meets: bool) -> None:
        self.place, self.meets = place, meets

    def on_event(self, event: object) -> None:
        open(f"{self.place}/{BEGUN}", "a").close()
        while self.meets and not os.path.exists(f"{self.place}/{MET}"):
            time.sleep(0.001)


BEGUN, MET, OVER = "begun", "met", "over"


def main(name: str, place: str, options: dict[str, Any], waits: str = "") -> None:
    """What a driver does. One that ``waits`` tries again and again while another one has the output.

    ``"meets"``: it is a first one, that goes no further before the second one was refused.
    """
    if options.pop("apart", False):  # as on a machine of its own, where nobody waits for half a minute
        lease._machine = lambda: str(os.getpid())
        lease.SILENCE, lease.BEAT = 1.0, 0.1
    if of(name, place).imports:  # what it may take longer to import than a driver lives
        importlib.import_module(of(name, place).imports)
    result = None
    while result is None:
        try:
            result = write(name, {**options, "observers": [Tells(place, meets=waits == "meets")]}, place)
        except RunLocked as error:
            if not waits or not re.search("is being written by|was taken over by|was changed by", str(error)):
                raise
            print("refused", flush=True)
            open(f"{place}/{MET}", "a").close()
        except SinkError as error:  # a connection was lost, and the program is run again
            if not waits or "run the same command again" not in str(error):
                raise
    print(json.dumps([result.rows, result.run, result.resumed]), flush=True)

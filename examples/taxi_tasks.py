"""Twelve monthly files, one task each, and a big model that lies in memory once.

The files are made here: taxi trips with distances, passengers and fares. A model with a large payload is `put`
once; each task reads a month, predicts whether passengers tip, and writes its predictions. Then the same with
four actors, and once more with tasks that declare so much memory that only a few may run at once.
"""

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

import headrace as hr

MONTHS = 12


class TipModel:
    """A small rule with a payload that makes copies expensive, as the weights of a big model would."""

    def __init__(self, payload_mb: int) -> None:
        self.payload = np.ones(payload_mb * 1_000_000 // 8)

    def predict(self, trips: pa.Table) -> np.ndarray:
        passengers = trips.column("passenger_count").to_numpy()
        weight = self.payload.mean()  # all of it is needed, in every worker
        return (passengers % 2 == 0) * weight  # (n,) float64: 1.0 where a tip is likely


class TipActor:
    """Holds the model, and predicts one month after another."""

    def __init__(self, model: TipModel, folder: str) -> None:
        self.model = model
        self.folder = folder

    def predict(self, month: str) -> tuple[str, int]:
        return predict_month(self.model, month, self.folder)


def write_months(folder: Path, rows: int) -> list[str]:
    """Make a Parquet file of trips for every month."""
    rng = np.random.default_rng(0)
    files = []
    for month in range(1, MONTHS + 1):
        distance = rng.gamma(2.0, 1.5, rows)
        table = pa.table(
            {
                "pickup": pa.array(rng.integers(0, 30 * 86_400, rows), pa.int64()),  # seconds into the month
                "passenger_count": rng.integers(1, 7, rows),
                "trip_distance": distance,
                "fare": 3.0 + 2.5 * distance,
            }
        )
        files.append(str(folder / f"trips-{month:02d}.parquet"))
        pq.write_table(table, files[-1])
    return files


def predict_month(model: TipModel, month: str, folder: str) -> tuple[str, int]:
    """Predict one file, and write the result beside; return its path and how many tips are likely."""
    trips = pq.read_table(month)
    tips = model.predict(trips)
    out = os.path.join(folder, os.path.basename(month).replace("trips", "tips"))
    pq.write_table(trips.append_column("tip", pa.array(tips)), out)
    return out, int(tips.sum())


def count_at_once(month: str, folder: str) -> int:
    """Read a month; return how many tasks did so at the same time."""
    mark = Path(folder, f"{os.getpid()}.running")
    mark.touch()
    pq.read_table(month)
    time.sleep(0.05)
    running = len(list(Path(folder).glob("*.running")))
    mark.unlink()
    return running


class MemoryWatch(threading.Thread):
    """Remembers the most memory that this process and its workers used together, shared pages counted once."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most = 0
        self._done = threading.Event()

    def run(self) -> None:
        while not self._done.wait(0.05):
            total = 0
            for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
                try:
                    total += process.memory_full_info().pss
                except (psutil.Error, AttributeError):  # it ended meanwhile; or this is no Linux
                    continue
            self.most = max(self.most, total)

    def lap(self) -> int:
        """Return the most since the last time that somebody asked."""
        most, self.most = self.most, 0
        return most

    def stop(self) -> int:
        self._done.set()
        self.join()
        return self.most


def main() -> None:
    parser = argparse.ArgumentParser(description="One task per monthly file, with a model that is put once.")
    parser.add_argument("--payload-mb", type=int, default=800, help="how big the model is (default: 800)")
    parser.add_argument("--rows", type=int, default=50_000, help="trips per month (default: 50,000)")
    parser.add_argument("--workers", type=int, default=2, help="worker processes for tasks (default: 2)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        months = write_months(folder, arguments.rows)
        watch = MemoryWatch()
        watch.start()
        with hr.connect(workers=arguments.workers, memory_limit="4GiB") as executor:
            model = executor.put(TipModel(arguments.payload_mb))
            making = watch.lap()  # for a moment it was there twice: as it was made, and as it is shared

            began = time.perf_counter()
            futures = [executor.submit(predict_month, model, month, name) for month in months]
            tips = [future.result()[1] for future in futures]
            print(f"tasks: {sum(tips):,} likely tips in {MONTHS} files, {time.perf_counter() - began:.1f} s")

            began = time.perf_counter()
            pool = executor.actor_pool(TipActor, model, name, size=4)
            found = dict(pool.map_unordered(lambda actor, month: actor.predict(month), months))
            print(f"actors: {sum(found.values()):,} likely tips, {time.perf_counter() - began:.1f} s")
            assert sum(found.values()) == sum(tips)
            del pool

            hungry = executor.options(memory="3GiB")  # of 4: one at a time
            print("at once, with memory for one:", max(hungry.map(count_at_once, months, [name] * MONTHS)))
            modest = executor.options(memory="1GiB")
            print("at once, with memory for all:", max(modest.map(count_at_once, months, [name] * MONTHS)))
        most = watch.stop()
        if most:
            print(
                f"most memory in use, all processes together: {most / 1e6:,.0f} MB; to put it: {making / 1e6:,.0f} MB"
            )


if __name__ == "__main__":
    main()

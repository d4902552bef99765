"""BatchPredictor over a million generated rows: a network trained here, and put to work.

A program for Ray AIR's BatchPredictor looks like this; here it needs no cluster. The same predictor goes over the
rows as a DataFrame, and over Parquet files, where a job that is killed goes on where it stopped.
"""

import argparse
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch

import headrace as hr
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.torch import TorchCheckpoint, TorchPredictor

FEATURES = ["distance", "hour", "passengers"]


class FareNet(torch.nn.Module):
    """Three numbers of a ride in, its fare out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(3, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, rides: torch.Tensor) -> torch.Tensor:
        return self.layers(rides)


def make_rides(rows: int, seed: int) -> pd.DataFrame:
    """Generate rides: `ride` is their number; the fare follows distance and hour, with noise."""
    rng = np.random.default_rng(seed)
    distance = rng.gamma(2.0, 2.0, rows).astype(np.float32)
    hour = rng.integers(0, 24, rows).astype(np.float32)
    fare = 3 + 2.5 * distance + np.where(hour >= 20, 1.5, 0) + rng.normal(0, 0.5, rows)
    passengers = rng.integers(1, 5, rows).astype(np.float32)
    columns = {"distance": distance, "hour": hour, "passengers": passengers, "fare": fare.astype(np.float32)}
    return pd.DataFrame(columns, index=pd.RangeIndex(rows, name="ride"))


def train(rides: pd.DataFrame, steps: int = 300) -> FareNet:
    """Fit the network to some rides."""
    torch.manual_seed(0)
    net = FareNet()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    given = torch.tensor(rides[FEATURES].to_numpy())
    wanted = torch.tensor(rides[["fare"]].to_numpy())
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(net(given), wanted).backward()
        optimizer.step()
    return net


def average_miss(made: pd.DataFrame) -> float:
    """Return by how much the predictions miss the fares, on average."""
    return float((made["fare"] - made["predictions"]).abs().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description="BatchPredictor over generated rides.")
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rides (default: 1,000,000)")
    parser.add_argument(
        "--folder", type=Path, default=Path("demo-output/batch-predictor"), help="where all of it goes"
    )
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    shutil.rmtree(folder, ignore_errors=True)

    checkpoint = TorchCheckpoint.from_model(train(make_rides(2_000, seed=1)))
    print(f"1. A network that learned from 2,000 rides: {checkpoint}")
    predictor = BatchPredictor.from_checkpoint(checkpoint, TorchPredictor)
    rides = make_rides(arguments.rows, seed=2)

    began = time.perf_counter()
    fares = predictor.predict(rides, feature_columns=FEATURES, keep_columns=["fare"])
    seconds = time.perf_counter() - began
    print(f"2. {len(fares):,} rides from a DataFrame into a DataFrame: {seconds:.2f} s")
    print(fares.head(3))
    print(f"   on average, the predictions miss by {average_miss(fares):.2f}")

    hr.from_pandas(rides.reset_index()).with_options(progress=False).write_parquet(folder / "rides")
    made = predictor.predict(
        hr.read_parquet(folder / "rides"), feature_columns=FEATURES, keep_columns=["ride", "fare"]
    )
    result = made.write_parquet(folder / "fares")
    print(f"3. {result.rows:,} rides from Parquet files into Parquet files: {folder / 'fares'}")

    flagged = BatchPredictor.from_pandas_udf(lambda df: df[(df["fare"] - df["predictions"]).abs() > 2])
    far = flagged.predict(hr.read_parquet(folder / "fares")).count()
    print(f"4. {far:,} fares that are far from what the network expects")


if __name__ == "__main__":
    main()

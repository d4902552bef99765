"""A program for Ray AIR (2.0 to 2.6), as its users wrote them: only the lines that import Ray's names differ.

A module whose ``forward`` takes a dict of columns, a checkpoint of it, ``BatchPredictor`` over a dataset with the
columns that are kept, and the accuracy; then a function of DataFrames that returns an array. It ends in Parquet.
"""

import argparse
import shutil
from pathlib import Path

import pandas as pd
import torch

from headrace.compat import ray
from headrace.compat.ray.train.batch_predictor import BatchPredictor
from headrace.compat.ray.train.torch import TorchCheckpoint, TorchPredictor


class Tips(torch.nn.Module):
    """Says that who rides far, or late, tips."""

    def forward(self, rides):
        return (rides["distance"] / 5 + rides["hour"] / 24 > 1).float()


def main() -> None:
    parser = argparse.ArgumentParser(description="A program for Ray AIR.")
    parser.add_argument("--rows", type=int, default=100_000, help="how many rides (default: 100,000)")
    parser.add_argument(
        "--folder", type=Path, default=Path("demo-output/air-program"), help="where it writes"
    )
    arguments = parser.parse_args()
    shutil.rmtree(arguments.folder, ignore_errors=True)

    rides = pd.DataFrame(
        {"distance": [n % 10 for n in range(arguments.rows)], "hour": [n % 24 for n in range(arguments.rows)]}
    )
    rides["tipped"] = (rides["distance"] >= 5).astype(int)
    dataset = ray.data.from_pandas(rides)

    checkpoint = TorchCheckpoint.from_model(Tips())
    batch_predictor = BatchPredictor.from_checkpoint(checkpoint, TorchPredictor)
    predictions = batch_predictor.predict(
        dataset,
        feature_columns=["distance", "hour"],
        keep_columns=["tipped"],
        batch_size=4096,
        min_scoring_workers=1,
        max_scoring_workers=2,
        dtype=torch.float32,
    )
    predictions.show(3)

    correct = predictions.map_batches(
        lambda df: pd.DataFrame({"correct": df["predictions"] == df["tipped"]}), batch_format="pandas"
    )
    print(f"accuracy: {correct.sum(on='correct') / correct.count():.2f}")

    longer = BatchPredictor.from_pandas_udf(
        lambda df: df["distance"].to_numpy() * 1.609,
        predict_batch_kwargs={"output_column_name": "kilometres"},
    )
    longer.predict(dataset, keep_columns=["hour"]).write_parquet(str(arguments.folder / "kilometres"))
    print(sorted(ray.data.read_parquet(str(arguments.folder / "kilometres")).columns()))


if __name__ == "__main__":
    main()

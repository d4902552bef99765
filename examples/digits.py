"""A million handwritten digits through a classifier: what `make demo` runs.

The 1,797 digits that come with scikit-learn are laid out as twelve Parquet files, each digit many times
over and never twice with the same noise. A small neural network learns two thirds of the originals; Headrace
then carries every row of the folder through it and writes the predictions beside.

Stop it halfway (Ctrl-C, even kill -9) and run it again: it goes on where it stopped, and no row is lost or
counted twice.
"""

import argparse
import os
import pickle
import shutil
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from sklearn.datasets import load_digits
from sklearn.neural_network import MLPClassifier

import headrace as hr

FILES = 12
HELD_BACK = 3  # every third original is never shown to the network


class DigitClassifier:
    """An ordinary class: constructed once per worker, then called with one batch after another."""

    def __init__(self, model_path: str) -> None:
        with open(model_path, "rb") as file:
            self.model = pickle.load(file)

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        scores = self.model.predict_proba(batch["image"])  # image: (n, 64) pixels, 0 to 16
        return {
            "original": batch["original"],
            "label": batch["label"],
            "prediction": scores.argmax(axis=1),
            "confidence": scores.max(axis=1).astype(np.float32),
        }


def write_images(folder: Path, rows: int) -> None:
    """Lay the digits out as Parquet files: `original` (which of the 1,797), `label`, `image` (64 pixels)."""
    digits = load_digits()
    images, labels = digits.data.astype(np.int8), digits.target.astype(np.int8)
    rng = np.random.default_rng(0)
    unfinished = folder.with_name(folder.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for number, part in enumerate(np.array_split(np.arange(rows), FILES)):
        original = (part % len(images)).astype(np.int32)
        noise = rng.integers(-2, 3, size=(len(part), 64), dtype=np.int8)
        pixels = np.clip(images[original] + noise, 0, 16).astype(np.uint8)
        table = pa.table(
            {
                "original": original,
                "label": labels[original],
                "image": pa.FixedSizeListArray.from_arrays(pixels.reshape(-1), 64),
            }
        )
        pq.write_table(table, unfinished / f"digits-{number:02d}.parquet")
    unfinished.rename(folder)


def train_model(path: Path) -> None:
    """Teach a small network two thirds of the originals, and save it."""
    digits = load_digits()
    shown = np.arange(len(digits.data)) % HELD_BACK != 0
    model = MLPClassifier(hidden_layer_sizes=(256, 128), random_state=0)
    model.fit(digits.data[shown], digits.target[shown])
    unfinished = path.with_suffix(".unfinished")
    unfinished.write_bytes(pickle.dumps(model))
    unfinished.rename(path)


def measure_accuracy(folder: Path) -> tuple[float, float]:
    """Read the predictions back: the share that is right, of all rows and of the originals held back."""
    rows = right = unseen_rows = unseen_right = 0
    for batch in hr.read_parquet(str(folder)).iter_batches(batch_size=65_536, batch_format="numpy"):
        correct = batch["prediction"] == batch["label"]
        unseen = batch["original"] % HELD_BACK == 0
        rows, right = rows + len(correct), right + int(correct.sum())
        unseen_rows, unseen_right = unseen_rows + int(unseen.sum()), unseen_right + int(correct[unseen].sum())
    return right / max(rows, 1), unseen_right / max(unseen_rows, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description="A million handwritten digits through a classifier.")
    parser.add_argument("--folder", type=Path, default=Path("demo-output"), help="where all of it goes")
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many digits (default: 1,000,000)")
    arguments = parser.parse_args()
    folder: Path = arguments.folder
    images, predictions = folder / f"digits-{arguments.rows}", folder / f"predictions-{arguments.rows}"
    model = folder / "model.pkl"
    began = time.perf_counter()

    print(f"1. {arguments.rows:,} handwritten digits in {FILES} Parquet files: {images}")
    if images.exists():
        print("   already there from an earlier run")
    else:
        write_images(images, arguments.rows)

    print(f"2. A small neural network that learns two thirds of the 1,797 originals: {model}")
    if model.exists():
        print("   already there from an earlier run")
    else:
        train_model(model)

    print(f"3. Every digit through the network: {predictions}")
    if (predictions / "_SUCCESS").exists():
        print("   finished in an earlier run: nothing is computed again, what follows is the recorded result")
    elif predictions.exists():
        print("   interrupted in an earlier run: what it finished stays, only the rest is computed")
    result = (
        hr.read_parquet(str(images))
        .map_batches(DigitClassifier, fn_constructor_args=[str(model)], concurrency=os.cpu_count() or 1)
        .write_parquet(str(predictions))
    )

    print("4. The predictions, read back")
    hr.read_parquet(str(predictions)).show(3)
    accuracy, unseen = measure_accuracy(predictions)
    print(f"   accuracy {accuracy:.2%} over all rows, {unseen:.2%} over the originals it never saw")
    print(f"\n{result.rows:,} rows, {time.perf_counter() - began:.1f} s in all. Output: {predictions}")
    print(f"Run it again to see that a finished job does no work; remove {folder} to start over.")


if __name__ == "__main__":
    main()

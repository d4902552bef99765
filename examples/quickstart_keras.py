"""Keras in batches: prepare on the CPU, predict with one worker or two.

The model is made here, so that nothing has to be fetched. A worker of the second stage makes it once, then gets
batches of two rows; the first stage prepares the next rows meanwhile.
"""

import numpy as np

import headrace as hr


def scaled(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The preprocessing: no model, any core."""
    return {"data": (batch["data"] / 100).astype(np.float32)}


class Classifier:
    def __init__(self) -> None:  # once per worker
        import keras  # here, as a worker that prepares has no need of it

        keras.utils.set_random_seed(0)
        self.model = keras.Sequential(
            [keras.layers.Input([100]), keras.layers.Dense(1, activation="sigmoid")]
        )

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # once per batch
        return {"output": self.model(batch["data"]).numpy()}  # (2, 100) in, (2, 1) out


def predictions(workers: int) -> hr.Dataset:
    data = hr.from_numpy(np.arange(1_000, dtype=np.float64).reshape(10, 100))
    return data.map_batches(scaled, num_cpus=1).map_batches(
        Classifier, batch_size=2, compute=hr.ActorPoolStrategy(size=workers)
    )


def main() -> None:
    predictions(1).show(limit=1)
    print(f"{len(predictions(2).take_all())} predictions by two workers")


if __name__ == "__main__":
    main()

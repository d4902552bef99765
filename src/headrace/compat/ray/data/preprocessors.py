"""Ray's ``ray.data.preprocessors``: those that only call functions; ``fitted`` has those that learn from data."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from headrace.compat.air.user_parts import FORMATS, Form, Preprocessing, preparing_method
from headrace.compat.ray.offered import missing
from headrace.compat.ray.predictors import Columns, Preprocessor
from headrace.errors import ArgumentError, BadReturn

__all__ = ["BatchMapper", "Chain", "Preprocessor", "TorchVisionPreprocessor"]

_FITTED = (
    "other transformations are learnt by scikit-learn: fit a transformer of it to a DataFrame, such as "
    "dataset.take_batch(100_000, batch_format='pandas'), and give that as preprocessor="
)


class BatchMapper(Preprocessor):
    """Calls a function of a batch, which is a DataFrame or, with ``batch_format="numpy"``, a dict of arrays.

    >>> import pandas as pd
    >>> mapper = BatchMapper(lambda frame: frame.assign(y=frame["x"] + 1))
    >>> mapper.transform_batch(pd.DataFrame({"x": [1]}))["y"].tolist()
    [2]
    """

    def __init__(
        self, fn: Callable[[Any], Any], batch_format: Form = "pandas", batch_size: int | str | None = None
    ) -> None:
        if not callable(fn) or batch_format not in FORMATS:
            raise ArgumentError(
                f"BatchMapper({fn!r}, batch_format={batch_format!r}): it takes a function of a batch, and one of the "
                f"formats {', '.join(FORMATS)}."
            )
        self.fn, self.batch_format, self.batch_size = fn, batch_format, batch_size
        self.__qualname__ = f"BatchMapper({getattr(fn, '__name__', fn)!s})"

    def transform_batch(self, batch: Any) -> Any:
        """Return what the function returns."""
        return self.fn(batch)


class Chain(Preprocessor):
    """Lets a batch pass through several preprocessors, one after the other.

    >>> import pandas as pd
    >>> twice = Chain(BatchMapper(lambda frame: frame + 1), BatchMapper(lambda frame: frame * 2))
    >>> twice.transform_batch(pd.DataFrame({"x": [1]}))["x"].tolist()
    [4]
    """

    def __init__(self, *preprocessors: Any) -> None:
        for each in preprocessors:
            preparing_method(each)
        if not preprocessors:
            raise ArgumentError("Chain() takes at least one preprocessor.")
        self.preprocessors = preprocessors
        self._steps = [Preprocessing(each) for each in preprocessors]
        self.batch_format = self._steps[0].batch_format

    def fit(self, dataset: Any) -> Any:
        """Let each learn from what those before it make of the dataset."""
        for each in self.preprocessors:
            if hasattr(each, "fit") and isinstance(each, Preprocessor):
                dataset = each.fit(dataset).transform(dataset)
        return self

    def transform_batch(self, batch: Any) -> Any:
        """Return what the last preprocessor returns."""
        for step in self._steps:
            batch = step(batch)
        return batch


class TorchVisionPreprocessor(Columns, batched=False):
    """Applies a transform of torchvision to columns of images, (n, h, w, c) or images of different sizes.

    ``transform`` gets each image as a tensor (h, w, c), or as an array where it takes no tensor; with
    ``batched=True`` all images of a batch at once. The result stands in the same column, or in those named by
    ``output_columns``.

    >>> import numpy as np
    >>> half = TorchVisionPreprocessor(columns=["image"], transform=lambda image: image / 2)
    >>> half.transform_batch({"image": np.full((1, 1, 1, 1), 4.0)})["image"].ravel().tolist()
    [2.0]
    """

    batch_format: Form = "numpy"

    def __init__(
        self, columns: Any, transform: Any, output_columns: Any = None, batched: bool = False
    ) -> None:
        super().__init__(columns, batched, output_columns=output_columns)
        self._transform = transform
        if not callable(transform):
            raise ArgumentError(f"TorchVisionPreprocessor takes a function transform=, not {transform!r}.")

    def transform_batch(self, batch: Any) -> Any:
        """Return the batch with the transformed images."""
        made = dict(batch)
        for name, to in zip(self.columns, self.output_columns, strict=True):
            if name not in batch:
                raise BadReturn(
                    f"TorchVisionPreprocessor transforms the column {name!r}, and the data have {', '.join(batch)}"
                )
            images = batch[name]
            made[to] = self._applied(images) if self.batched else _together([*map(self._applied, images)])
        return made

    def _applied(self, images: Any) -> Any:
        import torch

        try:
            made = self._transform(torch.as_tensor(np.require(images, requirements=["C", "W"])))
        except TypeError:  # ToTensor and its like take arrays
            made = self._transform(images)
        made = made.numpy() if isinstance(made, torch.Tensor) else made
        if not isinstance(made, np.ndarray):
            raise BadReturn(
                f"the transform of TorchVisionPreprocessor returned {type(made).__name__}: it has to return a tensor "
                "or an array"
            )
        return made


def _together(images: list[Any]) -> Any:
    if len({image.shape for image in images}) <= 1:
        return np.stack(images) if images else np.zeros(0)
    made = np.empty(len(images), object)
    made[:] = images
    return made


def __getattr__(name: str) -> Any:
    from headrace.compat.ray.data import fitted

    if name in fitted.__all__:
        return getattr(fitted, name)
    raise missing("ray.data.preprocessors", name, [*__all__, *fitted.__all__], _FITTED)

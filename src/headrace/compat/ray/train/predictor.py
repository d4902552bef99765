"""Ray's ``ray.train.predictor``: what predictors of one's own are made of."""

from __future__ import annotations

from typing import Any

from headrace.errors import NotOffered


class Predictor:
    """The base of predictors of one's own: subclasses have ``from_checkpoint``, and one of two methods.

    ``_predict_pandas(frame, **kwargs)`` gets a DataFrame, ``_predict_numpy(arrays, **kwargs)`` a dict of arrays. For
    ``BatchPredictor.from_checkpoint(checkpoint, cls)``.

    >>> import pandas as pd, headrace as hr
    >>> class Times(Predictor):
    ...     def __init__(self, factor):
    ...         super().__init__()
    ...         self.factor = factor
    ...     @classmethod
    ...     def from_checkpoint(cls, checkpoint):
    ...         return cls(checkpoint["factor"])
    ...     def _predict_pandas(self, frame):
    ...         return frame * self.factor
    >>> hr.BatchPredictor.from_checkpoint({"factor": 2}, Times).predict(pd.DataFrame({"x": [1, 2]}))["x"].tolist()
    [2, 4]
    """

    def __init__(self, preprocessor: Any = None) -> None:
        """``preprocessor`` has to be None: prepare the data before, with ``map_batches``."""
        if preprocessor is not None:
            raise NotOffered(
                "Predictor(preprocessor=…) is not offered here: there are no preprocessors. Prepare the data before, "
                "with map_batches, or in the predictor."
            )

    @classmethod
    def from_checkpoint(cls, checkpoint: Any, **kwargs: Any) -> Predictor:
        """Make the predictor; subclasses say how."""
        raise NotImplementedError(f"{cls.__name__} has no from_checkpoint")

    @classmethod
    def preferred_batch_format(cls) -> str:
        """Return which batches the class works on."""
        return "pandas" if cls._predict_numpy is Predictor._predict_numpy else "numpy"

    def predict(self, data: Any, **kwargs: Any) -> Any:
        """Return the predictions for a DataFrame or a dict of arrays."""
        method = self._predict_numpy if isinstance(data, dict) else self._predict_pandas
        return method(data, **kwargs)

    def _predict_pandas(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _predict_pandas")

    def _predict_numpy(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _predict_numpy")

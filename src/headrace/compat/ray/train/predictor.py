"""Ray's ``ray.train.predictor``: what predictors of one's own are made of."""

from __future__ import annotations

from typing import Any

from headrace.compat.air.preprocessing import Preprocessing


class Predictor:
    """The base of predictors of one's own: subclasses have ``from_checkpoint``, and one of two methods.

    ``_predict_pandas(frame, **kwargs)`` gets a DataFrame, ``_predict_numpy(arrays, **kwargs)`` a dict of arrays. For
    ``BatchPredictor.from_checkpoint(checkpoint, cls)``.

    >>> import pandas as pd
    >>> from headrace.compat.ray.train.batch_predictor import BatchPredictor
    >>> class Times(Predictor):
    ...     def __init__(self, factor):
    ...         super().__init__()
    ...         self.factor = factor
    ...     @classmethod
    ...     def from_checkpoint(cls, checkpoint):
    ...         return cls(checkpoint["factor"])
    ...     def _predict_pandas(self, frame):
    ...         return frame * self.factor
    >>> BatchPredictor.from_checkpoint({"factor": 2}, Times).predict(pd.DataFrame({"x": [1, 2]}))["x"].tolist()
    [2, 4]
    """

    def __init__(self, preprocessor: Any = None) -> None:
        """``preprocessor``: what ``predict`` lets the data pass through before; ``ArgumentError`` for what cannot."""
        self.set_preprocessor(preprocessor)

    def get_preprocessor(self) -> Any:
        """Return the preprocessor, or None."""
        return self._preprocessor

    def set_preprocessor(self, preprocessor: Any) -> None:
        """Let another prepare the data, or none."""
        self._prepare = None if preprocessor is None else Preprocessing(preprocessor)
        self._preprocessor = preprocessor

    _preprocessor: Any = None
    _prepare: Preprocessing | None = None

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
        if self._prepare is not None:
            data = self._prepare(data)
        method = self._predict_numpy if isinstance(data, dict) else self._predict_pandas
        return method(data, **kwargs)

    def _predict_pandas(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _predict_pandas")

    def _predict_numpy(self, data: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _predict_numpy")

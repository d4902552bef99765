"""Ray's ``ray.data.preprocessor``: ``Preprocessor``."""

from __future__ import annotations

from typing import Any

from headrace.compat.air.preprocessing import Form, Preprocessing


class Preprocessor:
    """Base of these, and of your own: ``_fit(dataset)`` sets attributes, ``_transform_pandas(frame)`` uses them.

    >>> import pandas as pd
    >>> class Twice(Preprocessor):
    ...     def _transform_pandas(self, df):
    ...         return df * 2
    >>> Twice().transform_batch(pd.DataFrame({"x": [1]}))["x"].tolist()
    [2]
    """

    _is_fittable = False
    batch_format: Form = "pandas"

    def fit(self, dataset: Any) -> Any:
        """Learn from a dataset, in one pass; return this preprocessor."""
        if type(self)._fit is not Preprocessor._fit:
            self._fit(dataset)
        return self

    def transform(self, dataset: Any, **_: Any) -> Any:
        """Return the prepared dataset, lazily."""
        return dataset.map_batches(Preprocessing(self), batch_format=self.batch_format)

    def fit_transform(self, dataset: Any, **_: Any) -> Any:
        """Learn from a dataset, and return it prepared."""
        return self.fit(dataset).transform(dataset)

    def transform_batch(self, batch: Any) -> Any:
        """Return a prepared batch."""
        if type(self)._transform_numpy is not Preprocessor._transform_numpy and isinstance(batch, dict):
            return self._transform_numpy(batch)
        return self._transform_pandas(batch.copy())

    def preferred_batch_format(self) -> str:
        """Return which batches it wants."""
        own = type(self)._transform_pandas is Preprocessor._transform_pandas
        return (
            "numpy"
            if own and type(self)._transform_numpy is not Preprocessor._transform_numpy
            else self.batch_format
        )

    def _fit(self, dataset: Any) -> Any:
        return self

    def _transform_pandas(self, df: Any) -> Any:
        raise NotImplementedError

    def _transform_numpy(self, np_data: Any) -> Any:
        raise NotImplementedError

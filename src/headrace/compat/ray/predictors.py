"""Ray's ``ray.train`` and ``ray.air``, as far as they predict: names of predictors, and what your own are made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from headrace.compat.air.checkpoint import Checkpoint as Checkpoint
from headrace.compat.air.user_parts import Form, Preprocessing
from headrace.compat.ray.offered import Kept, names_of_headrace
from headrace.errors import ArgumentError, HeadraceError, UnknownArgument, nearest


class Predictor:
    """The base of predictors of one's own: subclasses have ``from_checkpoint``, and one of two methods.

    ``_predict_pandas(frame, **kwargs)`` gets a DataFrame, ``_predict_numpy(arrays, **kwargs)`` a dict of arrays. For
    ``BatchPredictor.from_checkpoint(checkpoint, cls)``.
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
        self._check_fitted()
        return dataset.map_batches(Preprocessing(self), batch_format=self.batch_format)

    def fit_transform(self, dataset: Any, **_: Any) -> Any:
        """Learn from a dataset, and return it prepared."""
        return self.fit(dataset).transform(dataset)

    def transform_batch(self, batch: Any) -> Any:
        """Return a prepared batch."""
        if type(self)._transform_numpy is not Preprocessor._transform_numpy and isinstance(batch, dict):
            return self._transform_numpy(batch)
        return self._transform_pandas(batch.copy())

    def _check_fitted(self) -> None:
        """Raise ``PreprocessorNotFittedException`` if there is something to learn, and nothing was learnt."""

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


class PreprocessorNotFittedException(HeadraceError, RuntimeError):
    """A preprocessor was to transform data before it had learnt from any."""


class Columns(Preprocessor, Kept):
    """One that changes ``columns``, in their places or into ``output_columns``.

    A subclass says above its body what it ``learns``, metrics by name, and its settings with their defaults.
    """

    _learns: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    def __init_subclass__(cls, learns: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init_subclass__(**settings)
        cls._learns = cls._learns if learns is None else learns

    def __init__(self, columns: Sequence[str], *args: Any, output_columns: Any = None, **given: Any) -> None:
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        self.output_columns = list(output_columns or self.columns)
        if len(self.output_columns) != len(self.columns):
            raise ArgumentError(f"{type(self).__name__}: as many output_columns= as there are columns.")
        for name in given:
            if name not in self._settings:
                hint = nearest(name, [*self._settings])
                raise UnknownArgument(f"{type(self).__name__} has no argument {name!r}.{hint}")
        Kept.__init__(self, *args, **given)
        self.stats_: dict[str, Any] = {}

    def _fit(self, dataset: Any) -> Any:
        asked = {
            f"{name}({column})": make(column)
            for name, make in self._asked().items()
            for column in self.columns
        }
        self.stats_ = dict(dataset.evaluate(**asked)) if asked else {}
        return self

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        return self._learns

    def _learnt(self, column: str) -> list[Any]:
        self._check_fitted()
        return [self.stats_[f"{name}({column})"] for name in self._asked()]

    def _check_fitted(self) -> None:
        if self._asked() and not self.stats_:
            raise PreprocessorNotFittedException(
                f"{type(self).__name__} has not learnt anything yet: call fit(dataset) before."
            )

    def _transform_pandas(self, df: Any) -> Any:
        pairs = zip(self.columns, self.output_columns, strict=True)
        return df.assign(**{to: self._made(df[name], name, *self._learnt(name)) for name, to in pairs})

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        """Return the new values of a column, by what was learnt of it."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}(columns={self.columns!r}, output_columns={self.output_columns!r})"


_LIBRARIES = ("Torch", "Sklearn", "XGBoost", "LightGBM", "Transformers")
_OURS = {"HuggingFace": "Transformers", "Tensorflow": "Keras"} | {name: name for name in _LIBRARIES}
_NAMES = {
    f"{name}{what}": f"{ours}{what}" for name, ours in _OURS.items() for what in ("Checkpoint", "Predictor")
}

__getattr__ = names_of_headrace("ray.train", {"BatchPredictor": "BatchPredictor", **_NAMES})

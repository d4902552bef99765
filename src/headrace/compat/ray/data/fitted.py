"""Preprocessors that learn from data: by metrics of the dataset, all columns in one pass."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

import headrace
from headrace.accumulators.base import Metric
from headrace.accumulators.columns import ColumnMax, ColumnMean, ColumnMin, ColumnStd
from headrace.compat.ray.predictors import Preprocessor
from headrace.errors import ArgumentError

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = [
    "Categorizer",
    "Concatenator",
    "CountVectorizer",
    "CustomKBinsDiscretizer",
    "LabelEncoder",
    "MaxAbsScaler",
    "MinMaxScaler",
    "MultiHotEncoder",
    "Normalizer",
    "OneHotEncoder",
    "OrdinalEncoder",
    "RobustScaler",
    "SimpleImputer",
    "StandardScaler",
    "Tokenizer",
    "UniformKBinsDiscretizer",
]


class _Values(Metric):
    """How often each value of a column occurs; of lists, or of the words of a text, each element."""

    settings = ("column", "split")

    def __init__(self, column: str, split: Callable[[Any], Sequence[Any]] | None = None) -> None:
        self.column, self.split = column, split
        self._begin([column], "count")

    def _clear(self) -> None:
        self.seen: Counter[Any] = Counter()

    def update(self, batch: pa.RecordBatch) -> None:
        for value in batch.column(self.column).to_pylist():
            if value is not None:
                each = self.split(value) if self.split else value if isinstance(value, list) else [value]
                self.seen.update(each)

    def merge(self, other: Any) -> None:
        self.seen.update(other.seen)

    def result(self) -> Any:
        return self.seen

    def describe(self) -> dict[str, Any]:
        return {"values": self.column}

    def to_bytes(self) -> bytes:
        import pickle

        return pickle.dumps(self.seen)

    def from_bytes(self, data: bytes) -> _Values:
        import pickle

        made = _Values(self.column, self.split)
        made.seen = pickle.loads(data)
        return made


class _Columns(Preprocessor):
    """One that changes ``columns``, in their places or into ``output_columns``."""

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {}

    def __init__(self, columns: Sequence[str], *, output_columns: Sequence[str] | None = None) -> None:
        self.columns = [columns] if isinstance(columns, str) else list(columns)
        self.output_columns = list(output_columns or self.columns)
        if len(self.output_columns) != len(self.columns):
            raise ArgumentError(f"{type(self).__name__}: as many output_columns= as there are columns.")
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
        return self.metrics

    def _of(self, name: str, column: str) -> Any:
        if not self.stats_:
            raise ArgumentError(
                f"{type(self).__name__} has not learnt anything yet: call fit(dataset) before."
            )
        return self.stats_[f"{name}({column})"]

    def _transform_pandas(self, df: Any) -> Any:
        made = {
            to: self._made(df[name], name) for name, to in zip(self.columns, self.output_columns, strict=True)
        }
        return df.assign(**made)

    def _made(self, series: Any, column: str) -> Any:
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}(columns={self.columns!r}, output_columns={self.output_columns!r})"


class StandardScaler(_Columns):
    """Takes the mean away, and divides by the standard deviation of all rows.

    >>> import headrace as hr
    >>> rows = hr.from_items([{"x": 1.0}, {"x": 3.0}])
    >>> StandardScaler(columns=["x"]).fit_transform(rows).take_all()
    [{'x': -1.0}, {'x': 1.0}]
    """

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {
        "mean": ColumnMean,
        "std": lambda column: ColumnStd(column, ddof=0),
    }

    def _made(self, series: Any, column: str) -> Any:
        return (series - self._of("mean", column)) / (self._of("std", column) or 1.0)


class MinMaxScaler(_Columns):
    """Maps the least value to 0, the largest to 1."""

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {"min": ColumnMin, "max": ColumnMax}

    def _made(self, series: Any, column: str) -> Any:
        low, high = self._of("min", column), self._of("max", column)
        return (series - low) / ((high - low) or 1)


class MaxAbsScaler(_Columns):
    """Divides by the largest absolute value."""

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {"min": ColumnMin, "max": ColumnMax}

    def _made(self, series: Any, column: str) -> Any:
        return series / (max(abs(self._of("min", column)), abs(self._of("max", column))) or 1)


class RobustScaler(_Columns):
    """Takes the median away, and divides by the distance of two quantiles."""

    def __init__(
        self, columns: Sequence[str], quantile_range: tuple[float, float] = (0.25, 0.75), **given: Any
    ) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        self.quantile_range = quantile_range

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        low, high = self.quantile_range
        return {"quantiles": lambda column: headrace.Quantiles(column, [low, 0.5, high])}

    def _made(self, series: Any, column: str) -> Any:
        found = [*self._of("quantiles", column).values()]
        return (series - found[1]) / ((found[2] - found[0]) or 1.0)


class SimpleImputer(_Columns):
    """Puts the mean, the most frequent value or ``fill_value`` in the place of nulls."""

    def __init__(
        self, columns: Sequence[str], strategy: str = "mean", fill_value: Any = None, **given: Any
    ) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        if strategy not in ("mean", "most_frequent", "constant") or (
            strategy == "constant" and fill_value is None
        ):
            raise ArgumentError(
                "SimpleImputer: strategy= is mean, most_frequent, or constant with fill_value=."
            )
        self.strategy, self.fill_value = strategy, fill_value

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        known = {"mean": ColumnMean, "most_frequent": _Values}
        return {} if self.strategy == "constant" else {self.strategy: known[self.strategy]}

    def _made(self, series: Any, column: str) -> Any:
        if self.strategy == "constant":
            return series.fillna(self.fill_value)
        found = self._of(self.strategy, column)
        return series.fillna(found if self.strategy == "mean" else found.most_common(1)[0][0])


class Normalizer(_Columns):
    """Divides the columns of a row by their common norm, ``l1``, ``l2`` or ``max``."""

    def __init__(self, columns: Sequence[str], norm: str = "l2", **given: Any) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        if norm not in ("l1", "l2", "max"):
            raise ArgumentError(f"Normalizer(norm={norm!r}): it is l1, l2 or max.")
        self.norm = norm

    def _transform_pandas(self, df: Any) -> Any:
        values = df[self.columns].to_numpy(float)
        by = {"l1": 1, "l2": 2, "max": np.inf}[self.norm]
        made = values / np.linalg.norm(values, by, axis=1, keepdims=True)
        return df.assign(**dict(zip(self.output_columns, made.T, strict=True)))


class Concatenator(Preprocessor):
    """Puts columns of numbers side by side into one of vectors."""

    def __init__(
        self,
        columns: Sequence[str] | None = None,
        output_column_name: str = "concat_out",
        dtype: Any = None,
        raise_if_missing: bool = False,
        flatten: bool = False,
        exclude: Sequence[str] = (),
    ) -> None:
        self.columns, self.output_column_name, self.dtype = columns, output_column_name, dtype
        self.raise_if_missing = raise_if_missing
        self.exclude = [exclude] if isinstance(exclude, str) else list(exclude)

    def _transform_pandas(self, df: Any) -> Any:
        names = [name for name in self.columns or df.columns if name not in self.exclude]
        missing = [name for name in names if name not in df.columns]
        if missing:
            raise ArgumentError(f"Concatenator: there is no column {', '.join(missing)}.")
        parts = [np.stack([np.ravel(value) for value in df[name]]) for name in names] if len(df) else []
        made = np.concatenate(parts, axis=1) if parts else np.zeros((0, len(names)))
        made = made if self.dtype is None else made.astype(self.dtype)
        return df.drop(columns=names).assign(**{self.output_column_name: list(made)})


class _Encoder(_Columns):
    """One that knows the values of its columns, in their order."""

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {"unique_values": _Values}

    def __init__(
        self, columns: Sequence[str], *, max_categories: Mapping[str, int] | None = None, **given: Any
    ) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        self.max_categories = dict(max_categories or {})

    def _places(self, column: str) -> dict[Any, int]:
        seen = self._of("unique_values", column)
        kept = (
            seen.most_common(self.max_categories[column]) if column in self.max_categories else seen.items()
        )
        return {value: place for place, value in enumerate(sorted(value for value, _ in kept))}


class OrdinalEncoder(_Encoder):
    """Puts the place of a value among the sorted ones in its place; one that was not seen is null."""

    def __init__(self, columns: Sequence[str], *, encode_lists: bool = True, **given: Any) -> None:
        super().__init__(columns, **given)

    def _made(self, series: Any, column: str) -> Any:
        places = self._places(column)
        if len(series) and isinstance(series.iloc[0], (list, np.ndarray)):
            return [[places.get(each) for each in value] for value in series]
        return series.map(places)


class LabelEncoder(_Encoder):
    """As ``OrdinalEncoder``, of one column, and back."""

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__([label_column], output_columns=[output_column] if output_column else None)
        self.label_column = label_column

    def _made(self, series: Any, column: str) -> Any:
        return series.map(self._places(column))

    def inverse_transform(self, dataset: Any) -> Any:
        """Return the dataset with the values that the numbers stand for."""
        values = {place: value for value, place in self._places(self.label_column).items()}
        name = self.output_columns[0]
        return dataset.map_batches(
            lambda df: df.assign(**{name: df[name].map(values)}), batch_format="pandas"
        )


class Categorizer(_Encoder):
    """Makes columns of categories."""

    def __init__(self, columns: Sequence[str], dtypes: Mapping[str, Any] | None = None, **given: Any) -> None:
        super().__init__(columns, **given)
        self.dtypes = dict(dtypes or {})

    def _made(self, series: Any, column: str) -> Any:
        import pandas as pd

        return series.astype(self.dtypes.get(column) or pd.CategoricalDtype(list(self._places(column))))


class OneHotEncoder(_Encoder):
    """Makes a vector with a 1 at the place of the value, and 0 elsewhere."""

    def _made(self, series: Any, column: str) -> Any:
        places = self._places(column)
        made = np.zeros((len(series), len(places)), np.uint8)
        for row, value in enumerate(series):
            for each in value if isinstance(value, (list, np.ndarray)) else [value]:
                if each in places:
                    made[row, places[each]] += 1
        return list(made)


class MultiHotEncoder(OneHotEncoder):
    """As ``OneHotEncoder``, of lists."""


def _words(text: str) -> list[str]:
    return text.split(" ")


class Tokenizer(_Columns):
    """Cuts texts into lists of words."""

    def __init__(
        self, columns: Sequence[str], tokenization_fn: Callable[[str], list[str]] | None = None, **given: Any
    ) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        self.tokenization_fn = tokenization_fn or _words

    def _made(self, series: Any, column: str) -> Any:
        return series.map(self.tokenization_fn)


class CountVectorizer(_Columns):
    """Makes a vector of how often each word occurs, the most frequent ones first."""

    def __init__(
        self,
        columns: Sequence[str],
        tokenization_fn: Callable[[str], list[str]] | None = None,
        max_features: int | None = None,
        **given: Any,
    ) -> None:
        super().__init__(columns, output_columns=given.get("output_columns"))
        self.tokenization_fn, self.max_features = tokenization_fn or _words, max_features

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        return {"token_counts": lambda column: _Values(column, self.tokenization_fn)}

    def _made(self, series: Any, column: str) -> Any:
        words = [word for word, _ in self._of("token_counts", column).most_common(self.max_features)]
        counted = [Counter(self.tokenization_fn(text)) for text in series]
        return [[each[word] for word in words] for each in counted]


class CustomKBinsDiscretizer(_Columns):
    """Puts the number of a bin in the place of a value; ``bins`` has their borders, maybe by column."""

    def __init__(
        self, columns: Sequence[str], bins: Any, *, right: bool = True, include_lowest: bool = False,
        duplicates: str = "raise", dtypes: Mapping[str, Any] | None = None, **given: Any,
    ) -> None:  # fmt: skip
        super().__init__(columns, output_columns=given.get("output_columns"))
        self.bins, self.dtypes = bins, dict(dtypes or {})
        self._cut = {"right": right, "include_lowest": include_lowest, "duplicates": duplicates}

    def _borders(self, column: str) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _made(self, series: Any, column: str) -> Any:
        import pandas as pd

        made = pd.cut(series, self._borders(column), labels=False, ordered=False, **self._cut)
        return made.astype(self.dtypes[column]) if column in self.dtypes else made


class UniformKBinsDiscretizer(CustomKBinsDiscretizer):
    """As ``CustomKBinsDiscretizer``, with as many bins of one width as ``bins`` says."""

    metrics: ClassVar[Mapping[str, Callable[[str], Any]]] = {"min": ColumnMin, "max": ColumnMax}

    def _borders(self, column: str) -> Any:
        low, high, count = self._of("min", column), self._of("max", column), super()._borders(column)
        borders = np.linspace(low, high, count + 1)
        margin = (high - low) * 0.001
        borders[0 if self._cut["right"] else -1] += -margin if self._cut["right"] else margin
        return borders

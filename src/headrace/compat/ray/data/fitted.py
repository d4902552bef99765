"""Preprocessors that learn from data: by metrics of the dataset, all columns in one pass."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

import headrace
from headrace.accumulators.base import Metric
from headrace.accumulators.columns import ColumnMax, ColumnMean, ColumnMin, ColumnStd
from headrace.compat.ray.predictors import Columns
from headrace.errors import ArgumentError

__all__ = [
    "Categorizer", "Concatenator", "CountVectorizer", "CustomKBinsDiscretizer", "LabelEncoder", "MaxAbsScaler",
    "MinMaxScaler", "MultiHotEncoder", "Normalizer", "OneHotEncoder", "OrdinalEncoder", "RobustScaler",
    "SimpleImputer", "StandardScaler", "Tokenizer", "UniformKBinsDiscretizer",
]  # fmt: skip


class _Values(Metric):
    """How often each value of a column occurs; of lists, or of the words of a text, each element."""

    settings = ("column", "split", "nulls")

    def __init__(
        self, column: str, split: Callable[[Any], Sequence[Any]] | None = None, nulls: bool = False
    ) -> None:
        self.column, self.split, self.nulls = column, split, nulls
        self._begin([column], "count")

    def _clear(self) -> None:
        self.seen: Counter[Any] = Counter()

    def update(self, batch: pa.RecordBatch) -> None:
        for value in batch.column(self.column).to_pylist():
            if value is None:
                if self.nulls:
                    self.seen[None] += 1
            else:
                each = self.split(value) if self.split else value if isinstance(value, list) else [value]
                self.seen.update(each)

    def merge(self, other: Any) -> None:
        self.seen.update(other.seen)

    def result(self) -> Any:
        return self.seen

    def describe(self) -> dict[str, Any]:
        return {"values": self.column}

    def to_bytes(self) -> bytes:
        return pickle.dumps(self.seen)

    def from_bytes(self, data: bytes) -> _Values:
        made = _Values(self.column, self.split, self.nulls)
        made.seen = pickle.loads(data)
        return made


_ENDS = {"min": ColumnMin, "max": ColumnMax}


class StandardScaler(Columns, learns={"mean": ColumnMean, "std": partial(ColumnStd, ddof=0)}):
    """Takes the mean away, and divides by the standard deviation of all rows.

    >>> import headrace as hr
    >>> rows = hr.from_items([{"x": 1.0}, {"x": 3.0}])
    >>> StandardScaler(columns=["x"]).fit_transform(rows).take_all()
    [{'x': -1.0}, {'x': 1.0}]
    """

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        mean, std = learnt
        return (series - mean) / (std or 1.0)


class MinMaxScaler(Columns, learns=_ENDS):
    """Maps the least value to 0, the largest to 1."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        low, high = learnt
        return (series - low) / ((high - low) or 1)


class MaxAbsScaler(Columns, learns=_ENDS):
    """Divides by the largest absolute value."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        return series / (max(map(abs, learnt)) or 1)


class RobustScaler(Columns, quantile_range=(0.25, 0.75)):
    """Takes the median away, and divides by the distance of two quantiles."""

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        low, high = self.quantile_range
        return {"quantiles": lambda column: headrace.Quantiles(column, [low, 0.5, high])}

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        low, median, high = learnt[0].values()
        return (series - median) / ((high - low) or 1.0)


class SimpleImputer(Columns, strategy="mean", fill_value=None):
    """Puts the mean, the most frequent value or ``fill_value`` in the place of nulls."""

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        known: dict[str, dict[str, Any]] = {
            "mean": {"mean": ColumnMean},
            "most_frequent": {"most_frequent": _Values},
            "constant": {},
        }
        if self.strategy not in known or (self.strategy == "constant" and self.fill_value is None):
            raise ArgumentError(
                "SimpleImputer: strategy= is mean, most_frequent, or constant with fill_value=."
            )
        return known[self.strategy]

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        (found,) = learnt or (self.fill_value,)
        return series.fillna(found.most_common(1)[0][0] if isinstance(found, Counter) else found)


class Normalizer(Columns, norm="l2"):
    """Divides the columns of a row by their common norm, ``l1``, ``l2`` or ``max``."""

    def _transform_pandas(self, df: Any) -> Any:
        norms = {"l1": 1, "l2": 2, "max": np.inf}
        if self.norm not in norms:
            raise ArgumentError(f"Normalizer(norm={self.norm!r}): it is l1, l2 or max.")
        values = df[self.columns].to_numpy(float)
        made = values / np.linalg.norm(values, norms[self.norm], axis=1, keepdims=True)
        return df.assign(**dict(zip(self.output_columns, made.T, strict=True)))


class Concatenator(
    Columns, output_column_name="concat_out", dtype=None, raise_if_missing=False, flatten=False, exclude=()
):
    """Puts columns of numbers side by side into one of vectors; without ``columns``, all but ``exclude``."""

    def __init__(self, columns: Sequence[str] | None = None, *args: Any, **given: Any) -> None:
        super().__init__(columns or (), *args, **given)

    def _transform_pandas(self, df: Any) -> Any:
        left_out = [self.exclude] if isinstance(self.exclude, str) else self.exclude
        names = [name for name in self.columns or df.columns if name not in left_out]
        missing = [name for name in names if name not in df.columns]
        if missing:
            raise ArgumentError(f"Concatenator: there is no column {', '.join(missing)}.")
        parts = [np.stack([np.ravel(value) for value in df[name]]) for name in names] if len(df) else []
        made = np.concatenate(parts, axis=1) if parts else np.zeros((0, len(names)))
        made = made if self.dtype is None else made.astype(self.dtype)
        return df.drop(columns=names).assign(**{self.output_column_name: list(made)})


class _Encoder(Columns, learns={"unique_values": partial(_Values, nulls=True)}, max_categories=None):
    """One that knows the values of its columns, in their order."""

    def _fit(self, dataset: Any) -> Any:
        super()._fit(dataset)
        for column in self.columns:
            (seen,) = self._learnt(column)
            if None in seen:
                raise ArgumentError(
                    f"{type(self).__name__}: column {column!r} has nulls; drop or impute them before."
                )
            kept = sorted(value for value, _ in seen.most_common((self.max_categories or {}).get(column)))
            self.stats_[f"unique_values({column})"] = {value: place for place, value in enumerate(kept)}
        return self

    def _places(self, column: str) -> dict[Any, int]:
        (places,) = self._learnt(column)
        return dict(places)


class OrdinalEncoder(_Encoder, encode_lists=True):
    """Puts the place of a value among the sorted ones in its place; one that was not seen is null."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        places = self._places(column)
        if len(series) and isinstance(series.iloc[0], (list, np.ndarray)):
            return [[places.get(each) for each in value] for value in series]
        return series.map(places)


class LabelEncoder(OrdinalEncoder):
    """As ``OrdinalEncoder``, of one column, and back."""

    def __init__(self, label_column: str, *, output_column: str | None = None) -> None:
        super().__init__([label_column], output_columns=[output_column] if output_column else None)
        self.label_column = label_column

    def inverse_transform(self, dataset: Any) -> Any:
        """Return the dataset with the values that the numbers stand for."""
        values = {place: value for value, place in self._places(self.label_column).items()}
        name = self.output_columns[0]
        return dataset.map_batches(
            lambda df: df.assign(**{name: df[name].map(values)}), batch_format="pandas"
        )


class Categorizer(_Encoder, dtypes=None):
    """Makes columns of categories."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        import pandas as pd

        known = (self.dtypes or {}).get(column)
        return series.astype(known or pd.CategoricalDtype(list(self._places(column))))


class OneHotEncoder(_Encoder):
    """Makes a vector with a 1 at the place of the value, and 0 elsewhere."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
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


class Tokenizer(Columns, tokenization_fn=None):
    """Cuts texts into lists of words."""

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        return series.map(self.tokenization_fn or _words)


class CountVectorizer(Columns, tokenization_fn=None, max_features=None):
    """Makes a vector of how often each word occurs, the most frequent ones first."""

    def _asked(self) -> Mapping[str, Callable[[str], Any]]:
        return {"token_counts": partial(_Values, split=self.tokenization_fn or _words)}

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        words = [word for word, _ in learnt[0].most_common(self.max_features)]
        counted = [Counter((self.tokenization_fn or _words)(text)) for text in series]
        return [[each[word] for word in words] for each in counted]


class CustomKBinsDiscretizer(
    Columns, bins=(), right=True, include_lowest=False, duplicates="raise", dtypes=None
):
    """Puts the number of a bin in the place of a value; ``bins`` has their borders, maybe by column."""

    def _borders(self, column: str, *learnt: Any) -> Any:
        return self.bins[column] if isinstance(self.bins, Mapping) else self.bins

    def _made(self, series: Any, column: str, *learnt: Any) -> Any:
        import pandas as pd

        how = {name: getattr(self, name) for name in ("right", "include_lowest", "duplicates")}
        made = pd.cut(series, self._borders(column, *learnt), labels=False, ordered=False, **how)
        return made.astype((self.dtypes or {}).get(column, made.dtype))


class UniformKBinsDiscretizer(CustomKBinsDiscretizer, learns=_ENDS):
    """As ``CustomKBinsDiscretizer``, with as many bins of one width as ``bins`` says."""

    def _borders(self, column: str, *learnt: Any) -> Any:
        low, high = learnt
        borders = np.linspace(low, high, super()._borders(column) + 1)
        margin = (high - low) * 0.001
        borders[0 if self.right else -1] += -margin if self.right else margin
        return borders

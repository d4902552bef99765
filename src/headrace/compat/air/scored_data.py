"""Data in the form in which a user has them → a dataset, and predictions back in that form."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from headrace.core.files.formats import data_format
from headrace.core.human import short_repr
from headrace.dataset.dataset import Dataset
from headrace.errors import ArgumentError, BadReturn, ColumnExists, unknown_column

# A checkpoint's preprocessor, of whatever library, as a function of batches.

Form = Literal["numpy", "pandas", "pyarrow"]
FORMATS = ("numpy", "pandas", "pyarrow")


class Preprocessing:
    """Prepares batches as a preprocessor does; for ``Dataset.map_batches``.

    A preprocessor has the method ``transform_batch(batch)``, as Ray's do; or ``transform(frame)``, as scikit-learn's
    do; or it is a function of a batch. Batches are DataFrames, unless its ``batch_format`` or its
    ``preferred_batch_format()`` says ``"numpy"`` or ``"pyarrow"``. Raises ``ArgumentError`` for anything else.

    >>> import pandas as pd
    >>> Preprocessing(lambda frame: frame * 2)(pd.DataFrame({"x": [1, 2]}))["x"].tolist()
    [2, 4]
    """

    def __init__(self, preprocessor: Any) -> None:
        self._preprocessor = preprocessor
        self._method = preparing_method(preprocessor)
        self.batch_format = form_wanted(preprocessor)
        name = getattr(preprocessor, "__qualname__", type(preprocessor).__name__).rpartition(".")[2]
        self.__qualname__ = self.__name__ = f"preprocessor {name}"

    def __call__(self, batch: Any) -> Any:
        batch = _in_form(batch, self.batch_format)
        if self._method == "transform":
            return _transformed(self._preprocessor, batch)
        call = self._preprocessor if self._method is None else self._preprocessor.transform_batch
        made = call(batch)
        if not (isinstance(made, Mapping) or hasattr(made, "columns") or hasattr(made, "schema")):
            raise BadReturn(
                f"{self.__qualname__} returned {type(made).__name__}: it has to return a DataFrame, a dict of arrays "
                "or an Arrow table, with names for its columns"
            )
        return made


def preparing_method(preprocessor: Any) -> str | None:
    """Return which method prepares a batch; None if the preprocessor itself is called.

    >>> from sklearn.preprocessing import StandardScaler
    >>> preparing_method(StandardScaler()), preparing_method(len)
    ('transform', None)
    """
    if isinstance(preprocessor, type):
        raise ArgumentError(
            f"preprocessor={preprocessor.__name__} is a class: give an object of it, {preprocessor.__name__}(…)."
        )
    for name in ("transform_batch", "transform"):
        if callable(getattr(preprocessor, name, None)):
            return name
    if callable(preprocessor):
        return None
    raise ArgumentError(
        f"preprocessor={short_repr(preprocessor)}: it takes an object with transform_batch(batch) or "
        "transform(frame), such as a fitted transformer of scikit-learn, or a function of a batch."
    )


def form_wanted(by: Any, default: Form = "pandas") -> Form:
    """Return the batches that a preprocessor or a class wants: by its attribute, by its method, else ``default``."""
    wanted, preferred = getattr(by, "batch_format", None), getattr(by, "preferred_batch_format", None)
    if wanted is None and inspect.ismethod(preferred):
        wanted = preferred()
    wanted = getattr(wanted, "value", wanted)
    if wanted in (None, "arrow"):  # Ray's word; its preprocessors take frames, too
        return default
    form: Form = wanted
    if form not in FORMATS:
        name = getattr(by, "__name__", type(by).__name__)
        raise ArgumentError(f"{name} wants batches as {form!r}; it may be one of {', '.join(FORMATS)}.")
    return form


def _in_form(batch: Any, batch_format: str) -> Any:
    """Return a batch in the form that a preprocessor wants; arrays are its own, as it may write to them."""
    if isinstance(batch, dict):
        if batch_format != "pandas":
            return {name: array.copy() for name, array in batch.items()}
        import pandas as pd

        return pd.DataFrame(
            {name: array if array.ndim == 1 else list(array) for name, array in batch.items()}
        )
    if batch_format == "numpy" and hasattr(batch, "iloc"):
        return {str(name): batch[name].to_numpy(copy=True) for name in batch.columns}
    return batch


def _transformed(transformer: Any, frame: Any) -> Any:
    """Return a frame with what a transformer makes of its columns; columns that it was not fitted to stay."""
    import pandas as pd

    fitted = getattr(transformer, "feature_names_in_", None)
    names = list(frame.columns) if fitted is None else [str(name) for name in fitted]
    missing = [name for name in names if name not in frame.columns]
    if missing:
        raise BadReturn(
            f"preprocessor {type(transformer).__name__} was fitted to the columns {', '.join(names)}, and the data "
            f"have no {', '.join(missing)}"
        )
    made = transformer.transform(frame[names])
    if not hasattr(made, "columns"):
        made = made.toarray() if hasattr(made, "toarray") else made
        made = pd.DataFrame(made, columns=_names_after(transformer, names, made), index=frame.index)
    rest = frame.drop(columns=[name for name in names if name not in made.columns])
    return rest.assign(**{str(name): made[name].to_numpy() for name in made.columns})


def _names_after(transformer: Any, names: list[str], made: Any) -> list[str]:
    """Return what the columns of a transformer's array are called, by what scikit-learn says."""
    after = getattr(transformer, "get_feature_names_out", None)
    if callable(after):
        takes = "input_features" in inspect.signature(after).parameters
        return [str(name) for name in (after(names) if takes else after())]
    if getattr(made, "ndim", 1) == 2 and made.shape[1] == len(names):
        return names
    raise BadReturn(
        f"preprocessor {type(transformer).__name__} returned an array without names for its columns: let it return a "
        "DataFrame, by set_output(transform='pandas') in scikit-learn"
    )


DATA = "data"  # the only column of an array
_TABLES = ("parquet", "csv", "tsv", "json")


class ScoredData:
    """A dataset: its predictions stay lazy. Subclasses are for data in other forms.

    ``eager``: the data are in this process's memory, and predictions are made at once.
    """

    eager = False

    def __init__(self, data: Dataset) -> None:
        self._data = data

    def check(self, features: Sequence[str] | None, keep: Sequence[str], *, prepared: bool = False) -> None:
        """Raise ``UnknownColumn`` for columns that are not there, as far as that is known by now.

        ``prepared``: a preprocessor makes the columns, of all that there are.
        """

    def dataset(self, *, alone: bool) -> Dataset:
        """Return the dataset; ``alone``: this process does the work by itself."""
        return self._data

    def columns_to_carry(self, keep: tuple[str, ...]) -> Any:
        """Return the ``keep`` argument for ``Dataset.predict``."""
        return list(keep) if keep else "none"

    def sample(self, rows: int) -> tuple[int, int]:
        """Return how many rows the first ones are, and their bytes in memory."""
        table = self._data.take_batch(rows, batch_format="pyarrow")
        return table.num_rows, table.nbytes

    def result(self, made: Dataset, keep: tuple[str, ...], column: str) -> Any:
        """Return the predictions in the form in which the data came."""
        return made

    def empty_result(self, keep: tuple[str, ...], column: str) -> Any:
        """Return the predictions for no rows, whose type is unknown."""
        raise NotImplementedError


class _Table(ScoredData):
    """Arrow data: views of it go to the model; ``keep_columns`` are carried."""

    eager = True
    kind = "the table"

    def __init__(self, table: Any) -> None:
        self._table = table

    def check(self, features: Sequence[str] | None, keep: Sequence[str], *, prepared: bool = False) -> None:
        if not prepared:
            _check_names(self._table.schema.names, features, keep)

    def dataset(self, *, alone: bool) -> Dataset:
        from headrace.sources.memory import MemorySource

        # One worker has no use for more than one split.
        rows = max(1, self._table.num_rows) if alone else None
        data = Dataset.from_source(MemorySource(self._table, self.kind, rows_per_split=rows))
        return data.with_options(engine="inline") if alone else data

    def sample(self, rows: int) -> tuple[int, int]:
        head = self._table.slice(0, rows)
        return head.num_rows, head.nbytes

    def result(self, made: Dataset, keep: tuple[str, ...], column: str) -> Any:
        return made.to_arrow()

    def empty_result(self, keep: tuple[str, ...], column: str) -> Any:
        import pyarrow as pa

        return self._table.select(list(keep)).append_column(column, pa.nulls(0))


class _Frame(_Table):
    """A DataFrame. Its ``keep_columns`` are copied into the result at the end, and go to no worker."""

    kind = "the DataFrame"

    def __init__(self, frame: Any) -> None:
        self._frame = frame
        self._by_name = {str(name): name for name in frame.columns}
        if len(self._by_name) < len(frame.columns):
            raise ArgumentError(
                "predict: two columns of the DataFrame have the same name. Rename one of them."
            )

    def check(self, features: Sequence[str] | None, keep: Sequence[str], *, prepared: bool = False) -> None:
        if not prepared:
            _check_names(list(self._by_name), features, keep)
        taken = self._by_name if prepared else features or self._by_name
        self._table = _from_frame(self._frame, [self._by_name[name] for name in taken])

    def columns_to_carry(self, keep: tuple[str, ...]) -> Any:
        return "none"

    def result(self, made: Dataset, keep: tuple[str, ...], column: str) -> Any:
        frame = _to_frame(made.to_arrow())
        same = len(frame) == len(self._frame)
        if same:
            frame.index = self._frame.index
        if keep:
            for name in keep:
                if name in frame.columns:
                    raise ColumnExists(
                        f"A prediction has the name {name!r}, and keep_columns has a column of that name. Rename one "
                        "of them."
                    )
            result = self._frame[[self._by_name[name] for name in keep]].copy(deep=False)
            for name in frame.columns:
                result[name] = frame[name]
            return result
        return frame

    def empty_result(self, keep: tuple[str, ...], column: str) -> Any:
        return self._frame[[self._by_name[name] for name in keep]].assign(**{column: []})


class _Array(_Table):
    """An array: one column."""

    kind = "the array"

    def __init__(self, array: Any) -> None:
        from headrace.sources.memory import table_from_arrays

        super().__init__(table_from_arrays(array))

    def check(self, features: Sequence[str] | None, keep: Sequence[str], *, prepared: bool = False) -> None:
        if features is not None or keep:
            raise ArgumentError(
                "predict: an array has no columns to choose from; give a DataFrame or a Table."
            )

    def result(self, made: Dataset, keep: tuple[str, ...], column: str) -> Any:
        from headrace.core.arrow.batch import one_batch
        from headrace.core.arrow.batch_formats import to_format

        arrays = to_format(one_batch(made.to_arrow()), "numpy")
        return arrays[column] if list(arrays) == [column] else arrays

    def empty_result(self, keep: tuple[str, ...], column: str) -> Any:
        import numpy as np

        return np.zeros(0)


class Prepared(ScoredData):
    """Data of any form behind a preprocessor, whose columns are those that are chosen and kept."""

    def __init__(self, given: ScoredData, prepare: Preprocessing, size: int) -> None:
        self._given, self._prepare, self._size = given, prepare, size
        self.eager = given.eager

    def dataset(self, *, alone: bool) -> Dataset:
        given = self._given.dataset(alone=alone)
        return given.map_batches(
            self._prepare, batch_size=self._size, batch_format=self._prepare.batch_format
        )

    def sample(self, rows: int) -> tuple[int, int]:
        return self._given.sample(rows)

    def result(self, made: Dataset, keep: tuple[str, ...], column: str) -> Any:
        result = self._given.result(made, (), column)
        if hasattr(result, "iloc"):
            return result[[*keep, *(name for name in result.columns if name not in keep)]]
        return result

    def empty_result(self, keep: tuple[str, ...], column: str) -> Any:
        made = self._given.empty_result((), column)
        for at, name in enumerate(keep):
            if hasattr(made, "iloc"):
                made.insert(at, name, [])
            else:
                import pyarrow as pa

                made = made.add_column(at, name, pa.nulls(0))
        return made


def given_data(data: Any) -> ScoredData:
    """Say what the user's data are."""
    if isinstance(data, Dataset):
        return ScoredData(data)
    if _is_paths(data):
        return ScoredData(_read(data))
    numpy, arrow = sys.modules.get("numpy"), sys.modules.get("pyarrow")
    if arrow is not None and isinstance(data, arrow.Table):
        return _Table(data)
    if arrow is not None and isinstance(data, arrow.RecordBatch):
        return _Table(arrow.Table.from_batches([data]))
    if hasattr(data, "iloc") and hasattr(data, "columns"):
        return _Frame(data)
    if numpy is not None and isinstance(data, numpy.ndarray):
        return _Array(data)
    raise ArgumentError(
        f"predict takes a DataFrame, an Arrow Table, an array, a Dataset, or paths of Parquet, CSV or JSON files, "
        f"not {type(data).__name__}."
    )


def _is_paths(data: Any) -> bool:
    if isinstance(data, (str, os.PathLike)):
        return True
    return isinstance(data, (list, tuple)) and bool(data) and all(map(_is_paths, data))


def _read(paths: Any) -> Dataset:
    """Read files by what their names end in; of a folder, the first file with a known suffix decides."""
    import headrace

    first = paths[0] if isinstance(paths, (list, tuple)) else paths
    place = Path(first).expanduser()
    names = _seen_in(place) if place.is_dir() else [str(place)]
    for name in names:
        by_name = data_format(name)
        if by_name is not None and by_name.name in _TABLES:
            dataset: Dataset = getattr(headrace, by_name.reader)(paths, **by_name.options)
            return dataset
    raise ArgumentError(
        f"predict({str(first)!r}): nothing there ends in .parquet, .csv, .json or .jsonl. Say how it is read: "
        "predict(hr.read_parquet(…)), or read_csv, read_json, read_images, …"
    )


def _seen_in(folder: Path) -> Iterator[str]:
    """Yield the files in a folder that are not hidden, as our own record of a run is."""
    for path in sorted(folder.rglob("*")):
        if not any(name.startswith(("_", ".")) for name in path.relative_to(folder).parts):
            yield str(path)


def _check_names(there: Sequence[str], features: Sequence[str] | None, keep: Sequence[str]) -> None:
    for argument, names in (("feature_columns", features or ()), ("keep_columns", keep)):
        for name in names:
            if name not in there:
                raise unknown_column(f"predict({argument}=…)", name, there)


def _from_frame(frame: Any, columns: list[Any]) -> Any:
    """Make a table of some of a frame's columns; numbers are views of it, so that NaN stays NaN.

    Arrow's own way would look at each number, to make nulls of NaN.
    """
    import pyarrow as pa

    from headrace.core.arrow.layout import ConversionError
    from headrace.core.arrow.values import frame_batch

    made = {name: _view(frame[name]) for name in columns}
    rest = [name for name, array in made.items() if array is None]
    try:
        if rest:
            made.update(zip(rest, frame_batch(frame[rest]).columns, strict=True))
        return pa.table({str(name): array for name, array in made.items()})
    except (ConversionError, pa.ArrowException, TypeError, ValueError) as error:
        raise ArgumentError(
            f"predict cannot make Arrow columns of this DataFrame: {error}. feature_columns= leaves columns out."
        ) from error


def _view(column: Any) -> Any:
    """Return a view of a column of numbers that numpy holds; None for any other."""
    import numpy as np

    from headrace.core.arrow.layout import ARROW_OF, flat

    if not isinstance(column.dtype, np.dtype) or column.dtype not in ARROW_OF:
        return None
    return flat(np.ascontiguousarray(column.to_numpy()))


def _to_frame(table: Any) -> Any:
    """Make a frame of results: numbers by numpy, which is quicker, and the rest as Arrow does it."""
    import numpy as np
    import pandas as pd

    from headrace.core.arrow.batch_formats import NUMPY_OF, to_frame, to_numpy

    columns = {}
    for name, column in zip(table.schema.names, table.columns, strict=True):
        if column.type in NUMPY_OF and not column.null_count:
            columns[name] = np.concatenate([to_numpy(chunk) for chunk in column.chunks] or [np.zeros(0)])
        else:
            columns[name] = to_frame(table.select([name]))[name].array
    return pd.DataFrame(columns, copy=False)

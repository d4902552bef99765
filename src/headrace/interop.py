"""Handing data over to other libraries and taking it from them; each library is imported when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.buffers import NUMPY_OF
from headrace.core.arrow.forms import RaggedTensorType, as_lists, is_list_like
from headrace.core.arrow.objects import refuse_objects
from headrace.core.arrow.plain import plain
from headrace.core.arrow.values import ConversionError, column_from, from_columns, from_rows
from headrace.core.door import library
from headrace.core.failures import is_interrupt, words
from headrace.errors import ArgumentError, MissingLibrary, unknown_column

# ---------------------------------------------------------------- to others


def to_polars(table: pa.Table) -> Any:
    """Make a Polars DataFrame."""
    polars = library("to_polars", "polars")
    return _taken("to_polars", partial(polars.from_arrow, rechunk=False), _plain(table))


def to_daft(table: pa.Table) -> Any:
    """Make a Daft DataFrame."""
    return _taken("to_daft", library("to_daft", "daft").from_arrow, _plain(table))


def _taken(verb: str, take: Callable[[pa.Table], Any], table: pa.Table) -> Any:
    """Hand a table over; where the library has no type for a column, name that."""
    try:
        return take(table)
    except BaseException as error:  # of Polars, some are no Exception
        if is_interrupt(error) or table.num_columns == 0:
            raise
        if table.num_columns > 1:
            for name in table.column_names:
                _taken(verb, take, table.select([name]))
            raise
        (field,) = table.schema
        raise ArgumentError(
            f"{verb}: column {field.name!r} is of type {field.type}, which that library does not take "
            f"({words(error).partition(chr(10))[0]}). Convert it in a step, or leave it out with drop_columns."
        ) from error


def _plain(table: pa.Table) -> pa.Table:
    """Lay tensors out as others know them: fixed-size lists of lists, and lists of values where shapes differ."""
    refuse_objects(table, ArgumentError)
    for i, field in enumerate(table.schema):
        if isinstance(field.type, (pa.FixedShapeTensorType, RaggedTensorType)):
            chunks = table.column(i).chunks or [pa.nulls(0, field.type)]
            laid_out = [plain(as_lists(chunk)) for chunk in chunks]
            table = table.set_column(i, field.name, pa.chunked_array(laid_out))
    return table


# ---------------------------------------------------------------- from others


def from_polars(frames: Any) -> list[pa.Table]:
    """Take the columns of Polars DataFrames; LazyFrames are collected first."""
    several = frames if isinstance(frames, (list, tuple)) else [frames]
    tables = []
    for frame in several:
        if type(frame).__module__.partition(".")[0] != "polars" or not hasattr(frame, "lazy"):
            raise ArgumentError(
                f"from_polars takes a Polars DataFrame or LazyFrame, or a list of them, not {type(frame).__name__}."
            )
        eager = frame.collect() if hasattr(frame, "collect") else frame
        tables.append(pa.table(eager))
    return tables


def from_daft(frame: Any) -> pa.Table:
    """Run a Daft DataFrame, and return its result."""
    if type(frame).__module__.partition(".")[0] != "daft" or not hasattr(frame, "to_arrow"):
        raise ArgumentError(f"from_daft takes a Daft DataFrame, not {type(frame).__name__}.")
    return _storage(frame.to_arrow())


def from_spark(frame: Any) -> pa.Table:
    """Run a Spark DataFrame, and bring its rows here."""
    if type(frame).__module__.partition(".")[0] != "pyspark" or not hasattr(frame, "toPandas"):
        raise ArgumentError(f"from_spark takes a Spark DataFrame, not {type(frame).__name__}.")
    if not hasattr(frame, "toArrow"):
        raise ArgumentError(
            "from_spark needs Spark 4, whose DataFrames have toArrow. With this version, let Spark write Parquet, "
            "df.write.parquet(path), and read that: read_parquet(path)."
        )
    return _storage(frame.toArrow())


def from_huggingface(dataset: Any) -> pa.Table:
    """Take the table of a Hugging Face dataset; one whose rows are chosen or shuffled is copied row by row."""
    if type(dataset).__module__.partition(".")[0] != "datasets":
        raise ArgumentError(f"from_huggingface takes a datasets.Dataset, not {type(dataset).__name__}.")
    if isinstance(dataset, dict):
        splits = ", ".join(map(repr, dataset))
        raise ArgumentError(
            f"from_huggingface takes one dataset, but this has the splits {splits}: give one of them."
        )
    if not hasattr(dataset, "data"):  # an IterableDataset, which has no table
        return _storage(pa.concat_tables(list(_pieces(dataset))))
    if getattr(dataset, "_indices", None) is not None:
        return _storage(dataset.with_format("arrow")[:])
    return _storage(dataset.data.table)


def _pieces(dataset: Any) -> Iterator[pa.Table]:
    try:
        yield from dataset.with_format("arrow").iter(batch_size=1_000)
    except ImportError as error:
        raise MissingLibrary(f"from_huggingface could not read this dataset: {error}") from error


def _storage(table: pa.Table) -> pa.Table:
    """Turn other libraries' tensor types into ours, and other extension types into what they are stored as."""
    return with_tensors(table.replace_schema_metadata(None), others=True)


def with_tensors(table: pa.Table, *, others: bool = False) -> pa.Table:
    """Turn other libraries' tensor types into ours; ``others``: and extension types into what they are stored as."""
    for i, field in enumerate(table.schema):
        type_ = field.type
        if not isinstance(type_, pa.BaseExtensionType) or isinstance(
            type_, (pa.FixedShapeTensorType, RaggedTensorType)
        ):
            continue
        if others or hasattr(type_, "shape"):
            column = one_array(table.column(i))
            result = _tensors(column) if hasattr(type_, "shape") else column.storage
            table = table.set_column(i, field.name, result)
    return table


def _tensors(column: pa.Array) -> pa.Array:
    """Make a column of tensors of one shape, whose values lie in one buffer."""
    shape = [size for size in column.type.shape if size is not None]
    values = column.storage
    if len(shape) == len(column.type.shape) and not column.null_count:
        while is_list_like(values.type):
            values = values.flatten()
        for size in reversed(shape):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values
    try:
        return column_from(column.to_pylist())
    except ConversionError as error:
        raise ArgumentError(f"Tensors of type {column.type} cannot become a column: {error}.") from error


# ---------------------------------------------------------------- to PyTorch


@dataclass(frozen=True, slots=True)
class Tensors:
    """How a batch becomes tensors: of which dtypes, where they go, or by which function of the user's."""

    dtypes: Any = None
    device: Any = "auto"
    collate_fn: Callable[[dict[str, np.ndarray[Any, Any]]], Any] | None = None
    pin_memory: bool = False

    @property
    def batch_format(self) -> Literal["numpy", "tensors"]:
        """In which form batches come: a ``collate_fn`` is promised columns as they are."""
        return "tensors" if self.collate_fn is None else "numpy"

    def check(self) -> None:
        """Raise ``ArgumentError`` for what PyTorch cannot do here, and ``MissingLibrary`` where it is not."""
        torch = library("iter_torch_batches", "torch")
        if self.collate_fn is not None and self.dtypes is not None:
            raise ArgumentError(
                "iter_torch_batches: give either collate_fn= or dtypes=; collate_fn makes the tensors."
            )
        dtypes = self.dtypes.values() if isinstance(self.dtypes, Mapping) else [self.dtypes]
        for dtype in dtypes:
            if dtype is not None and not isinstance(dtype, torch.dtype):
                raise ArgumentError(
                    f"iter_torch_batches: dtypes={self.dtypes!r}; give a torch.dtype such as torch.float32, or a "
                    "dict of them by column."
                )
        for option, tried in (("device", self._place), ("pin_memory", "cpu" if self.pin_memory else None)):
            if tried is not None:
                _check(torch, option, getattr(self, option), tried)

    def over(self, batches: Iterator[dict[str, np.ndarray[Any, Any]]]) -> Generator[Any, None, None]:
        """Turn each batch into a dict of tensors that own their memory, or into what ``collate_fn`` makes of it."""
        torch = library("iter_torch_batches", "torch")
        for batch in batches:
            if self.collate_fn is not None:
                yield _moved(torch, self.collate_fn(batch), self._place)
                continue
            result = {name: _tensor(torch, name, array, self._dtype(name)) for name, array in batch.items()}
            if self.pin_memory:
                result = {
                    name: [each.pin_memory() for each in tensor]
                    if isinstance(tensor, list)
                    else tensor.pin_memory()
                    for name, tensor in result.items()
                }
            yield _moved(torch, result, self._place)

    @property
    def _place(self) -> Any:
        return None if self.device in ("auto", None) else self.device

    def _dtype(self, name: str) -> Any:
        return self.dtypes.get(name) if isinstance(self.dtypes, Mapping) else self.dtypes


def iterable_dataset(batches: Any) -> Any:
    """Make a ``torch.utils.data.IterableDataset`` of batches that can be iterated over again and again."""
    data = library("to_torch", "torch").utils.data

    class Batches(data.IterableDataset):  # type: ignore[misc, name-defined]
        """The batches of a dataset, as PyTorch's loaders want them."""

        def __iter__(self) -> Iterator[Any]:
            if data.get_worker_info() is not None:
                raise ArgumentError(
                    "to_torch: each worker of a DataLoader would run the plan again, and yield all of its rows. "
                    "Leave num_workers at 0: the dataset's own workers run ahead of the reader."
                )
            return iter(batches)

        def __len__(self) -> int:
            return len(batches)

    return Batches()


def _check(torch: Any, option: str, given: Any, device: Any) -> None:
    """Try it with a tensor of one number, as a device may be known to PyTorch and not be there."""
    try:
        tensor = torch.zeros(1, device=device)
        if option == "pin_memory":
            tensor.pin_memory()
    except (AssertionError, NotImplementedError, RuntimeError, TypeError, ValueError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ArgumentError(
            f"iter_torch_batches({option}={given!r}): PyTorch cannot do this here: {reason}"
        ) from error


def _tensor(torch: Any, name: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    if array.dtype == object and len(array) and all(_is_ragged(each) for each in array):
        return [_tensor(torch, name, each, dtype) for each in array]
    if array.dtype.kind not in "biuf":
        held = (
            "lists of different lengths, texts, bytes or nulls" if array.dtype == object else str(array.dtype)
        )
        raise ArgumentError(
            f"iter_torch_batches: column {name!r} holds {held}, which cannot become a tensor. Choose columns with "
            "select_columns, or convert batches with collate_fn=."
        )
    tensor = torch.from_numpy(np.array(array))  # a copy: tensors are written to
    return tensor if dtype is None else tensor.to(dtype)


def _is_ragged(value: Any) -> bool:
    """Say whether a value is one of a column of ragged tensors, which have two axes or more."""
    return isinstance(value, np.ndarray) and value.ndim > 1


def _moved(torch: Any, value: Any, device: Any) -> Any:
    """Move tensors to a device, those in dicts, lists and tuples too."""
    if device is None:
        return value
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: _moved(torch, each, device) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([_moved(torch, each, device) for each in value])
    return value


# ---------------------------------------------------------------- from PyTorch


def from_torch(dataset: Any, names: Sequence[str] | None) -> pa.Table:
    """Read a PyTorch dataset item by item; the tensors of a ``TensorDataset`` are read whole."""
    library("from_torch", "torch")
    tensors = getattr(dataset, "tensors", None)
    try:
        if isinstance(tensors, tuple) and tensors and type(dataset).__name__ == "TensorDataset":
            columns = {name: column_from(_array(each)) for name, each in _named(tensors, names).items()}
            return pa.Table.from_pydict(columns)
        rows = [_row(item, names) for item in _items(dataset)]
        batch = from_rows(rows) if rows else from_columns({name: [] for name in names or ["item"]})
        return pa.Table.from_batches([batch])
    except ConversionError as error:
        raise ArgumentError(f"from_torch cannot make columns of these items: {error}.") from error


def _items(dataset: Any) -> Iterator[Any]:
    if hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"):
        return (dataset[i] for i in range(len(dataset)))
    if hasattr(dataset, "__iter__"):
        return iter(dataset)
    raise ArgumentError(f"from_torch takes a dataset of PyTorch, not {type(dataset).__name__}.")


def _row(item: Any, names: Sequence[str] | None) -> dict[str, Any]:
    if isinstance(item, Mapping):
        return {str(name): _array(value) for name, value in item.items()}
    parts = tuple(item) if isinstance(item, (tuple, list)) else (item,)
    return {name: _array(value) for name, value in _named(parts, names).items()}


def _named(parts: Sequence[Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Name the parts of an item: ``item``, or ``item_0``, ``item_1``, … if there are several."""
    if names is None:
        names = ["item"] if len(parts) == 1 else [f"item_{i}" for i in range(len(parts))]
    if len(names) != len(parts):
        raise ArgumentError(f"from_torch got {len(names)} names in columns= for items of {len(parts)} parts.")
    return dict(zip(names, parts, strict=True))


def _array(value: Any) -> Any:
    """Return a tensor's memory as an array; a number of no axes as that number."""
    if not hasattr(value, "detach"):
        return np.asarray(value) if hasattr(value, "__array_interface__") else value
    array = value.detach().cpu().numpy()
    return array if array.ndim else array.item()


# ---------------------------------------------------------------- TensorFlow

Batch = Mapping[str, np.ndarray[Any, Any]]


def tf_batches(tf: Any, batches: Iterator[Batch], dtypes: Any) -> Generator[dict[str, Any], None, None]:
    """Turn each batch into a dict of tensors of ``tf``."""
    for batch in batches:
        yield {
            name: _tf_tensor(tf, name, array, dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes)
            for name, array in batch.items()
        }


def _tf_tensor(tf: Any, name: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
    try:
        return tf.convert_to_tensor(array.tolist() if array.dtype == object else array, dtype)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"iter_tf_batches: column {name!r} cannot become a tensor: {error}. Choose columns with select_columns."
        ) from error


def tf_dataset(
    iterate: Callable[[], Iterator[Batch]],
    schema: Any,
    features: str | Sequence[str],
    labels: str | Sequence[str],
    more: str | Sequence[str] | None,
) -> Any:
    """Make a ``tf.data.Dataset`` of (features, labels) or (features, labels, more), which runs the plan each time."""
    tf = library("to_tf", "tensorflow", "keras")
    groups = [features, labels] if more is None else [features, labels, more]

    def batches() -> Iterator[tuple[Any, ...]]:
        for batch in iterate():
            yield tuple(_grouped(group, lambda name: batch[name]) for group in groups)  # noqa: B023 - used at once

    spec = tuple(_grouped(group, lambda name: _spec(tf, name, schema)) for group in groups)
    return tf.data.Dataset.from_generator(batches, output_signature=spec)


def _grouped(names: str | Sequence[str], of: Callable[[str], Any]) -> Any:
    return of(names) if isinstance(names, str) else {name: of(name) for name in names}


def _spec(tf: Any, name: str, schema: Any) -> Any:

    if name not in schema.names:
        raise unknown_column("to_tf", name, schema.names)
    type_, shape = schema.field(name).type, [None]
    if isinstance(type_, pa.FixedShapeTensorType):
        type_, shape = type_.value_type, [None, *type_.shape]
    while is_list_like(type_):
        shape.append(getattr(type_, "list_size", None))
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_):
        return tf.TensorSpec(shape, tf.string)
    if pa.types.is_boolean(type_):
        return tf.TensorSpec(shape, tf.bool)
    if type_ not in NUMPY_OF:
        raise ArgumentError(f"to_tf: column {name!r} of type {type_} cannot become a tensor of one shape.")
    return tf.TensorSpec(shape, tf.as_dtype(NUMPY_OF[type_]))

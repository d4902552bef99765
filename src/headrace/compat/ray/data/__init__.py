"""Ray's ``ray.data``: the verbs of ``headrace.Dataset``."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Unpack

import headrace
from headrace.annex.queries.grouped import distinct_names
from headrace.compat.ray.calls import get, put
from headrace.compat.ray.data import aggregate as aggregate
from headrace.compat.ray.data import block as block
from headrace.compat.ray.data import datasource as datasource
from headrace.compat.ray.data import expressions as expressions
from headrace.compat.ray.data import preprocessors as preprocessors
from headrace.compat.ray.data.arguments import (
    ITERATORS,
    PLACED,
    WRITERS,
    FileShuffleConfig,
    adding,
    in_blocks,
    iterating,
    placed,
    reading,
    torch_pairs,
    write_sql,
)
from headrace.compat.ray.data.block import Schema
from headrace.compat.ray.data.context import CheckpointConfig as CheckpointConfig
from headrace.compat.ray.data.context import DataContext
from headrace.compat.ray.data.context import ExecutionOptions as ExecutionOptions
from headrace.compat.ray.data.context import ExecutionResources as ExecutionResources
from headrace.compat.ray.data.datasource import BlockBasedFileDatasink as BlockBasedFileDatasink
from headrace.compat.ray.data.datasource import Datasink as Datasink
from headrace.compat.ray.data.datasource import Datasource as Datasource
from headrace.compat.ray.data.datasource import ReadTask as ReadTask
from headrace.compat.ray.data.datasource import RowBasedFileDatasink as RowBasedFileDatasink
from headrace.compat.ray.data.shown import shown
from headrace.compat.ray.offered import names_of_headrace, parts_of
from headrace.compat.ray.predictors import Preprocessor as Preprocessor
from headrace.compat.ray.session import without_counted_gpus
from headrace.core.arguments import known_arguments, unframed
from headrace.core.human import row_text
from headrace.core.terminal import say
from headrace.errors import ArgumentError
from headrace.plan.compile import columns_at
from headrace.plan.parameters import given_batch_size, given_rows
from headrace.plan.ray_arguments import STEPS
from headrace.plan.verb_options import WorkerOptions

_STRATEGIES = ("ActorPoolStrategy", "TaskPoolStrategy")
_READERS = {name: name for name in headrace.__all__ if name.startswith(("read_", "from_", "range"))} | {
    "read_videos": "read_video"
}

_OWN = (
    "CheckpointConfig", "DataContext", "Dataset", "Datasink", "Datasource", "ExecutionOptions",
    "ExecutionResources", "FileShuffleConfig", "MaterializedDataset", "SaveMode", "Schema", "expressions",
    "from_arrow_refs", "from_blocks", "from_numpy_refs", "from_pandas_refs", "read_datasource",
)  # fmt: skip

__all__ = sorted((*_OWN, *_STRATEGIES, *_READERS))


class SaveMode(str, Enum):  # noqa: UP042 - as in Ray: str() gives the name
    """Ray's names of what a writer does with an output that is there; ``mode=`` takes the words, too."""

    CREATE = "create"
    APPEND = "append"
    OVERWRITE = "overwrite"
    IGNORE = "ignore"
    ERROR = "error"
    UPSERT = "upsert"


class Dataset(headrace.Dataset):
    """A dataset of Headrace, with what only programs for Ray Data need."""

    __slots__ = ("_block_rows", "_blocks", "_found", "name")

    @unframed
    def __init__(self, plan: Any = None, options: Any = None) -> None:
        super().__init__(plan, options)
        self._found: Any = None  # the schema, once somebody asked for it
        self.name: str | None = None
        self._blocks = 0  # how many there are to be once it is in memory; 0: any number
        self._block_rows: int | None = None  # or how many rows a block has

    @property
    def context(self) -> DataContext:
        """The settings, which are the same for all datasets."""
        return DataContext.get_current()

    def set_name(self, name: str | None) -> None:
        """Give it a name, which has no effect; ``name`` is it."""
        self.name = name

    _set_name = set_name

    def __repr__(self) -> str:
        return shown(self, isinstance(self, MaterializedDataset))

    __str__ = __repr__

    @staticmethod
    def copy(ds: Any, *_: Any, **__: Any) -> Any:
        """Return the dataset: none ever changes."""
        return ds

    def with_step(self, step: Any) -> Any:
        """Return this dataset with one more step. GPUs that ``ray.init`` only counts are not asked for."""
        return self._blocks_of(super().with_step(without_counted_gpus(step)))

    def _blocks_of(self, made: Any) -> Any:
        made._blocks, made._block_rows = self._blocks, self._block_rows
        return made

    def with_column(self, column_name: str, expr: Any, **options: Any) -> Any:
        """Add a column, by an expression of ``ray.data.expressions``; see ``headrace.Dataset.with_column``."""
        if isinstance(expr, (expressions.Computed, expressions.Download)):
            options["batch_format"] = "pyarrow"
        return super().with_column(column_name, expr, **options)

    def iter_internal_ref_bundles(self) -> Iterator[RefBundle]:
        """Run the plan, and yield what came: ``num_rows()`` and ``size_bytes()`` of each block."""
        for table in self.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield RefBundle(table)

    def get_internal_block_refs(self) -> list[Any]:
        """Run the plan, and return references to tables."""
        return [put(table) for table in self.iter_batches(batch_size=None, batch_format="pyarrow")]

    to_arrow_refs = get_internal_block_refs

    def to_pandas_refs(self) -> list[Any]:
        """Run the plan, and return references to DataFrames."""
        return [put(frame) for frame in self.iter_batches(batch_size=None, batch_format="pandas")]

    def to_numpy_refs(self, *, column: str | None = None) -> list[Any]:
        """Run the plan, and return references to dicts of arrays, or to arrays of ``column``."""
        batches = self.iter_batches(batch_size=None)
        return [put(batch if column is None else batch[column]) for batch in batches]

    def write_datasink(self, datasink: Any, **others: Any) -> None:
        """Write the rows by a ``Datasink`` of yours; see ``ray.data.datasource``."""
        if not isinstance(datasink, datasource.Datasink):
            raise ArgumentError(
                f"write_datasink({datasink!r}): it takes an object of a subclass of Datasink."
            )
        datasink._take(self)

    write_sql = write_sql  # type: ignore[assignment]

    def streaming_split(self, n: int, *, equal: bool = False, **_: Any) -> list[Any]:
        """Return ``split(n)``: datasets, each of which may be read by an actor of its own."""
        return list(self.split(n, equal=equal))

    @known_arguments
    def train_test_split(
        self,
        test_size: float,
        *,
        shuffle: bool = False,
        seed: int | None = None,
        stratify: str | None = None,
    ) -> Any:
        """Return two datasets, the last rows to test with; with ``shuffle`` in a random order, as Ray divides them.

        ``headrace.Dataset.train_test_split`` divides by a hash instead, in one pass; so does ``stratify``.
        """
        if stratify is not None:
            return super().train_test_split(test_size, seed=seed, stratify=stratify)
        rows = self.random_shuffle(seed=seed) if shuffle else self
        if isinstance(test_size, int) and not isinstance(test_size, bool):
            count = self.count()
            if not 0 < test_size < count:
                raise ArgumentError(f"test_size={test_size}: it is a part of the {count} rows, above 0.")
            return rows.split_at_indices([count - test_size])
        return rows.split_proportionately([1 - test_size])

    def random_shuffle(self, *, seed: Any = None, **others: Any) -> Any:
        """Return the rows in an order of chance, if there are any; ``seed`` may be a ``RandomSeedConfig``, too."""
        if not self.columns():
            return self
        return super().random_shuffle(seed=getattr(seed, "seed", seed), **others)

    def random_sample(self, fraction: float, *, seed: Any = None) -> Any:
        """Return about such a share of the rows; ``seed`` as for ``random_shuffle``."""
        return super().random_sample(fraction, seed=getattr(seed, "seed", seed))

    def sort(self, key: Any = None, descending: Any = False, boundaries: Any = None) -> Any:
        """Return the rows in order, if there are any columns; ``boundaries`` of blocks make no difference."""
        return super().sort(key, descending) if self.columns() else self

    def select_columns(self, cols: Any, **options: Any) -> Any:
        """Return rows with these columns only; they may be none."""
        none = isinstance(cols, list) and not cols
        return self.drop_columns(self.columns()) if none else super().select_columns(cols, **options)

    def repartition(
        self, num_blocks: int | None = None, target_num_rows_per_block: int | None = None, **options: Any
    ) -> Any:
        """Return the same rows; ``materialize`` makes so many blocks of them. ``keys=`` and ``shuffle=`` as ever.

        ``target_num_rows_per_block`` is how many rows functions and iterators get where ``batch_size`` is None.
        """
        made = self
        if num_blocks is not None or options or target_num_rows_per_block is None:
            made = super().repartition(num_blocks, target_num_rows_per_block, **options)
        made = Dataset(made._plan, made._options)
        made._blocks = num_blocks or 0
        if target_num_rows_per_block is not None:
            made._block_rows = given_batch_size(target_num_rows_per_block)
        return made

    def std(self, on: Any = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        """Return a column's standard deviation; of one value it is NaN, as in Ray, and None only of none."""
        found = super().std(on, ddof, ignore_nulls)
        if found is None and ignore_nulls and self.max(on) is not None:
            return float("nan")
        return found

    def randomize_block_order(self, *, seed: int | None = None) -> Any:
        """Return ``random_shuffle``: rows in an order of chance, and not only blocks."""
        return self.random_shuffle(seed=seed)

    def groupby(self, key: Any, num_partitions: int | None = None) -> Any:
        """Return the rows in groups, which take an ``AggregateFn`` of yours, too."""
        made = super().groupby(key, num_partitions)
        return aggregate.GroupedData(made._dataset, made._keys, made._schema)

    def aggregate(self, *aggs: Any) -> dict[str, Any]:
        """Return numbers about all rows, by name."""
        if not aggregate.are_own(aggs):
            return super().aggregate(*aggs)
        tables = list(self.iter_batches(batch_size=None, batch_format="pyarrow")) if len(aggs) > 1 else None
        batches = tables or self.iter_batches(batch_size=None, batch_format="pyarrow")
        names = distinct_names((), aggs)
        return dict(zip(names, (each.of(None, batches) for each in aggs), strict=True))

    def with_columns(self, exprs: Mapping[str, Any]) -> Any:
        """Add columns by expressions: ``with_column`` for each."""
        for name, expr in exprs.items():
            self = self.with_column(name, expr)
        return self

    @known_arguments
    def schema(self, fetch_if_missing: bool = True) -> Any:
        """Return the schema; None if ``fetch_if_missing=False``, and only running the functions tells."""
        if self._found is None and (fetch_if_missing or self._tells_columns()):
            self._found = Schema(super().schema(), self._is_of_frames())
        return self._found

    @known_arguments
    def columns(self, fetch_if_missing: bool = True) -> Any:
        """Return the names of the columns; ``fetch_if_missing`` as in ``schema``."""
        found = self.schema(fetch_if_missing=fetch_if_missing)
        return None if found is None else list(found.names)

    def to_tf(self, feature_columns: Any, label_columns: Any, **options: Any) -> Any:
        """Return a ``tf.data.Dataset``; tensors have the dtypes of ``feature_type_spec`` and its like, if given."""
        kinds = ("feature_type_spec", "label_type_spec", "additional_type_spec")
        specs = [options.pop(name, None) for name in kinds]
        found = super().to_tf(feature_columns, label_columns, **options)
        if not any(spec is not None for spec in specs):
            return found
        return found.map(lambda *parts: tuple(map(_as_specified, parts, specs)))

    def to_torch(
        self,
        *,
        label_column: str | None = None,
        feature_columns: Any = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
        **options: Any,
    ) -> Any:
        """Return an ``IterableDataset`` of PyTorch, of pairs: the features, and the label or None."""
        dtypes, upright = (
            (feature_column_dtypes, label_column_dtype),
            (unsqueeze_feature_tensors, unsqueeze_label_tensor),
        )
        how = {"batch_size": 1, **options}
        return torch_pairs(self, label_column, feature_columns, dtypes, upright, **how)

    def _is_of_frames(self) -> bool:
        return getattr(self._plan.source, "kind", "") == "from_pandas" and self._tells_columns()

    def _tells_columns(self) -> bool:
        """Return whether the columns are known without calling functions of the user's."""
        return None not in columns_at(self._plan.steps, self._plan.source.known_schema())

    @known_arguments(also=STEPS, options=WorkerOptions)
    def add_column(
        self,
        col: str,
        fn: Callable[..., Any],
        *,
        batch_format: Any = "pandas",
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Add the column ``col`` by a function of each batch: ``with_column`` by Ray's other name."""
        if not callable(fn) or isinstance(fn, type):
            raise ArgumentError(f"add_column({col!r}, {fn!r}): it takes a function of a batch.")
        return self.with_column(col, fn, batch_format=batch_format, **options)

    @known_arguments
    def show(self, limit: int = 20) -> None:
        """Print the first ``limit`` rows, one dict per line; the middle of long values is left out."""
        for row in self.take(given_rows("show", "limit", limit)):
            say(row_text(row), sys.stdout)

    @known_arguments
    def iterator(self) -> DataIterator:
        """Return the same dataset, which prints as Ray's iterators do."""
        return DataIterator(self._plan, self._options)

    @known_arguments
    def materialize(self) -> Any:
        """Run the plan, and return a dataset of its rows, which are in memory from now on."""
        found = super().materialize()
        made = MaterializedDataset(in_blocks(found._plan, self._blocks, self._block_rows), found._options)
        made._last_report = found._last_report
        made._found = Schema(headrace.Dataset.schema(made), self._is_of_frames())
        return made


def _as_specified(part: Any, spec: Any) -> Any:
    """Return tensors of the dtypes and shapes of ``tf.TensorSpec``s."""
    import tensorflow as tf

    if spec is None:
        return part
    if isinstance(part, Mapping):
        return {name: _as_specified(each, spec[name]) for name, each in part.items()}
    return tf.ensure_shape(tf.cast(part, spec.dtype), spec.shape)


class MaterializedDataset(Dataset):
    """Ray's name for a dataset whose rows are in memory, as ``materialize`` and ``from_*`` make it."""

    __slots__ = ()

    def with_step(self, step: Any) -> Any:
        """Return a dataset that runs the step when it is looked at."""
        return self._blocks_of(Dataset(self._plan, self._options)).with_step(step)

    def num_blocks(self) -> int:
        """Return how many batches it has in memory."""
        return sum(1 for _ in self.iter_batches(batch_size=None))


class DataIterator(Dataset):
    """What ``iterator()`` returns."""

    __slots__ = ()

    def __repr__(self) -> str:
        return f"DataIterator({shown(self, False)})"

    __str__ = __repr__


@dataclass(frozen=True)
class RefBundle:
    """A block of rows, as ``iter_internal_ref_bundles`` counts them."""

    table: Any

    def num_rows(self) -> int:
        """How many rows there are."""
        return int(self.table.num_rows)

    def size_bytes(self) -> int:
        """How many bytes they take."""
        return int(self.table.nbytes)

    @property
    def block_refs(self) -> list[Any]:
        """A reference to the rows."""
        return [put(self.table)]

    @property
    def blocks(self) -> tuple[Any, ...]:
        """The reference, and what is known of its rows."""
        known = block.BlockMetadata(self.num_rows(), self.size_bytes(), schema=self.table.schema)
        return tuple(block.BlockEntry(ref, known) for ref in self.block_refs)


def _of_references(reader: str, verb: str) -> Callable[..., Dataset]:
    def made(refs: Any, **options: Any) -> Dataset:
        return getattr(sys.modules[__name__], verb)(get(refs), **options)  # type: ignore[no-any-return]

    made.__name__ = made.__qualname__ = reader
    made.__doc__ = f"Return ``{verb}`` of what ``ray.get`` gives for a reference, or for a list of them."
    return unframed(made)


@unframed
def from_blocks(blocks: Any) -> Dataset:
    """Return a dataset of tables or of DataFrames, one behind the other: ``from_arrow`` or ``from_pandas`` of them.

    >>> import pyarrow as pa
    >>> from_blocks([pa.table({"x": [1]}), pa.table({"x": [2]})]).take_all()
    [{'x': 1}, {'x': 2}]
    """
    frames = [hasattr(block, "iloc") for block in blocks]
    if any(frames) and not all(frames):
        raise ArgumentError("from_blocks takes tables or DataFrames, not both.")
    verb = "from_pandas" if any(frames) else "from_arrow"
    return getattr(sys.modules[__name__], verb)(list(blocks))  # type: ignore[no-any-return]


from_arrow_refs = _of_references("from_arrow_refs", "from_arrow")
from_numpy_refs = _of_references("from_numpy_refs", "from_numpy")
from_pandas_refs = _of_references("from_pandas_refs", "from_pandas")


datasource.FileShuffleConfig = FileShuffleConfig
for _verb in PLACED:
    setattr(Dataset, _verb, placed(_verb))
for _verb in WRITERS:
    setattr(Dataset, _verb, adding(_verb))
for _verb in ITERATORS:
    setattr(Dataset, _verb, iterating(_verb))


@functools.cache
def _adapted(found: Any) -> Any:
    """Return a reader of Headrace as one that makes datasets of this module; all else as it is."""
    if isinstance(found, type):
        return found
    return reading(found, lambda name: MaterializedDataset if name.startswith("from_") else Dataset)


read_datasource = _adapted(datasource.read_datasource)
DatasetContext = DataContext
RandomSeedConfig = FileShuffleConfig


globals().update(parts_of(__name__))
__getattr__ = names_of_headrace("ray.data", {name: name for name in _STRATEGIES} | _READERS, _adapted)

"""Ray's ``ray.data``: the verbs of ``headrace.Dataset``."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from enum import Enum
from typing import Any, Unpack

import headrace
from headrace.compat.ray.calls import get
from headrace.compat.ray.data import datasource as datasource
from headrace.compat.ray.data import datatype as datatype
from headrace.compat.ray.data import expressions as expressions
from headrace.compat.ray.data import extensions as extensions
from headrace.compat.ray.data import preprocessors as preprocessors
from headrace.compat.ray.data.context import DataContext
from headrace.compat.ray.data.context import ExecutionOptions as ExecutionOptions
from headrace.compat.ray.data.pairs import Pairs
from headrace.compat.ray.data.schema import Schema
from headrace.compat.ray.offered import names_of_headrace
from headrace.core.arguments import known_arguments, unframed
from headrace.core.files.storage import storage_at
from headrace.core.human import row_text
from headrace.core.terminal import say
from headrace.errors import ArgumentError
from headrace.plan.compile import columns_at
from headrace.plan.parameters import given_rows
from headrace.plan.ray_arguments import ITERATE, STEPS
from headrace.plan.step_options import WorkerOptions

_STRATEGIES = ("ActorPoolStrategy", "TaskPoolStrategy")
_READERS = {name: name for name in headrace.__all__ if name.startswith(("read_", "from_", "range"))} | {
    "read_videos": "read_video"
}

_OWN = (
    "DataContext",
    "Dataset",
    "ExecutionOptions",
    "MaterializedDataset",
    "SaveMode",
    "Schema",
    "expressions",
    "from_arrow_refs",
    "from_blocks",
    "from_numpy_refs",
    "from_pandas_refs",
)

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

    __slots__ = ("_found",)

    @unframed
    def __init__(self, plan: Any = None, options: Any = None) -> None:
        super().__init__(plan, options)
        self._found: Any = None  # the schema, once somebody asked for it

    @known_arguments
    def schema(self, fetch_if_missing: bool = True) -> Any:
        """Return the schema. Where only running the functions tells, ``fetch_if_missing=False`` gives None instead.

        >>> from headrace.compat import ray
        >>> ray.data.range(3).map(lambda row: row).schema(fetch_if_missing=False) is None
        True
        """
        if self._found is None and (fetch_if_missing or self._tells_columns()):
            self._found = Schema(super().schema())
        return self._found

    @known_arguments
    def columns(self, fetch_if_missing: bool = True) -> Any:
        """Return the names of the columns; ``fetch_if_missing`` as in ``schema``."""
        found = self.schema(fetch_if_missing=fetch_if_missing)
        return None if found is None else list(found.names)

    @known_arguments(also=ITERATE)
    def to_torch(  # type: ignore[override]
        self,
        *,
        label_column: str | None = None,
        feature_columns: Any = None,
        label_column_dtype: Any = None,
        feature_column_dtypes: Any = None,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
        unsqueeze_label_tensor: bool = True,
        unsqueeze_feature_tensors: bool = True,
    ) -> Any:
        """Return an ``IterableDataset`` of pairs as Ray's ``to_torch`` yields them: features, and the label or None.

        Columns of shape (n,) stand side by side in a tensor of shape (n, columns); ``feature_columns`` may also be a
        list of lists or a dict of lists of names, for several tensors.

        >>> import pytest
        >>> torch = pytest.importorskip("torch")
        >>> from headrace.compat import ray
        >>> rows = ray.data.from_items([{"x": 1.0, "z": 2.0, "y": 0}])
        >>> next(iter(rows.iterator().to_torch(label_column="y")))
        (tensor([[1., 2.]], dtype=torch.float64), tensor([[0]]))
        """
        pairs = Pairs(
            label_column,
            feature_columns,
            label_column_dtype,
            feature_column_dtypes,
            unsqueeze_label_tensor,
            unsqueeze_feature_tensors,
        )
        return super().to_torch(
            batch_size=batch_size,
            collate_fn=pairs.of,
            drop_last=drop_last,
            local_shuffle_buffer_size=local_shuffle_buffer_size,
            local_shuffle_seed=local_shuffle_seed,
        )

    def _tells_columns(self) -> bool:
        """Return whether the columns are known without calling functions of the user's."""
        return None not in columns_at(self._plan.steps, self._plan.source.schema())

    @known_arguments(also=STEPS, options=WorkerOptions)
    def add_column(
        self,
        col: str,
        fn: Callable[..., Any],
        *,
        batch_format: Any = "pandas",
        **options: Unpack[WorkerOptions],
    ) -> Any:
        """Add the column ``col`` by a function of each batch: ``with_column`` by Ray's other name.

        >>> from headrace.compat import ray
        >>> ray.data.range(2).add_column("double", lambda frame: frame["id"] * 2).take_all()
        [{'id': 0, 'double': 0}, {'id': 1, 'double': 2}]
        """
        if not callable(fn) or isinstance(fn, type):
            raise ArgumentError(f"add_column({col!r}, {fn!r}): it takes a function of a batch.")
        return self.with_column(col, fn, batch_format=batch_format, **options)

    @known_arguments
    def show(self, limit: int = 20) -> None:
        """Print the first ``limit`` rows, one dict per line; the middle of long values is left out.

        >>> from headrace.compat import ray
        >>> ray.data.range(3).show(1)
        {'id': 0}
        """
        for row in self.take(given_rows("show", "limit", limit)):
            say(row_text(row), sys.stdout)

    @known_arguments
    def iterator(self) -> Dataset:
        """Return this dataset: in Ray Data, another object iterates.

        >>> from headrace.compat import ray
        >>> [batch["id"].tolist() for batch in ray.data.range(3).iterator().iter_batches(batch_size=2)]
        [[0, 1], [2]]
        """
        return self

    @known_arguments
    def materialize(self) -> Any:
        """Run the plan, and return a dataset of its rows, which are in memory from now on."""
        found = super().materialize()
        made = MaterializedDataset(found._plan, found._options)
        made._last_report = found._last_report
        return made


class MaterializedDataset(Dataset):
    """Ray's name for a dataset whose rows are in memory, as ``materialize`` and ``from_*`` make it; only a name.

    >>> from headrace.compat import ray
    >>> isinstance(ray.data.range(3), ray.data.MaterializedDataset)
    False
    """

    __slots__ = ()

    def with_step(self, step: Any) -> Any:
        """Return a dataset that runs the step when it is looked at."""
        return Dataset(self._plan.then(step), self._options)


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


def _with_extensions(source: Any, extensions: Any) -> None:
    """Have a source read only files whose names end so: ``file_extensions=["jpg", "png"]``."""
    given = [extensions] if isinstance(extensions, str) else list(extensions)
    if not given or not all(isinstance(each, str) and each.strip(".") for each in given):
        raise ArgumentError(f"file_extensions={extensions!r}: give a list such as ['jpg', 'png'].")
    source.only_extensions(tuple(f".{each.lstrip('.').lower()}" for each in given))


def _existing(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a reader's arguments without the paths behind which nothing is: ``ignore_missing_paths=True``."""
    paths = args[0] if args else kwargs.get("paths")
    listed = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths or ())
    found = [path for path in listed if storage_at(os.fspath(path)).may_match()]
    kept = found or listed  # with none left, the reader says what is missing
    return ((kept, *args[1:]), kwargs) if args else (args, {**kwargs, "paths": kept})


@functools.cache
def _adapted(found: Any) -> Any:
    """Return a reader of Headrace as one that makes datasets of this module; all else as it is."""
    if isinstance(found, type):
        return found

    @functools.wraps(found)
    def reader(*args: Any, **kwargs: Any) -> Dataset:
        extensions = kwargs.pop("file_extensions", None)
        if kwargs.pop("ignore_missing_paths", False):
            args, kwargs = _existing(args, kwargs)
        made = found(*args, **kwargs)
        if extensions is not None:
            _with_extensions(made._plan.source, extensions)
        quiet = {} if DataContext.get_current().enable_progress_bars else {"progress": False}
        kind = MaterializedDataset if found.__name__.startswith("from_") else Dataset
        return kind(made._plan, made._options.updated(quiet))

    return unframed(reader)


__getattr__ = names_of_headrace("ray.data", {name: name for name in _STRATEGIES} | _READERS, _adapted)

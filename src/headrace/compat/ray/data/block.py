"""Tables, schemas, types and columns of tensors, by the names of Ray's ``ray.data.block`` and its neighbours."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import one_batch
from headrace.core.arrow.batch_formats import rows_of, to_numpy
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.arrow.values import column_from

Block = Any  # a table of Arrow or a DataFrame
AggType = AggOutputType = KeyType = T = U = DataBatch = Any  # words of Ray's annotations


@dataclass
class BlockMetadata:
    """What is known of a block before it is read."""

    num_rows: int | None = None
    size_bytes: int | None = None
    input_files: list[str] | None = None
    exec_stats: Any = None
    schema: Any = None
    task_exec_stats: Any = None


class BlockEntry(NamedTuple):
    """A block of a ``RefBundle``."""

    ref: Any
    metadata: BlockMetadata


class BlockAccessor:
    """A table, with Ray's methods.

    >>> import pyarrow as pa
    >>> BlockAccessor.for_block(pa.table({"x": [1, 2]})).num_rows()
    2
    """

    def __init__(self, block: Any) -> None:
        self._table = block

    @classmethod
    def for_block(cls, block: Any) -> BlockAccessor:
        """Return the methods of a table."""
        return block if isinstance(block, BlockAccessor) else cls(block)

    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self._table)

    def size_bytes(self) -> int:
        """How many bytes it takes."""
        return int(self.to_arrow().nbytes)

    def to_arrow(self) -> Any:
        """Return it as a table of Arrow."""
        return pa.Table.from_pandas(self._table) if hasattr(self._table, "iloc") else self._table

    def to_pandas(self) -> Any:
        """Return it as a DataFrame."""
        return self._table if hasattr(self._table, "iloc") else self._table.to_pandas()

    def to_numpy(self, columns: Any = None) -> Any:
        """Return its columns as arrays; that of ``columns`` alone, if it is one name."""
        table = self.to_arrow()
        if isinstance(columns, str):
            return rows_of_column(table.column(columns))
        return {name: rows_of_column(table.column(name)) for name in columns or table.column_names}

    to_batch_format = to_block = to_arrow

    def column_names(self) -> list[str]:
        """Return the names of its columns."""
        return list(self.to_arrow().column_names)

    def schema(self) -> Any:
        """Return the schema."""
        return self.to_arrow().schema

    def count(self, on: str, ignore_nulls: bool = False) -> int | None:
        """Return how many values a column has; nulls and NaN are left out with ``ignore_nulls``."""
        values = self._values(on) if ignore_nulls else self.to_arrow().column(on)
        return len(values)

    def _values(self, on: str) -> Any:
        import pyarrow.compute as pc

        column = self.to_arrow().column(on)
        return column.filter(pc.invert(column.is_null(nan_is_null=True)))

    def _computed(self, name: str, on: str, ignore_nulls: bool = True) -> Any:
        import pyarrow.compute as pc

        values = self._values(on) if ignore_nulls else self.to_arrow().column(on)
        return getattr(pc, name)(values, skip_nulls=False).as_py() if len(values) else None

    def iter_rows(self, public_row_format: bool = True) -> Any:
        """Yield rows as dicts."""
        return iter(rows_of(one_batch(self.to_arrow())))


for _verb in ("sum", "min", "max", "mean"):  # of a column; None for no value, or for a null that counts
    setattr(BlockAccessor, _verb, partialmethod(BlockAccessor._computed, _verb))


def rows_of_column(column: Any) -> Any:
    """Return a column of Arrow as an array."""
    return to_numpy(column.combine_chunks() if hasattr(column, "combine_chunks") else column)


def is_null(value: Any) -> bool:
    """Say whether a value is null or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def _check_pyarrow_version() -> None:
    """Nothing to check: Headrace is installed with the pyarrow that it needs."""


@dataclass
class TaskContext:
    """What a datasink is told of the task that calls it."""

    task_idx: int = 0
    op_name: str = "Write"
    kwargs: dict[str, Any] = field(default_factory=dict)


class DelegatingBlockBuilder:
    """Collects rows, and makes a table of them.

    >>> builder = DelegatingBlockBuilder()
    >>> builder.add({"x": 1})
    >>> builder.build().num_rows
    1
    """

    def __init__(self) -> None:
        self._rows: list[dict[str, Any]] = []

    def add(self, item: dict[str, Any]) -> None:
        """Take a row."""
        self._rows.append(item)

    def build(self) -> Any:
        """Return the rows as a table."""
        names = list(self._rows[0]) if self._rows else []
        columns = []
        for name in names:
            values: Any = [row.get(name) for row in self._rows]
            if all(isinstance(value, np.ndarray) for value in values) and len({v.shape for v in values}) == 1:
                values = np.stack(values)
            columns.append(column_from(values))
        return pa.Table.from_arrays(columns, names)

    def num_rows(self) -> int:
        """How many rows it has."""
        return len(self._rows)


# Ray's ``ray.data.Schema``.


class Schema:
    """Names and types of columns; ``base_schema`` is the Arrow schema, whose methods are here, too.

    >>> from headrace.compat import ray
    >>> print(ray.data.from_items([{"text": "spam", "number": 0}]).schema())
    Column  Type
    ------  ----
    text    string
    number  int64
    """

    def __init__(self, base_schema: pa.Schema, of_frames: bool = False) -> None:
        self.base_schema = base_schema
        self.of_frames = of_frames  # Ray keeps these, and says of their text only that it is text

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.base_schema.names)

    @property
    def types(self) -> list[pa.DataType]:
        """Their Arrow types."""
        wide = pa.large_string() if self.of_frames else None
        return [pa.string() if kind == wide else kind for kind in self.base_schema.types]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "base_schema":
            raise AttributeError(name)
        return getattr(self.base_schema, name)

    def __eq__(self, other: object) -> bool:
        base = other.base_schema if isinstance(other, Schema) else other
        return bool(self.base_schema == base)

    def __hash__(self) -> int:
        return hash(self.base_schema)

    def __repr__(self) -> str:
        wide = max(map(len, (*self.names, "Column")))
        rows = [
            ("Column", "Type"),
            ("------", "----"),
            *zip(self.names, map(shown_type, self.types), strict=True),
        ]
        return "\n".join(f"{name:<{wide}}  {type_}" for name, type_ in rows)


def shown_type(kind: Any) -> str:
    """Return a type's name; those of tensors as Ray names them."""
    shape, inner = [], kind
    while pa.types.is_fixed_size_list(inner):
        shape.append(inner.list_size)
        inner = inner.value_type
    if isinstance(kind, pa.FixedShapeTensorType):
        shape, inner = list(kind.shape), kind.value_type
    if shape:
        return f"ArrowTensorTypeV2(shape={tuple(shape)}, dtype={inner})"
    if isinstance(kind, RaggedTensorType):
        return f"ArrowVariableShapedTensorType(ndim={kind.ndim}, dtype={kind.value_type})"
    return str(kind)


# Ray's ``ray.data.datatype``: types by name, for ``cast``.


@dataclass(frozen=True)
class DataType:
    """An Arrow type by Ray's name.

    >>> DataType.float32().to_arrow_dtype()
    DataType(float)
    >>> DataType.list(DataType.int64()).to_arrow_dtype()
    ListType(list<item: int64>)
    """

    arrow: pa.DataType

    def to_arrow_dtype(self) -> pa.DataType:
        """Return the Arrow type."""
        return self.arrow


_NAMES = "int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 string bool binary"
_TYPES: dict[str, Any] = {
    **{name: partial(pa.type_for_alias, name) for name in _NAMES.split()},
    "from_arrow": lambda arrow_type: arrow_type,
    "from_numpy": pa.from_numpy_dtype,
    "list": lambda value_type, size=-1: pa.list_(value_type.arrow, size),
    "fixed_size_list": lambda value_type, list_size: pa.list_(value_type.arrow, list_size),
    "map": lambda key_type, value_type: pa.map_(key_type.arrow, value_type.arrow),
    "struct": lambda fields: pa.struct([(name, type_.arrow) for name, type_ in fields]),
    "tensor": lambda shape, dtype: pa.fixed_shape_tensor(dtype.arrow, tuple(shape)),
}
for _name, _make in _TYPES.items():  # DataType.int32(), DataType.list(…)
    setattr(
        DataType, _name, staticmethod(lambda *args, _make=_make, **given: DataType(_make(*args, **given)))
    )

"""Ray's ``ray.data.datatype``: types by name, for ``cast``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.compat.ray.offered import missing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["DataType"]

_NAMES = (
    "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float32", "float64", "string",
    "bool", "binary",
)  # fmt: skip


@dataclass(frozen=True)
class DataType:
    """An Arrow type by Ray's name.

    >>> DataType.float32().to_arrow_dtype()
    DataType(float)
    >>> DataType.list(DataType.int64()).to_arrow_dtype()
    ListType(list<item: int64>)
    """

    arrow: pa.DataType

    @classmethod
    def from_arrow(cls, arrow_type: pa.DataType) -> DataType:
        """Return an Arrow type as one of these."""
        return cls(arrow_type)

    @classmethod
    def from_numpy(cls, numpy_dtype: Any) -> DataType:
        """Return the type that NumPy's has in Arrow."""
        import pyarrow as pa

        return cls(pa.from_numpy_dtype(numpy_dtype))

    @classmethod
    def list(cls, value_type: DataType) -> DataType:
        """Return the type of lists."""
        import pyarrow as pa

        return cls(pa.list_(value_type.arrow))

    def to_arrow_dtype(self) -> pa.DataType:
        """Return the Arrow type."""
        return self.arrow


def _named(name: str) -> DataType:
    import pyarrow as pa

    return DataType(pa.type_for_alias(name))


for _name in _NAMES:
    setattr(DataType, _name, staticmethod(partial(_named, _name)))  # DataType.int32()


def __getattr__(name: str) -> Any:
    raise missing("ray.data.datatype", name, __all__)

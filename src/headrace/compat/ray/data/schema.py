"""Ray's ``ray.data.Schema``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


class Schema:
    """Names and types of columns; ``base_schema`` is the Arrow schema, whose methods are here, too.

    >>> from headrace.compat import ray
    >>> print(ray.data.from_items([{"text": "spam", "number": 0}]).schema())
    Column  Type
    ------  ----
    text    string
    number  int64
    """

    def __init__(self, base_schema: pa.Schema) -> None:
        self.base_schema = base_schema

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.base_schema.names)

    @property
    def types(self) -> list[pa.DataType]:
        """Their Arrow types."""
        return list(self.base_schema.types)

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
            *zip(self.names, map(_shown, self.types), strict=True),
        ]
        return "\n".join(f"{name:<{wide}}  {type_}" for name, type_ in rows)


def _shown(kind: Any) -> str:
    """Return a type's name; those of tensors as Ray names them."""
    import pyarrow as pa

    from headrace.core.arrow.ragged import RaggedTensorType

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

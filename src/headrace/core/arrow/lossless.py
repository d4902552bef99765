"""Casts after which every value is what it was, and types that are still open."""

from __future__ import annotations

import pyarrow as pa

from headrace.core.arrow.forms import (
    RaggedTensorType,
    as_fixed,
    as_ragged,
    axes,
    fields_within,
    is_list_like,
    values_type,
    with_fields,
)


def lossless(source: pa.DataType, target: pa.DataType) -> bool:
    """Say whether a value of the one type can mean the same in the other; ``cast`` looks at the values."""
    t = pa.types
    if t.is_null(source) or source.equals(target):
        return True
    if t.is_dictionary(source):
        return bool(source.value_type.equals(target)) or lossless(source.value_type, target)
    if t.is_dictionary(target):
        return lossless(source, target.value_type)
    groups = (
        _is_number,
        lambda x: t.is_string(x) or t.is_large_string(x) or t.is_string_view(x),
        lambda x: t.is_binary(x) or t.is_large_binary(x) or t.is_fixed_size_binary(x) or t.is_binary_view(x),
        lambda x: t.is_date(x) or (t.is_timestamp(x) and x.tz is None),
        lambda x: t.is_timestamp(x) and x.tz is not None,  # an instant is the same in every zone
        t.is_duration,
        t.is_time,
    )
    if any(group(source) and group(target) for group in groups):
        return True
    if axes(source) is not None and axes(source) == axes(target):
        return lossless(source.value_type, target.value_type)
    if is_list_like(source) and is_list_like(target):
        return lossless(source.value_type, target.value_type)
    if t.is_map(source) and t.is_map(target):
        return lossless(source.key_type, target.key_type) and lossless(source.item_type, target.item_type)
    if t.is_struct(source) and t.is_struct(target):
        return bool([f.name for f in source] == [f.name for f in target]) and all(
            lossless(a.type, b.type) for a, b in zip(source, target, strict=True)
        )
    return False


def cast(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast, or raise ``ArrowInvalid`` if a value would not survive."""
    if not lossless(column.type, target):
        raise pa.ArrowInvalid("values of the one type are not values of the other")
    if pa.types.is_null(column.type):  # Arrow does not cast nulls to every type
        return pa.nulls(len(column), target)
    if axes(target) is not None:
        return _tensors(column, target)
    try:
        made = column.cast(target)
    except pa.ArrowInvalid:
        if not column.offset:
            raise
        made = pa.concat_arrays([column]).cast(target)  # it may have been far behind, in more than 2 GiB
    if _may_round(column.type, target) and not same(made.cast(values_type(column.type)), _decoded(column)):
        raise pa.ArrowInvalid("some of its values would be rounded or cut")
    return made


def _tensors(column: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast tensors: to those of one shape if all have it, and to ragged ones whatever theirs is."""
    if isinstance(target, pa.FixedShapeTensorType):
        column = as_fixed(column, target.shape)
        if list(column.type.shape) != list(target.shape):
            raise pa.ArrowInvalid(f"an array has the shape {tuple(column.type.shape)}")
    else:
        column = as_ragged(column)
    return pa.ExtensionArray.from_storage(target, cast(column.storage, target.storage_type))


def common(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return a type that may hold the values of both, as ``cast`` then says; None if there is none.

    Arrays of several shapes get a type whose shapes may differ.

    >>> print(common(pa.int8(), pa.float32()), common(pa.list_(pa.int8(), 2), pa.list_(pa.int8(), 3)))
    float list<item: int8>
    """
    left, right = filled(left, right), filled(right, left)
    if left.equals(right):
        return left
    count = axes(left)
    if count is not None and count == axes(right):
        value = common(left.value_type, right.value_type)
        shapes = {tuple(getattr(type_, "shape", ())) for type_ in (left, right)}
        if value is None or any(getattr(type_, "permutation", None) for type_ in (left, right)):
            return None
        return pa.fixed_shape_tensor(value, *shapes) if len(shapes) == 1 else RaggedTensorType(value, count)
    try:
        pair = [pa.schema([("", left)]), pa.schema([("", right)])]
        return pa.unify_schemas(pair, promote_options="permissive").field(0).type
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError):
        return None


def is_open(type_: pa.DataType) -> bool:
    """Say whether the type leaves something open: it holds, however deep, nothing but nulls so far."""
    return pa.types.is_null(type_) or any(is_open(field.type) for field in fields_within(type_))


def filled(known: pa.DataType, later: pa.DataType) -> pa.DataType:
    """Fill what ``known`` leaves open from a later batch's type, where the two are of one kind."""
    t = pa.types
    if t.is_null(known):
        return later
    if not is_open(known):
        return known
    if t.is_struct(known) and t.is_struct(later):
        new = {field.name: field.type for field in later}
        return pa.struct([f.with_type(filled(f.type, new.get(f.name, f.type))) for f in known])
    if (is_list_like(known) and is_list_like(later)) or (t.is_map(known) and t.is_map(later)):
        pairs = zip(fields_within(known), fields_within(later), strict=True)
        return with_fields(known, [a.with_type(filled(a.type, b.type)) for a, b in pairs])
    return known


def _is_number(type_: pa.DataType) -> bool:
    t = pa.types
    return bool(t.is_integer(type_) or t.is_floating(type_) or t.is_decimal(type_))


def _may_round(source: pa.DataType, target: pa.DataType) -> bool:
    """Say whether only casting back shows that nothing was lost: Arrow checks some casts, not all."""
    t = pa.types
    if t.is_dictionary(source) or t.is_dictionary(target):
        return _may_round(values_type(source), values_type(target))
    if source.equals(target) or t.is_null(source):
        return False
    if _is_number(source) or t.is_temporal(source):
        return True
    inner = zip(fields_within(source), fields_within(target), strict=True)
    return any(_may_round(a.type, b.type) for a, b in inner)


def _decoded(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def same(left: pa.Array, right: pa.Array) -> bool:
    """Say whether two columns hold the same values; NaN is NaN."""
    if left.equals(right):
        return True
    from headrace.core.arrow.same import same as same_rows  # which needs Arrow's functions

    return len(left) == len(right) and bool(same_rows(left, right).all())

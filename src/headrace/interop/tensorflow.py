"""Batches as TensorFlow's tensors, and as a ``tf.data.Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from headrace.core.arrow.batch_formats import NUMPY_OF
from headrace.core.door import library
from headrace.errors import ArgumentError, unknown_column

Batch = Mapping[str, np.ndarray[Any, Any]]


def tf_batches(tf: Any, batches: Iterator[Batch], dtypes: Any) -> Generator[dict[str, Any], None, None]:
    """Turn each batch into a dict of tensors of ``tf``."""
    for batch in batches:
        yield {
            name: _tensor(tf, name, array, dtypes.get(name) if isinstance(dtypes, Mapping) else dtypes)
            for name, array in batch.items()
        }


def _tensor(tf: Any, name: str, array: np.ndarray[Any, Any], dtype: Any) -> Any:
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
    import pyarrow as pa

    if name not in schema.names:
        raise unknown_column("to_tf", name, schema.names)
    type_, shape = schema.field(name).type, [None]
    if isinstance(type_, pa.FixedShapeTensorType):
        type_, shape = type_.value_type, [None, *type_.shape]
    while (
        (fixed := pa.types.is_fixed_size_list(type_))
        or pa.types.is_list(type_)
        or pa.types.is_large_list(type_)
    ):
        shape.append(type_.list_size if fixed else None)
        type_ = type_.value_type
    if pa.types.is_string(type_) or pa.types.is_large_string(type_) or pa.types.is_binary(type_):
        return tf.TensorSpec(shape, tf.string)
    if pa.types.is_boolean(type_):
        return tf.TensorSpec(shape, tf.bool)
    if type_ not in NUMPY_OF:
        raise ArgumentError(f"to_tf: column {name!r} of type {type_} cannot become a tensor of one shape.")
    return tf.TensorSpec(shape, tf.as_dtype(NUMPY_OF[type_]))

"""Ray's ``ray.data.extensions``: columns of tensors, in frames and in tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.compat.ray.offered import missing

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["ArrowTensorArray", "TensorArray"]


class TensorArray:
    """A column of tensors for a DataFrame: an array with one array per row, which is what a tensor is in a cell here.

    >>> import numpy as np
    >>> column = TensorArray(np.zeros((2, 3, 4)))
    >>> column.shape, column[0].shape
    ((2,), (3, 4))
    """

    def __new__(cls, values: Any) -> Any:
        """Return the column; ``values`` is an array of shape (n, k…), or n arrays."""
        column = np.empty(len(values), object)
        for row, value in enumerate(values):
            column[row] = np.asarray(value)
        return column


class ArrowTensorArray:
    """A column of tensors of one shape for a table."""

    @staticmethod
    def from_numpy(array: Any) -> pa.Array:
        """Return Arrow's own column of tensors for an array of shape (n, k…).

        >>> import numpy as np
        >>> ArrowTensorArray.from_numpy(np.zeros((2, 3))).type.shape
        [3]
        """
        import pyarrow as pa

        return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


def __getattr__(name: str) -> Any:
    raise missing("ray.data.extensions", name, __all__)

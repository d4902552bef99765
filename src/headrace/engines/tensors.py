"""How PyTorch's weights travel: each storage is exported once, as a buffer, without a copy.

By itself torch writes every storage into the pickle, so each worker would get weights of its own. Out of band,
they go where numpy's and Arrow's buffers go. Tensors keep torch's own way of saying dtype, shape, strides,
offset and sharing; only the storages that they speak of are replaced.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

Reducer = Callable[[Any], Any]


def reducers() -> dict[type, Reducer]:
    """Return the reducers for torch's storages by type; none as long as torch is not imported."""
    torch = sys.modules.get("torch")
    storage = getattr(torch, "storage", None)
    if torch is None or not hasattr(storage, "TypedStorage") or not hasattr(torch, "frombuffer"):
        return {}
    return {
        torch.Tensor: _reduce_tensor,
        torch.UntypedStorage: _reduce_untyped,
        torch.storage.TypedStorage: _reduce_typed,
    }


def _reduce_tensor(tensor: Any) -> Any:
    """Reduce as torch does, and mend what it gets wrong: dtypes such as float8 are made again from a typed
    storage, but given as one without a type."""
    import torch

    function, args, *rest = tensor.__reduce_ex__(5)
    if function is torch._utils._rebuild_tensor_v3 and isinstance(args[0], torch.UntypedStorage):
        args = (_typed(args[0], torch.uint8), *args[1:])
    return (function, args, *rest)


def _reduce_typed(storage: Any) -> Any:
    """Reduce a storage that knows its dtype to the one without, which pickle knows again by its identity."""
    untyped = storage._untyped_storage
    if untyped.device.type != "cpu":
        return storage.__reduce__()
    return _typed, (untyped, storage.dtype)


def _reduce_untyped(storage: Any) -> Any:
    import torch

    if storage.device.type != "cpu":
        return storage.__reduce__()
    if not storage.nbytes():
        return torch.UntypedStorage, (0,)
    flat = torch.empty(0, dtype=torch.uint8).set_(storage)
    return _untyped, (pickle.PickleBuffer(flat.numpy()),)


def _typed(untyped: Any, dtype: Any) -> Any:
    import torch

    return torch.storage.TypedStorage(wrap_storage=untyped, dtype=dtype, _internal=True)


def _untyped(buffer: Any) -> Any:
    import torch

    with warnings.catch_warnings():  # what is small came in band, as bytes that nobody else can see
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        return torch.frombuffer(buffer, dtype=torch.uint8).untyped_storage()

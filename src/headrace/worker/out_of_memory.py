"""Out of memory: how such errors are recognised, and how memory is released."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
import traceback
from typing import Any

from headrace.core.failures import class_name, library_of, words

_CLASSES = frozenset({"MemoryError", "OutOfMemoryError", "OutOfMemoryException", "ResourceExhaustedError"})
_LIBRARIES = frozenset(
    {"catboost", "cupy", "jax", "jaxlib", "lightgbm", "onnxruntime", "tensorflow", "torch", "xgboost"}
)
_WORDS = re.compile(
    r"out of memory|not enough memory|can't allocate memory|failed to allocate memory|memory allocation error|"
    r"bfc_?arena|bad_alloc|bad allocation|CU[A-Z]+_STATUS_ALLOC_FAILED",
    re.IGNORECASE,
)
_LASTING = re.compile(
    r"(CUDA|HIP) (error|failure)[^\n]*(assert|illegal|misaligned|launch failure|invalid program counter|ECC)",
    re.IGNORECASE,
)
_CAUSES = 8


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, or one that caused it, is a refused allocation: of this machine or of a device.

    Recognised by class names, and for errors of libraries by their messages; so no library has to be imported.

    >>> is_out_of_memory(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    True
    >>> is_out_of_memory(ValueError("Cards with 8 GB are out of stock, those out of memory are not"))
    False
    """
    cause: BaseException | None = error
    for _ in range(_CAUSES):
        if cause is None:
            return False
        if _is_one(cause):
            return True
        cause = cause.__cause__
    return False


def _is_one(error: BaseException) -> bool:
    kinds = type(error).__mro__
    if not _CLASSES.isdisjoint(map(class_name, kinds)):
        return True
    speaks = any(kind is RuntimeError or library_of(kind) in _LIBRARIES for kind in kinds)
    return speaks and _WORDS.search(words(error)) is not None


def is_lasting(error: BaseException) -> bool:
    """Say whether the device is unusable for this process after an error: every later call fails with it.

    >>> is_lasting(RuntimeError("CUDA error: device-side assert triggered"))
    True
    >>> is_lasting(RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB."))
    False
    """
    return isinstance(error, RuntimeError) and _LASTING.search(words(error)) is not None


def forget(error: BaseException) -> None:
    """Clear the local variables of an error's frames; the lines of its traceback stay."""
    seen: BaseException | None = error
    for _ in range(_CAUSES):
        if seen is None:
            return
        traceback.clear_frames(seen.__traceback__)
        seen = seen.__cause__ or seen.__context__


def make_room() -> None:
    """Run the garbage collector; have PyTorch release its cached device memory."""
    gc.collect()
    torch: Any = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is not None and cuda.is_initialized():
        with contextlib.suppress(RuntimeError):  # an earlier asynchronous failure: its own call raises it
            cuda.empty_cache()

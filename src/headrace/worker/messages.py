"""Parts of error messages: the values of a row, what to do about an error, and which mean that memory ran out."""

from __future__ import annotations

import contextlib
import functools
import gc
import re
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

from headrace.core.arrow.plain import columns_within, kind_of, plain
from headrace.core.failures import class_name, library_of, shortened, words
from headrace.core.terminal import one_line, visible
from headrace.core.work import Fault
from headrace.errors import nearest
from headrace.worker.rows import Rows

# ---------------------------------------------------------------- out of memory

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


COLUMNS = 8
CHARS = 60
LEAVES = 1_000  # within one value


def preview(batch: pa.RecordBatch) -> str:
    """Show a batch's first row: at most eight columns, and 60 characters of each. Never raises.

    >>> preview(pa.record_batch({"id": [7], "text": ["it is " * 20]}))
    "id=7, text='it is it is it is it is it is … t is it is it is it is it is '"
    >>> preview(pa.record_batch({"image": [b"1234"], "box": [{"x": 1, "y": 2}]}))
    "image=4 bytes, box={'x': 1, 'y': 2}"
    """
    shown = [
        f"{_name(batch, at)}={_shown(batch.column(at))}" for at in range(min(batch.num_columns, COLUMNS))
    ]
    more = batch.num_columns - COLUMNS
    return ", ".join([*shown, f"and {more} columns more"] if more > 0 else shown)


def _name(batch: pa.RecordBatch, at: int) -> str:
    return shortened(one_line(batch.schema.field(at).name), CHARS)


def _shown(column: pa.Array) -> str:
    """Show the first value; what Python has no value for, as Arrow prints it."""
    for show in (_short, _as_arrow_prints):
        try:
            return show(column)
        except Exception:  # Arrow's values hold what Python's cannot, and a row must be named all the same
            continue
    return "a value that cannot be shown"


def _short(column: pa.Array) -> str:
    value, kind = column[0], column.type
    if not value.is_valid:
        return "None"
    if kind_of(kind) == "binary" and hasattr(value, "as_buffer"):
        return f"{len(value.as_buffer()):,} bytes"
    if isinstance(kind, pa.FixedShapeTensorType):
        return f"a tensor of shape {tuple(kind.shape)}"
    if isinstance(value, pa.ListScalar) and len(value.values) > CHARS:
        return f"a list of {len(value.values):,}"
    if _leaves(column.slice(0, 1)) > LEAVES:
        return f"nested values, more than {LEAVES:,} of them"
    return shortened(repr(value.as_py()), CHARS)


def _as_arrow_prints(column: pa.Array) -> str:
    printed: str = column.slice(0, 1).to_string(window=2, container_window=2)
    return shortened(one_line(" ".join(printed.split()).removeprefix("[ ").removesuffix(" ]")), CHARS)


def _leaves(column: pa.Array) -> int:
    """Count the values that are not nested, as far as more than ``LEAVES`` of them."""
    column = plain(column)
    if not pa.types.is_nested(column.type) or len(column) > LEAVES:
        return len(column)
    total = 0
    for each in columns_within(column):
        total += _leaves(each)
        if total > LEAVES:
            break
    return total


def hidden(text: str, rows: Rows) -> str:
    """Remove a row's values from an error message; the whole message, if there are several rows.

    >>> row = pa.record_batch({"fare": ["1o.5"], "n": [3]})
    >>> hidden("could not convert string to float: '1o.5' (3 rows)", Rows(row, ()))
    "could not convert string to float: '…' (… rows)"
    """
    all_of_it = "(its text is hidden: it may hold data)" if text else ""
    if len(rows) != 1:
        return all_of_it
    try:
        if sum(_leaves(column.slice(0, 1)) for column in rows.batch.columns) > LEAVES:
            return all_of_it
        values = {form for column in rows.batch.columns for form in _forms(column[0].as_py())}
    except Exception:  # what cannot be read cannot be looked for
        return all_of_it
    for value in sorted(filter(None, values), key=len, reverse=True):
        text = re.sub(rf"(?<!\w){re.escape(value)}(?!\w)", "…", text)
    return text


def _forms(value: Any) -> Iterator[str]:
    """Yield the texts in which a value, or one within it, may stand in a message."""
    if isinstance(value, dict):
        inner: Iterable[Any] = value.values()
    elif isinstance(value, (list, tuple)):
        inner = value
    else:
        inner = ()
    for each in inner:
        yield from _forms(each)
    if value is not None:
        yield from (
            str(value),
            visible(str(value)),
            repr(value)[1:-1] if isinstance(value, (str, bytes)) else "",
        )


BATCH_ERROR_CHARS = 120  # of the error of a whole batch, in the reason of a row
_ARRAYS = r"(numpy\.|pyarrow\.lib\.)?(ndarray|Series|Tensor|ChunkedArray)"


_ARGUMENT_MISSING = re.compile(r"\(\) missing \d+ required (positional|keyword-only) argument")
_FRAME_WANTED = re.compile(
    "'dict' object has no attribute '(apply|assign|astype|column|columns|drop|drop_duplicates|dropna|fillna|groupby|"
    "head|iloc|iterrows|itertuples|loc|merge|num_rows|query|rename|schema|shape|sort_values|to_numpy|to_pandas|"
    "to_pydict|to_pylist|values_|with_columns)'"
)


@functools.cache
def _takes_rows() -> re.Pattern[str]:
    """Return what Python and the libraries say of a column in the place of a value."""
    methods = "|".join(name for name in dir(str) + dir(bytes) if not name.startswith("_"))
    return re.compile(
        "truth value of an? (array|Series|DataFrame)|Boolean value of Tensor|only (length-1|0-dimensional) arrays|"
        "cannot convert the series to|only integer scalar arrays|only one element tensors can be converted|"
        "a Tensor with [0-9]+ elements cannot be converted|only integer tensors of a single element|"
        rf"unhashable type: '{_ARRAYS}'|"
        rf"\b(str|string|bytes|integers|slices|real number|bytearray|bytes-like object)\b"
        rf".*(, not|, got|is required, not|or bytes-like object, got) '?{_ARRAYS}\b|"
        rf"'{_ARRAYS}' object cannot be interpreted as an integer|unsupported format string passed to {_ARRAYS}\b|"
        rf"'{_ARRAYS}' object has no attribute '({methods})'"
    )


def takes_batch_for_row(error: BaseException) -> bool:
    """Say whether code raised this because it got a column where it expects the value of one row."""
    return isinstance(error, (AttributeError, RuntimeError, TypeError, ValueError)) and bool(
        _takes_rows().search(words(error))
    )


def hint_on(error: BaseException, said: str, rows: Rows, *, chosen: str, by_row: bool) -> str:
    """Return the advice to append to the message ``said`` of an error, with its full stop.

    ``chosen`` is the argument that left columns out, if one did; ``by_row``: the code gets one row at a time.
    """
    if isinstance(error, ValueError) and "read-only" in said:
        return (
            ". Batches are read-only views of the input: copy an array before writing to it (`x = x.copy()`), or "
            "have map_batches copy them all: zero_copy_batch=False."
        )
    end = "" if said.endswith((".", "!", "?")) else "."
    if len(rows) == 1 and is_out_of_memory(error):
        return (
            f"{end} This happened with a single row: use smaller inputs or a smaller dtype, use fewer workers "
            "(memory=, num_gpus=, concurrency=), or a device with more memory."
        )
    if not by_row and takes_batch_for_row(error):
        return (
            f"{end} The function gets whole columns, the values of many rows at a time: work on them as arrays "
            '(np.where(batch["x"] > 0, 1, 0)), or use map, whose function gets one row as a dict.'
        )
    hint = _hint_on_words(said, by_row=by_row)
    if hint:
        return end + hint
    names = rows.batch.schema.names
    key = _missing_key(error)
    if key is not None and key not in names:
        left_out = f" `{chosen}=` leaves all others out." if chosen else ""
        return f". The columns that it gets are {', '.join(names) or 'none'}.{nearest(key, names)}{left_out}"
    return end


def batch_hint(
    whole: Fault, faults: Sequence[Fault], error: BaseException, rows: Rows, *, chosen: str
) -> str:
    """Return what the reason of a failed row says of its batch; an empty string if that adds nothing.

    ``whole`` and ``error`` are how the batch failed as a whole, ``faults`` those of its rows that failed one by one.
    """
    kinds = {fault.kind for fault in faults}
    count = len(rows)
    if count < 2 or not faults:
        return ""
    sentences = []
    if len(faults) == count and len(kinds) == 1:
        sentences.append(
            f"All {count:,} rows of the batch failed like this, so the error may be in the function, not in the rows."
        )
    if kinds != {whole.kind}:
        said = f": {shortened(whole.message, BATCH_ERROR_CHARS)}" if whole.message else ""
        sentences.append(f"The batch as a whole failed with {whole.kind}{said.rstrip('.')}.")
    if sentences:
        advice = hint_on(error, "", rows, chosen=chosen, by_row=False).lstrip(". ")
        sentences += [advice] if advice else []
    return " ".join(sentences)


def _hint_on_words(said: str, *, by_row: bool) -> str:
    noun = "row" if by_row else "batch"
    missing = _ARGUMENT_MISSING.search(said)
    if missing:
        return (
            f" The function is called with one argument, a {noun}; other arguments are given by fn_args=[…] or "
            "fn_kwargs={…}."
        )
    if "must have the same shape" in said or "inhomogeneous shape" in said:
        return " Make their shapes equal first: images by read_images(…, size=(224, 224)), others in map."
    frame = _FRAME_WANTED.search(said)
    if frame and not by_row:
        return " A batch is a dict of arrays; batch_format='pandas' makes it a DataFrame, 'pyarrow' a Table."
    return ""


def _missing_key(error: BaseException) -> str | None:
    if not isinstance(error, KeyError) or len(error.args) != 1 or not isinstance(error.args[0], str):
        return None
    key = error.args[0]
    if key.startswith('Field "') and key.endswith("does not exist in schema"):  # a pyarrow Table
        return key.split('"')[1]
    return key

"""What to do about an error that the user's code raised, as far as its words tell."""

from __future__ import annotations

import re

from millrace.errors import nearest
from millrace.run.failures import words
from millrace.run.memory import is_out_of_memory
from millrace.run.rows import Rows

_ARRAYS = r"(numpy\.|pyarrow\.lib\.)?(ndarray|Series|Tensor|ChunkedArray)"
_OF_TEXTS = "|".join(name for name in dir(str) + dir(bytes) if not name.startswith("_"))
_ROW_LOGIC = re.compile(  # what Python and the libraries say of a column in the place of a value
    "truth value of an? (array|Series|DataFrame)|Boolean value of Tensor|only (length-1|0-dimensional) arrays|"
    "cannot convert the series to|only integer scalar arrays|only one element tensors can be converted|"
    "a Tensor with [0-9]+ elements cannot be converted|only integer tensors of a single element|"
    rf"unhashable type: '{_ARRAYS}'|\b(str|string|bytes|integers|slices|real number|bytearray|bytes-like object)\b"
    rf".*(, not|, got|is required, not|or bytes-like object, got) '?{_ARRAYS}\b|"
    rf"'{_ARRAYS}' object cannot be interpreted as an integer|unsupported format string passed to {_ARRAYS}\b|"
    rf"'{_ARRAYS}' object has no attribute '({_OF_TEXTS})'"
)
"""Words of errors that a function raises which takes a batch for a row."""


_ARGUMENT_MISSING = re.compile(r"\(\) missing \d+ required (positional|keyword-only) argument")
_FRAME_WANTED = re.compile(
    "'dict' object has no attribute '(apply|assign|astype|column|columns|drop|drop_duplicates|dropna|fillna|groupby|"
    "head|iloc|iterrows|itertuples|loc|merge|num_rows|query|rename|schema|shape|sort_values|to_numpy|to_pandas|"
    "to_pydict|to_pylist|values_|with_columns)'"
)


def takes_batch_for_row(error: BaseException) -> bool:
    """Say whether code raised this because it got a column where it takes the value of one row."""
    return isinstance(error, (AttributeError, RuntimeError, TypeError, ValueError)) and bool(
        _ROW_LOGIC.search(words(error))
    )


def hint_on(error: BaseException, said: str, rows: Rows, *, chosen: str, by_row: bool) -> str:
    """Return what stands behind the words ``said`` of an error, from the full stop on.

    ``chosen`` is the argument that left columns out, if one did; ``by_row``: the code gets one row at a time.
    """
    if isinstance(error, ValueError) and "read-only" in said:
        return (
            ". Batches are read-only views of the input: copy an array before writing to it (`x = x.copy()`)."
        )
    end = "" if said.endswith((".", "!", "?")) else "."
    if len(rows) == 1 and is_out_of_memory(error):
        return (
            f"{end} That is for a single row: give it smaller inputs or a smaller dtype, let fewer workers share "
            "the memory (memory=, num_gpus=, concurrency=), or use a device with more."
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


def _hint_on_words(said: str, *, by_row: bool) -> str:
    noun = "row" if by_row else "batch"
    missing = _ARGUMENT_MISSING.search(said)
    if missing:
        return (
            f" The function is called with one argument, a {noun}; what else it takes is given by fn_args=[…] or "
            "fn_kwargs={…}."
        )
    if "must have the same shape" in said or "inhomogeneous shape" in said:
        return " Make them of one shape first: images by read_images(…, size=(224, 224)), others in map."
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

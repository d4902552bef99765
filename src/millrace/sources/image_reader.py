"""What ``ImageSource`` does with Pillow, numpy and pyarrow: read headers, decode, lay pixels out as columns."""

from __future__ import annotations

import contextlib
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from millrace.core.batch import empty_columns
from millrace.core.layout import joined
from millrace.core.ragged import RaggedTensorType, ragged_column
from millrace.errors import MillraceError, UnreadableFile
from millrace.sources.files import InputFile, check_unchanged
from millrace.sources.images import Look, Sizes

if TYPE_CHECKING:
    from PIL.Image import Image

_BATCH_BYTES = 64 << 20
_GAP = 2  # how many times the wanted size a JPEG stays when its decoder scales it, as in Pillow's thumbnail()
_PILLOW = re.compile(r"PIL\.")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")

Size = tuple[int, int]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]


# ---------------------------------------------------------------- planning


def sizes_of(files: Sequence[InputFile]) -> Sizes:
    """Read the sizes of all images from their headers. A file without a readable one is left to ``read``."""
    with ThreadPoolExecutor(4, thread_name_prefix="images") as threads:
        each = tuple(threads.map(_size_of, files))
    distinct = set(each)
    if len(distinct) == 1:
        return Sizes(each[0], () if each[0] is not None else each)
    return Sizes(None, each)


def _size_of(file: InputFile) -> Size | None:
    try:
        with open(file.path, "rb") as data:
            data.peek()  # threads wait for the disk here, side by side
            with _opened(file.path, data) as image:
                return image.height, image.width
    except (UnreadableFile, OSError):
        return None


def schema_of(sizes: Sizes, look: Look, include_paths: bool) -> pa.Schema:
    """Return the columns of images of these sizes: one shape for all, or one for each."""
    known = {size for size in sizes.each if size is not None}
    common = sizes.common or (known.pop() if len(known) == 1 else None)
    if common is not None:
        type_ = pa.fixed_shape_tensor(pa.uint8(), (*common, *look.channels))
    else:
        type_ = RaggedTensorType(pa.uint8(), 2 + len(look.channels))
    fields = [pa.field("image", type_)]
    if include_paths:
        fields.append(pa.field("path", pa.string()))
    return pa.schema(fields)


# ---------------------------------------------------------------- reading


def read(
    files: Sequence[InputFile], sizes: Sequence[Size | None], look: Look, target: pa.Schema, batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Yield these files, whose images have ``sizes`` once they are what ``look`` says, as batches."""
    start = held = 0
    for stop, size in enumerate(sizes):
        more = math.prod((*size, *look.channels)) if size is not None else 0
        if stop > start and (stop - start >= batch_rows or held + more > _BATCH_BYTES):
            yield _batch(files[start:stop], sizes[start:stop], look, target)
            start, held = stop, 0
        held += more
    if start < len(files):
        yield _batch(files[start:], sizes[start:], look, target)


def _batch(
    files: Sequence[InputFile], sizes: Sequence[Size | None], look: Look, target: pa.Schema
) -> pa.RecordBatch:
    if not len(target):
        return empty_columns(len(files))
    columns = []
    for field in target:
        if field.name == "path":
            columns.append(joined([file.path.encode() for file in files], pa.string(), pa.large_string()))
        else:
            columns.append(_images(files, sizes, look, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _images(
    files: Sequence[InputFile], sizes: Sequence[Size | None], look: Look, type_: pa.DataType
) -> pa.Array:
    """Decode into one array, image by image: the column's own memory."""
    shapes = np.array([(*(size or (0, 0)), *look.channels) for size in sizes], np.int64)
    ends = shapes.prod(axis=1).cumsum()
    pixels = np.empty(int(ends[-1]), np.uint8)
    start = 0
    for file, shape, end in zip(files, shapes, ends.tolist(), strict=True):
        decode(file, look, pixels[start:end].reshape(shape))
        start = end
    if isinstance(type_, RaggedTensorType):
        return ragged_column(pixels, shapes, type_)
    values = pa.Array.from_buffers(pa.uint8(), len(pixels), [None, pa.py_buffer(pixels)])
    storage = pa.Array.from_buffers(type_.storage_type, len(files), [None], children=[values])
    return pa.ExtensionArray.from_storage(type_, storage)


def decode(file: InputFile, look: Look, out: Pixels) -> None:
    """Decode one file into ``out``, of shape (h, w) or (h, w, channels); whatever is wrong with it names it."""
    check_unchanged(file)
    try:
        with open(file.path, "rb") as data, _opened(file.path, data) as image:
            made = _made(image, look)
            if made.size != (out.shape[1], out.shape[0]):  # a header that Pillow could not read, then could
                raise ValueError(f"its size was {out.shape[1]} × {out.shape[0]} at planning")
            out[...] = np.asarray(made)
    except (MillraceError, MemoryError):
        raise
    except (
        Exception
    ) as error:  # decoders raise what they like over damaged files: SyntaxError, struct.error, …
        raise _undecodable(file.path, error) from error


def _opened(path: str, data: BinaryIO) -> Image:
    """Read the header. Pillow's advice on odd metadata is nobody's business; an oversized image is an error."""
    from PIL import Image

    try:
        with _strict(Image.DecompressionBombWarning):
            return Image.open(data)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError) as error:
        raise UnreadableFile(
            f"Cannot read {path!r}: as pixels it is larger than {Image.MAX_IMAGE_PIXELS:,}, the limit of Pillow "
            "against files that unpack to more than a machine can hold. If you trust it, scale it down first, or "
            "decode it in a step of your own after read_binary_files, with a higher PIL.Image.MAX_IMAGE_PIXELS."
        ) from error
    except MemoryError:
        raise
    except Exception as error:
        raise _undecodable(path, error) from error


@contextlib.contextmanager
def _strict(category: type[Warning]) -> Iterator[None]:
    """Make warnings of ``category`` errors, and pass over Pillow's others.

    The filters are the whole process's. ``catch_warnings`` swaps them, which threads may do crosswise, and
    forgets what was warned of before: once for each image, it would repeat the user's own warnings.
    """
    filters = cast("list[Any]", warnings.filters)
    ours = [("error", None, category, None, 0), ("ignore", None, Warning, _PILLOW, 0)]
    filters[:0] = ours
    try:
        yield
    finally:
        for one in ours:
            with contextlib.suppress(ValueError):  # somebody has cleared the list
                filters.remove(one)


def _made(image: Image, look: Look) -> Image:
    """Bring an image to its mode, then to its size: some modes, such as palettes, cannot be scaled well."""
    from PIL.Image import Resampling

    size = None if look.size is None else (look.size[1], look.size[0])
    if look.draft and size is not None:
        image.draft(None, (_GAP * size[0], _GAP * size[1]))
    if image.mode != look.mode:
        image = _converted(image, look.mode)
    return image if size is None else image.resize(size, Resampling.BILINEAR)


def _converted(image: Image, mode: str) -> Image:
    from PIL import Image

    if image.mode in _DEEP or (image.mode == "I" and image.format == "PNG"):
        # The upper eight bits, as of a 16-bit RGB file; Pillow would cut what is above 255.
        deep = np.asarray(image)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(f"its pixels (mode {image.mode}) have no fixed range that could be made 0 to 255")
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else _by_way_of_rgb(image, mode)


def _by_way_of_rgb(image: Image, mode: str) -> Image:
    try:
        return image.convert(mode)
    except ValueError:  # not every pair of modes has a way of its own
        return image.convert("RGB").convert(mode)


def _undecodable(path: str, error: Exception) -> UnreadableFile:
    reason = (isinstance(error, OSError) and error.strerror) or str(error).rstrip(".") or type(error).__name__
    if type(error).__name__ == "UnidentifiedImageError":
        reason = "its first bytes are of no image format that Pillow knows"
    return UnreadableFile(
        f"Cannot read the image {path!r}: {reason}. Restore the file or leave it out of the input."
    )

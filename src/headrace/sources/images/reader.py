"""What ``ImageSource`` does with Pillow, numpy and pyarrow: read headers, decode, lay pixels out as columns."""

from __future__ import annotations

import contextlib
import math
import re
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import numpy as np
import pyarrow as pa

from headrace.core.arrow.batch import empty_columns
from headrace.core.arrow.forms import RaggedTensorType, ragged_column
from headrace.core.files.input_files import InputFile
from headrace.core.process import decoding
from headrace.core.source_ports import Bad
from headrace.core.stores.objects import open_binary
from headrace.errors import HeadraceError, UnreadableFile
from headrace.sources.file_source import BATCH_BYTES, content, damaged, fetched
from headrace.sources.images import ImageOptions, ImageSizes

if TYPE_CHECKING:
    from PIL.Image import Image

_GAP = 2  # how many times the wanted size a JPEG stays when its decoder scales it, as in Pillow's thumbnail()
_PILLOW = re.compile(r"PIL\.")
_DEEP = ("I;16", "I;16L", "I;16B", "I;16N")

Size = tuple[int, int]
Pixels = np.ndarray[Any, np.dtype[np.uint8]]
Faults = dict[int, UnreadableFile]

_LIMIT = threading.Lock()


# ---------------------------------------------------------------- planning


def sizes_of(files: Sequence[InputFile], max_pixels: int) -> ImageSizes:
    """Read the sizes of all images from their headers. A file without a readable one is left to ``read``."""
    remote = any(file.in_store for file in files)
    with ThreadPoolExecutor(32 if remote else 4, thread_name_prefix="images") as threads:
        each = tuple(threads.map(_size_of, files, repeat(max_pixels)))
    distinct = set(each)
    if len(distinct) == 1:
        return ImageSizes(each[0], () if each[0] is not None else each)
    return ImageSizes(None, each)


def _size_of(file: InputFile, max_pixels: int) -> Size | None:
    try:
        with open_binary(file.path) as data:
            data.read(1)  # threads wait for the disk here, side by side
            data.seek(0)
            with opened(file.path, data, max_pixels) as image:
                return image.height, image.width
    except (UnreadableFile, OSError):
        return None


def schema_of(sizes: ImageSizes, options: ImageOptions) -> pa.Schema:
    """Return the column of images of these sizes: one shape for all, or one for each."""
    known = {size for size in sizes.each if size is not None}
    common = sizes.common or (known.pop() if len(known) == 1 else None)
    if common is not None:
        type_ = pa.fixed_shape_tensor(pa.uint8(), (*common, *options.channels))
    else:
        type_ = RaggedTensorType(pa.uint8(), 2 + len(options.channels))
    return pa.schema([("image", type_)])


# ---------------------------------------------------------------- reading


def read(
    files: Sequence[InputFile],
    sizes: Sequence[Size | None],
    options: ImageOptions,
    target: pa.Schema,
    batch_rows: int,
    bad: Bad | None,
) -> Iterator[pa.RecordBatch]:
    """Yield these files, whose images have ``sizes`` once they are as ``options`` wants them, as batches."""
    if "image" in target.names and not isinstance(type_ := target.field("image").type, RaggedTensorType):
        sizes = [size or (type_.shape[0], type_.shape[1]) for size in sizes]
    for start, stop in _runs(sizes, options, batch_rows):
        faults: Faults = {}
        batch = _batch(files[start:stop], sizes[start:stop], options, target, None if bad is None else faults)
        at = 0
        for row, error in faults.items():
            if row > at:
                yield batch.slice(at, row - at)
            assert bad is not None
            bad(start + row, 1, error)
            at = row + 1
        if at < batch.num_rows:
            yield batch.slice(at)


def _runs(sizes: Sequence[Size | None], options: ImageOptions, batch_rows: int) -> Iterator[tuple[int, int]]:
    """Yield which files make a batch."""
    start = held = 0
    for stop, size in enumerate(sizes):
        more = math.prod((*size, *options.channels)) if size is not None else 0
        if stop > start and (stop - start >= batch_rows or held + more > BATCH_BYTES):
            yield start, stop
            start, held = stop, 0
        held += more
    if start < len(sizes):
        yield start, len(sizes)


def _batch(
    files: Sequence[InputFile],
    sizes: Sequence[Size | None],
    options: ImageOptions,
    target: pa.Schema,
    faults: Faults | None,
) -> pa.RecordBatch:
    if not len(target):
        return empty_columns(len(files))
    column = _images(files, sizes, options, target.field("image").type, faults)
    return pa.RecordBatch.from_arrays([column], schema=target)


def _images(
    files: Sequence[InputFile],
    sizes: Sequence[Size | None],
    options: ImageOptions,
    type_: pa.DataType,
    faults: Faults | None,
) -> pa.Array:
    """Decode into one array, image by image: the column's own memory. What fails goes to ``faults``, if given."""
    shapes = np.array([(*(size or (0, 0)), *options.channels) for size in sizes], np.int64)
    ends = shapes.prod(axis=1).cumsum()
    pixels = np.empty(int(ends[-1]), np.uint8)
    start = 0
    streams = fetched(files)
    for row, (file, shape, end) in enumerate(zip(files, shapes, ends.tolist(), strict=True)):
        try:
            decode(file, options, pixels[start:end].reshape(shape), next(streams))
        except UnreadableFile as error:
            if faults is None:
                raise
            faults[row] = error.with_traceback(None)
        start = end
    return pixel_column(pixels, shapes, type_)


def pixel_column(pixels: Pixels, shapes: np.ndarray[Any, np.dtype[np.int64]], type_: pa.DataType) -> pa.Array:
    """Return the pixels of images of these shapes, one behind the other, as a column."""
    if isinstance(type_, RaggedTensorType):
        return ragged_column(pixels, shapes, type_)
    values = pa.Array.from_buffers(pa.uint8(), len(pixels), [None, pa.py_buffer(pixels)])
    storage = pa.Array.from_buffers(type_.storage_type, len(shapes), [None], children=[values])
    return pa.ExtensionArray.from_storage(type_, storage)


def decode(file: InputFile, options: ImageOptions, out: Pixels, data: BinaryIO | None = None) -> None:
    """Decode one file into ``out``, of shape (h, w) or (h, w, channels); whatever is wrong with it names it."""
    try:
        with (
            data or content(file) as stream,
            decoding(),
            opened(file.path, stream, options.max_pixels) as image,
        ):
            result = made(image, options)
            if result.size != (out.shape[1], out.shape[0]):  # a header that Pillow could not read, then could
                raise ValueError(f"its size was {out.shape[1]} × {out.shape[0]} at planning")
            out[...] = np.asarray(result)
    except (HeadraceError, MemoryError):
        raise
    except (
        Exception
    ) as error:  # decoders raise what they like over damaged files: SyntaxError, struct.error, …
        raise _undecodable(file.path, error) from error


def opened(path: str, data: BinaryIO, max_pixels: int) -> Image:
    """Read the header. Pillow's warnings about odd metadata are left out; an oversized image is an error."""
    from PIL import Image

    try:
        with _own_limit(max_pixels), _without_advice():
            image = Image.open(data)
    except MemoryError:
        raise
    except Image.DecompressionBombError as error:
        raise _oversized(path, max_pixels) from error
    except Exception as error:
        raise _undecodable(path, error) from error
    if image.width * image.height > max_pixels:
        raise _oversized(path, max_pixels)
    if image.format == "EPS":
        raise _undecodable(path, ValueError("it is PostScript, a program that Ghostscript would run"))
    return image


def _oversized(path: str, max_pixels: int) -> UnreadableFile:
    return UnreadableFile(
        f"Cannot read the image {path!r}: it has more than {max_pixels:,} pixels, the limit that protects against "
        "files that do not fit into memory. If you trust it, raise max_pixels=."
    )


@contextlib.contextmanager
def _own_limit(max_pixels: int) -> Iterator[None]:
    """Raise Pillow's limit to ours where it is lower; it is the whole process's, so one thread at a time."""
    from PIL import Image

    theirs = Image.MAX_IMAGE_PIXELS
    if theirs is None or max_pixels <= 2 * theirs:  # it warns at its limit, and refuses at twice that
        yield
        return
    with _LIMIT:
        theirs, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, max_pixels
        try:
            yield
        finally:
            Image.MAX_IMAGE_PIXELS = theirs


@contextlib.contextmanager
def _without_advice() -> Iterator[None]:
    """Pass over Pillow's warnings.

    The filters are the whole process's. ``catch_warnings`` swaps them, which threads may do crosswise, and
    forgets what was warned of before: once for each image, it would repeat the user's own warnings.
    """
    filters = cast("list[Any]", warnings.filters)
    ours = ("ignore", None, Warning, _PILLOW, 0)
    filters.insert(0, ours)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the list may have been cleared
            filters.remove(ours)


def made(image: Image, options: ImageOptions) -> Image:
    """Bring an image to its mode, then to its size: some modes, such as palettes, cannot be scaled well."""
    from PIL.Image import Resampling

    size = None if options.size is None else (options.size[1], options.size[0])
    if options.draft and size is not None:
        image.draft(None, (_GAP * size[0], _GAP * size[1]))
    if image.mode != options.mode:
        image = _converted(image, options.mode)
    return image if size is None else image.resize(size, Resampling.BILINEAR)


def _converted(image: Image, mode: str) -> Image:
    from PIL import Image

    if image.mode in _DEEP or (image.mode == "I" and image.format == "PNG"):
        # The upper eight bits, as of a 16-bit RGB file; Pillow would cut what is above 255.
        deep = np.asarray(image)
        image = Image.fromarray((deep >> 8).astype(np.uint8))
    elif image.mode in ("I", "F"):
        raise ValueError(
            f"its pixels (mode {image.mode}) have no fixed range that can be converted to 0 to 255"
        )
    elif image.mode == "P" and "transparency" in image.info:
        image = image.convert("RGBA")
    return image if image.mode == mode else _by_way_of_rgb(image, mode)


def _by_way_of_rgb(image: Image, mode: str) -> Image:
    try:
        return image.convert(mode)
    except ValueError:  # not every pair of modes has a way of its own
        return image.convert("RGB").convert(mode)


def _undecodable(path: str, error: Exception) -> UnreadableFile:
    said: Exception | str = error
    if type(error).__name__ == "UnidentifiedImageError":
        said = "its first bytes do not belong to an image format that Pillow knows"
    return damaged(f"the image {path!r}", said, path, "read_images")

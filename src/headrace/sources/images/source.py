"""Image files as rows of pixels. Pillow decodes them, and is imported where they are read."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.errors import ArgumentError, nearest
from headrace.sources.file_source import PathArgument, WholeFileSource
from headrace.sources.images import MAX_PIXELS, MODES, ImageOptions, ImageSizes, image_size

if TYPE_CHECKING:
    import pyarrow as pa


class ImageSource(WholeFileSource[ImageSizes]):
    """Reads each image file as one row: column ``image``, and ``path`` if asked for.

    The column is a ``fixed_shape_tensor`` of uint8 if ``size`` is given or all images are of one size, else a
    ``RaggedTensorType``. Which one is decided by the headers of all files, before anything is read; see
    docs/decisions/0010.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these; of a folder, files with an image's suffix.
    size
        ``(height, width)`` in pixels to scale all images to; None leaves their sizes.
    mode
        The Pillow mode of all images: ``"RGB"`` (None means it, too), ``"L"``, ``"RGBA"``, …
    include_paths
        Whether to add the column ``path``: the absolute path, a string.
    draft
        Whether JPEGs at least four times as high and wide as ``size`` are scaled by their decoder first.
    max_pixels
        How many pixels a file may hold.
    """

    suffixes = suffixes_read_by("read_images")
    reads_objects = True

    decodes = True  # work for a CPU, which should not run beside a device's work

    def __init__(
        self,
        paths: PathArgument,
        *,
        size: tuple[int, int] | None = None,
        mode: str | None = None,
        include_paths: bool = False,
        draft: bool = True,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(paths)
        require("PIL", "images", "read_images")
        self._image_options = ImageOptions(image_size(size), _mode(mode), draft, _max_pixels(max_pixels))
        self._include_paths = include_paths

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        size, mode, draft, _ = self._image_options
        return {
            "kind": "images",
            "paths": list(self.paths),
            "size": None if size is None else list(size),
            "mode": mode,
            "include_paths": self._include_paths,
            "draft": draft,
        }

    def schema(self) -> pa.Schema:
        """Return the columns; without ``size``, reads the headers of all files the first time."""
        from headrace.sources.images import reader as image_reader

        return image_reader.schema_of(self.inspected(), self._image_options, self._include_paths)

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the images of a split; a batch ends early at 64 MiB."""
        from headrace.sources.images import reader as image_reader
        from headrace.sources.schemas import select

        target = self.schema() if columns is None else select(self.schema(), columns)
        numbers = self.files_of(split)
        files, sizes = [self.file(number) for number in numbers], self.inspected()
        each = sizes.each[numbers.start : numbers.stop] or (sizes.common,) * len(files)
        return image_reader.read(files, each, self._image_options, target, batch_rows, bad)

    def _sizes(self, found: ImageSizes) -> Sequence[int]:
        """Count the bytes of the pixels: images are packed to anything between a hundredth and all of it."""
        channels = MODES[self._image_options.mode]
        if found.common is not None:
            return [found.common[0] * found.common[1] * channels] * len(self._files)
        return [
            size[0] * size[1] * channels if size is not None else max(file.size, 1)
            for file, size in zip(self._files, found.each, strict=True)
        ]

    def inspect(self, files: list[InputFile]) -> ImageSizes:
        if self._image_options.size is not None:
            return ImageSizes(self._image_options.size)
        from headrace.sources.images import reader as image_reader

        return image_reader.sizes_of(files, self._image_options.max_pixels)


def _max_pixels(max_pixels: Any) -> int:
    try:
        count = operator.index(max_pixels)
    except TypeError:
        count = 0
    if count < 1:
        raise ArgumentError(f"max_pixels is a number of pixels, at least 1, not {max_pixels!r}.")
    return count


def _mode(mode: Any) -> str:
    if mode is None:
        return "RGB"
    if mode not in MODES:
        hint = nearest(mode, MODES) if isinstance(mode, str) else ""
        raise ArgumentError(
            f"mode is one of Pillow's modes of one byte per channel ({', '.join(MODES)}), not {mode!r}.{hint}"
        )
    return str(mode)

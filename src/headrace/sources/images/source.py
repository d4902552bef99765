"""Image files as rows of pixels. Pillow decodes them, and is imported where they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.errors import ArgumentError, nearest
from headrace.sources.file_source import PathArgument, WholeFileSource
from headrace.sources.images import MAX_PIXELS, MODES, ImageOptions, ImageSizes, image_size, whole_number

if TYPE_CHECKING:
    import pyarrow as pa


class ImageSource(WholeFileSource[ImageSizes]):
    """Reads each image file as one row: column ``image``, and ``path`` if asked for.

    The column is a ``fixed_shape_tensor`` of uint8 if ``size`` is given or all images are of one size, else a
    ``RaggedTensorType``. Which one is decided by the headers of all files, before anything is read; see
    docs/decisions/0010.
    """

    kind = "images"
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
        super().__init__(paths, include_paths=include_paths)
        require("PIL", "images", "read_images")
        self._image_options = ImageOptions(
            image_size(size), _mode(mode), draft, whole_number(max_pixels, "max_pixels", 1 << 40)
        )

    def options(self) -> dict[str, Any]:
        size, mode, draft, _ = self._image_options
        return {"size": None if size is None else list(size), "mode": mode, "draft": draft}

    def schema(self) -> pa.Schema:
        """Return the columns; without ``size``, reads the headers of all files the first time."""
        from headrace.sources.images import reader as image_reader

        return self.with_places(image_reader.schema_of(self.inspected(), self._image_options))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the images of a split; a batch ends early at 64 MiB."""
        from headrace.sources.images import reader as image_reader
        from headrace.sources.schemas import select

        numbers, sizes = self.files_of(split), self.inspected()
        files = [self.file(number) for number in numbers]
        target = select(image_reader.schema_of(sizes, self._image_options), columns)
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


def _mode(mode: Any) -> str:
    if mode is None:
        return "RGB"
    if mode not in MODES:
        hint = nearest(mode, MODES) if isinstance(mode, str) else ""
        raise ArgumentError(
            f"mode is one of Pillow's modes of one byte per channel ({', '.join(MODES)}), not {mode!r}.{hint}"
        )
    return str(mode)

"""Video files as rows of frames. PyAV decodes them, and is imported where they are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.process import decoding
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import ArgumentError, UnreadableFile
from headrace.sources.file_source import FileSource, PathArgument, batches_of
from headrace.sources.images import MAX_PIXELS, image_size, whole_number

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.annex.media.frames import Got, Known

_SPLIT_FRAMES = 600
_UNKNOWN = 1 << 20  # bytes in memory of a file that tells nothing


class VideoOptions(NamedTuple):
    """Which frames are taken, by their number or by how many a second, and how they are made."""

    stride: int
    fps: float | None
    size: tuple[int, int] | None
    timestamps: bool
    max_pixels: int


class VideoSource(FileSource["tuple[Known | None, ...]"]):
    """Reads each frame of video files as one row. A split is a file; long MP4 and MOV files are cut at key frames."""

    kind = "video"
    suffixes = suffixes_read_by("read_video")
    reads_objects = True
    decodes = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        stride: int = 1,
        fps: float | None = None,
        resize: tuple[int, int] | None = None,
        include_timestamps: bool = False,
        include_paths: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        if fps is not None:
            if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
                raise ArgumentError(f"read_video: fps is a number of frames per second, not {fps!r}.")
            if stride != 1:
                raise ArgumentError(
                    "read_video: stride= and fps= both say which frames are taken; give one of them."
                )
        self._how = VideoOptions(
            whole_number(stride, "read_video: stride", 1 << 31),
            fps,
            image_size(resize, "resize"),
            bool(include_timestamps),
            whole_number(max_pixels, "read_video: max_pixels", 1 << 32),
        )
        super().__init__(paths, include_paths=include_paths)
        require("av", "video", "read_video")

    def options(self) -> dict[str, Any]:
        stride, fps, size, timestamps, _ = self._how
        return {
            "stride": stride,
            "fps": fps,
            "size": None if size is None else list(size),
            "timestamps": timestamps,
        }

    def inspect(self, files: list[InputFile]) -> tuple[Known | None, ...]:
        from headrace.annex.media import frames

        remote = any(file.in_store for file in files)
        with ThreadPoolExecutor(32 if remote else 4, thread_name_prefix="video") as threads:
            return tuple(threads.map(lambda file: frames.known_of(file, self._how.max_pixels), files))

    def schema(self) -> pa.Schema:
        """Return the columns; reads the first frame of each file the first time."""
        return self.with_places(self._own_schema())

    def _own_schema(self) -> pa.Schema:
        import pyarrow as pa

        from headrace.core.arrow.forms import RaggedTensorType

        sizes = {(each.height, each.width) for each in self.inspected() if each is not None}
        size = self._how.size or (sizes.pop() if len(sizes) == 1 else None)
        type_ = (
            RaggedTensorType(pa.uint8(), 3) if size is None else pa.fixed_shape_tensor(pa.uint8(), (*size, 3))
        )
        fields = [pa.field("frame", type_), pa.field("frame_index", pa.int64())]
        if self._how.timestamps:
            fields.append(pa.field("frame_timestamp", pa.list_(pa.float64(), 2)))
        return pa.schema(fields)

    def splits(self) -> list[Split]:
        """Cut long files where a group of frames begins."""
        made: list[Split] = []
        for number, known in enumerate(self.refreshed()):
            bytes_of_frame = _UNKNOWN if known is None else self._bytes(known)
            start = 0
            for key in known.keys[1:] if known is not None else ():
                if key - start >= _SPLIT_FRAMES:
                    made.append(
                        Split(number, start, key, -1, (key - start) * bytes_of_frame, -1 if start else 0)
                    )
                    start = key
            if known is None or not start:
                count = max(1, known.frames if known is not None else 1)
                made.append(Split(number, 0, -1, bytes=count * bytes_of_frame))
            else:
                count = known.frames - start
                made.append(Split(number, start, known.frames, -1, count * bytes_of_frame, -1))
        return made

    def _bytes(self, known: Known) -> int:
        height, width = self._how.size or (known.height, known.width)
        return max(1, height * width * 3 // self._stride(known))

    def _stride(self, known: Known | None) -> int:
        if self._how.fps is None or known is None or not known.rate:
            return self._how.stride
        return max(1, round(known.rate / self._how.fps))

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the frames of a split; a batch ends early at 64 MiB."""
        from headrace.annex.media import frames
        from headrace.core.arrow.forms import RaggedTensorType
        from headrace.sources.schemas import select

        file, own = self.file(split.file), self._own_schema()
        type_ = own.field("frame").type
        shape = None if isinstance(type_, RaggedTensorType) else tuple(type_.shape)
        target = select(own, columns)
        stride = self._stride(self.inspected()[split.file])
        found = frames.frames(file.path, (split.start, split.stop), file.size, stride, self._how.max_pixels)

        def rows() -> Iterator[tuple[_Frame, int] | UnreadableFile]:
            while True:
                with decoding():
                    row = _next_of(found, file.path, self._how.size, shape, decoded="frame" in target.names)
                if row is None:
                    return
                yield row if isinstance(row, UnreadableFile) else (row, row.size)

        return batches_of(rows(), lambda held: _batch(held, target), batch_rows, bad)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the frame, counted from 0."""
        stride = self._stride(self.inspected()[split.file])
        return Location(self.file(split.file).path, (-(-split.start // stride) + row) * stride, "frame")


class _Frame(NamedTuple):
    """A row: pixels of shape (height, width, 3) if they are asked for, the number, and when it begins and ends."""

    pixels: Any
    number: int
    time: tuple[float, float]

    @property
    def size(self) -> int:
        """Bytes of the pixels."""
        return 0 if self.pixels is None else int(self.pixels.nbytes)


def _next_of(
    found: Iterator[tuple[Got, Any]],
    path: str,
    size: tuple[int, int] | None,
    shape: tuple[int, ...] | None,
    *,
    decoded: bool,
) -> _Frame | UnreadableFile | None:
    """Return the next frame, or what is wrong with it; None where there is no further one."""
    from headrace.annex.media import frames

    try:
        got, stream = next(found)
    except StopIteration:
        return None
    except UnreadableFile as error:  # nothing comes behind
        return error
    if got.frame is None:
        return frames.unreadable(path, f"frame {got.number:,}: {got.fault}")
    pixels = frames.pixels_of(got.frame, size) if decoded else None
    if pixels is not None and shape is not None and pixels.shape != shape:
        (height, width, _), (had, wide, _) = pixels.shape, shape
        return frames.unreadable(
            path, f"frame {got.number:,} is of {width} × {height} pixels, and those before of {wide} × {had}"
        )
    return _Frame(pixels, got.number, frames.seconds_of(got.frame, stream))


def _batch(rows: Sequence[_Frame], target: pa.Schema) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    from headrace.core.arrow.batch import empty_columns
    from headrace.sources.images.reader import pixel_column

    if not len(target):
        return empty_columns(len(rows))
    columns = []
    for field in target:
        if field.name == "frame":
            flat = np.concatenate([each.pixels.reshape(-1) for each in rows])
            shapes = np.array([each.pixels.shape for each in rows], np.int64)
            columns.append(pixel_column(flat, shapes, field.type))
        else:
            values = [each.number if field.name == "frame_index" else each.time for each in rows]
            columns.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)

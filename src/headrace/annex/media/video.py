"""Video files as rows of frames. PyAV decodes them, and is imported where they are read."""

from __future__ import annotations

import itertools
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
from headrace.sources.file_source import FileSource, PathArgument
from headrace.sources.images import BATCH_BYTES, image_size, whole_number

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
    """Reads each frame of video files as one row. A split is a file; long MP4 and MOV files are cut at key frames.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these; of a folder, files with a suffix of video.
    how
        Which frames are taken, and how they are made.
    include_paths
        Whether to add the column ``path``: the absolute path, a string.
    """

    suffixes = suffixes_read_by("read_video")
    reads_objects = True

    decodes = True

    def __init__(self, paths: PathArgument, how: VideoOptions, *, include_paths: bool = False) -> None:
        super().__init__(paths, adds_path=include_paths)
        require("av", "video", "read_video")
        self._how = how

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        stride, fps, size, timestamps, _ = self._how
        return {
            "kind": "video",
            "paths": list(self.paths),
            "stride": stride,
            "fps": fps,
            "size": None if size is None else list(size),
            "timestamps": timestamps,
            "include_paths": self._adds_path,
        }

    def inspect(self, files: list[InputFile]) -> tuple[Known | None, ...]:
        from headrace.annex.media import frames

        remote = any(file.in_store for file in files)
        with ThreadPoolExecutor(32 if remote else 4, thread_name_prefix="video") as threads:
            return tuple(threads.map(lambda file: frames.known_of(file, self._how.max_pixels), files))

    def schema(self) -> pa.Schema:
        """Return the columns; reads the first frame of each file the first time."""
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
        return self.with_path(pa.schema(fields))

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

        file, own = self.file(split.file), self.schema()
        if self._adds_path:
            own = own.remove(own.get_field_index("path"))
        type_ = own.field("frame").type
        shape = None if isinstance(type_, RaggedTensorType) else tuple(type_.shape)
        rows = _Rows(own if columns is None else select(own, columns), self._how.size, shape)
        stride = self._stride(self.inspected()[split.file])
        found = frames.frames(file.path, (split.start, split.stop), file.size, stride, self._how.max_pixels)
        for row in itertools.count():
            with decoding():
                fault = rows.next_of(file.path, found)
            if fault is None:
                if rows.ended:
                    break
                if rows.count >= batch_rows or rows.bytes > BATCH_BYTES:
                    yield rows.batch()
                continue
            if bad is None:
                raise fault
            if rows.count:
                yield rows.batch()
            bad(row, 1, fault.with_traceback(None))
        if rows.count:
            yield rows.batch()

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the frame, counted from 0."""
        stride = self._stride(self.inspected()[split.file])
        return Location(self.file(split.file).path, (-(-split.start // stride) + row) * stride, "frame")


class _Rows:
    """Frames on their way into batches."""

    def __init__(
        self, target: pa.Schema, size: tuple[int, int] | None, shape: tuple[int, ...] | None
    ) -> None:
        self._target, self._size, self._shape = target, size, shape
        self._names = {*target.names}
        self.ended = False
        self._clear()

    def _clear(self) -> None:
        self._pixels: list[Any] = []
        self._numbers: list[int] = []
        self._times: list[tuple[float, float]] = []
        self.bytes = 0

    @property
    def count(self) -> int:
        """How many rows wait."""
        return len(self._numbers)

    def next_of(self, path: str, found: Iterator[tuple[Got, Any]]) -> UnreadableFile | None:
        """Take the next frame, and return what is wrong with it. ``ended`` is set where there is no further one."""
        from headrace.annex.media import frames

        try:
            got, stream = next(found)
        except StopIteration:
            self.ended = True
            return None
        except UnreadableFile as error:  # nothing comes behind
            return error
        if got.frame is None:
            return frames.unreadable(path, f"frame {got.number:,}: {got.fault}")
        if "frame" in self._names:
            pixels = frames.pixels_of(got.frame, self._size)
            if self._shape is not None and pixels.shape != self._shape:
                (height, width, _), (had, wide, _) = pixels.shape, self._shape
                return frames.unreadable(
                    path,
                    f"frame {got.number:,} is of {width} × {height} pixels, and those before of {wide} × {had}",
                )
            self._pixels.append(pixels)
            self.bytes += pixels.nbytes
        self._numbers.append(got.number)
        self._times.append(frames.seconds_of(got.frame, stream))
        return None

    def batch(self) -> pa.RecordBatch:
        """Return the frames that were taken since the last batch."""
        import numpy as np
        import pyarrow as pa

        from headrace.core.arrow.batch import empty_columns
        from headrace.core.arrow.forms import RaggedTensorType, ragged_column

        columns = []
        for field in self._target:
            if field.name == "frame_index":
                columns.append(pa.array(self._numbers, field.type))
            elif field.name == "frame_timestamp":
                columns.append(pa.array(self._times, field.type))
            else:
                flat = np.concatenate([each.reshape(-1) for each in self._pixels])
                if isinstance(field.type, RaggedTensorType):
                    shapes = np.array([each.shape for each in self._pixels], np.int64)
                    columns.append(ragged_column(flat, shapes, field.type))
                    continue
                values = pa.Array.from_buffers(pa.uint8(), len(flat), [None, pa.py_buffer(flat)])
                storage = pa.Array.from_buffers(
                    field.type.storage_type, self.count, [None], children=[values]
                )
                columns.append(pa.ExtensionArray.from_storage(field.type, storage))
        made = empty_columns(self.count)
        if columns:
            made = pa.RecordBatch.from_arrays(columns, schema=self._target)
        self._clear()
        return made


def video_options(stride: Any, fps: Any, size: Any, timestamps: bool, max_pixels: Any) -> VideoOptions:
    """Return the options as they are used; refuses what cannot be meant."""
    if fps is not None:
        if isinstance(fps, bool) or not isinstance(fps, (int, float)) or not 0 < fps < 1e6:
            raise ArgumentError(f"read_video: fps is a number of frames per second, not {fps!r}.")
        if stride != 1:
            raise ArgumentError(
                "read_video: stride= and fps= both say which frames are taken; give one of them."
            )
    return VideoOptions(
        whole_number(stride, "read_video: stride", 1 << 31),
        fps,
        image_size(size, "resize"),
        bool(timestamps),
        whole_number(max_pixels, "read_video: max_pixels", 1 << 32),
    )

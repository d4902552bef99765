"""Sound files as rows of samples. soundfile decodes them, soxr changes their rate."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from headrace.annex.media.containers import behind_tag, lacking, missing_bytes, unread
from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.process import decoding
from headrace.core.source_ports import Bad
from headrace.core.work import Split
from headrace.errors import HeadraceError, UnreadableFile
from headrace.sources.file_source import PathArgument, WholeFileSource, batches_of, content, damaged, fetched
from headrace.sources.images import whole_number

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

MAX_SAMPLES = 1 << 28  # of four bytes each, over all channels: a GiB
_MOST_SAMPLES = (1 << 31) - 1  # what the offsets of a column can count
_MOST_RATE = 1 << 24
# Bytes of samples for each of a file, about.
_PACKED = {
    ".flac": 4,
    ".mp3": 20,
    ".ogg": 20,
    ".oga": 20,
    ".opus": 30,
}


class AudioOptions(NamedTuple):
    """How sound is made into samples: one channel, at a rate (None: the file's); and the most in a file."""

    mono: bool
    rate: int | None
    max_samples: int


class Sound(NamedTuple):
    """What was read of a file: samples of shape (channels, n), or (n,) of one channel; None if not asked for."""

    samples: np.ndarray[Any, np.dtype[np.float32]] | None
    rate: int


class AudioSource(WholeFileSource[bool]):
    """Reads each file of sound as one row: columns ``amplitude``, ``sample_rate``, and ``path`` if asked for."""

    kind = "audio"
    suffixes = suffixes_read_by("read_audio")
    reads_objects = True
    decodes = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        mono: bool = False,
        sample_rate: int | None = None,
        include_paths: bool = False,
        max_samples: int = MAX_SAMPLES,
    ) -> None:
        super().__init__(paths, include_paths=include_paths)
        require("soundfile", "audio", "read_audio")
        rate = (
            None if sample_rate is None else whole_number(sample_rate, "read_audio: sample_rate", _MOST_RATE)
        )
        if rate is not None:
            require("soxr", "audio", "read_audio(sample_rate=…)")
        self._how = AudioOptions(
            bool(mono), rate, whole_number(max_samples, "read_audio: max_samples", _MOST_SAMPLES)
        )

    def options(self) -> dict[str, Any]:
        return {"mono": self._how.mono, "sample_rate": self._how.rate}

    def schema(self) -> pa.Schema:
        """Return the columns; shapes differ from row to row."""
        import pyarrow as pa

        from headrace.core.arrow.forms import RaggedTensorType

        samples = pa.list_(pa.float32()) if self._how.mono else RaggedTensorType(pa.float32(), 2)
        return self.with_places(pa.schema([("amplitude", samples), ("sample_rate", pa.int64())]))

    def forms(self) -> Mapping[str, str]:
        """Say that samples of one channel are arrays, not lists."""
        from headrace.core.arrow.forms import ARRAYS

        return {"amplitude": ARRAYS} if self._how.mono else {}

    def inspect(self, files: list[InputFile]) -> bool:
        """Learn nothing: what a file holds is found out when it is read."""
        return True

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the files of a split; a batch ends early at 64 MiB."""
        from headrace.core.arrow.batch import empty_columns
        from headrace.sources.schemas import select

        names = ["amplitude", "sample_rate"] if columns is None else columns
        target = select(self.schema(), names)
        files = [self.file(number) for number in self.files_of(split)]

        def rows() -> Iterator[tuple[Sound, int] | UnreadableFile]:
            for file, stream in zip(files, fetched(files), strict=True):
                try:
                    sound = _sound(file, stream, self._how, decoded="amplitude" in names)
                except UnreadableFile as error:
                    yield error
                else:
                    yield sound, 0 if sound.samples is None else sound.samples.nbytes

        if not names:
            return iter(
                [empty_columns(min(batch_rows, len(files) - at)) for at in range(0, len(files), batch_rows)]
            )
        return batches_of(rows(), lambda sounds: _batch(sounds, target), batch_rows, bad)

    def _sizes(self, inspected: bool) -> Sequence[int]:
        """Estimate the bytes of the samples by the suffix, without opening a file."""
        return [
            max(1, file.size * next((n for end, n in _PACKED.items() if file.path.lower().endswith(end)), 2))
            for file in self._files
        ]


def _batch(sounds: Sequence[Sound], target: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    columns = [
        _column([each.samples for each in sounds], field.type)
        if field.name == "amplitude"
        else pa.array([each.rate for each in sounds], field.type)
        for field in target
    ]
    return pa.RecordBatch.from_arrays(columns, schema=target)


def _column(samples: Sequence[Any], type_: pa.DataType) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    from headrace.core.arrow.forms import RaggedTensorType, ragged_column

    flat = np.concatenate([each.reshape(-1) for each in samples])
    if isinstance(type_, RaggedTensorType):
        return ragged_column(flat, np.array([each.shape for each in samples], np.int64), type_)
    ends = np.cumsum([0, *map(len, samples)], dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(ends), pa.array(flat), type=type_)


# ---------------------------------------------------------------- a file


def _sound(file: InputFile, stream: BinaryIO | None, how: AudioOptions, *, decoded: bool) -> Sound:
    """Decode one file; whatever is wrong with it names it."""
    try:
        with stream or content(file) as whole, decoding():
            data, size = behind_tag(whole, file.size)
            if lost := missing_bytes(data, size):
                raise _unreadable(file.path, f"it was cut short: {lacking(lost)} at its end")
            if why := unread(data, size):
                raise _unreadable(file.path, why)
            return _decoded(file.path, data, how, decoded=decoded)
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:  # damaged files make decoders raise what they like
        reason = getattr(error, "error_string", "") or getattr(error, "strerror", "") or str(error)
        raise _unreadable(file.path, reason.removeprefix("Error : ") or type(error).__name__) from error


def _decoded(path: str, data: BinaryIO, how: AudioOptions, *, decoded: bool) -> Sound:
    import soundfile

    with soundfile.SoundFile(data) as sound:
        rate, channels, count = sound.samplerate, sound.channels, sound.frames
        if not decoded:
            return Sound(None, how.rate or rate)
        grows = (how.rate or rate) / rate
        if count * channels * max(1.0, grows) > how.max_samples:
            raise UnreadableFile(
                f"Cannot read the sound file {path!r}: it has {count:,} samples in each of {channels} channels, more "
                f"than max_samples={how.max_samples:,}, the limit that protects against files that do not fit into "
                "memory. If you trust it, raise max_samples=."
            )
        samples = sound.read(
            count, dtype="float32", always_2d=True
        )  # some codecs cannot say how much is left
    if len(samples) < count:
        raise _unreadable(path, f"it was cut short: {len(samples):,} of {count:,} samples are there")
    return Sound(_as_asked(samples, rate, how), how.rate or rate)


def _as_asked(samples: Any, rate: int, how: AudioOptions) -> Any:
    """Bring samples of shape (n, channels) to what was asked for: (channels, n) or (n,)."""
    import numpy as np

    if how.mono:
        samples = samples.mean(axis=1) if samples.shape[1] > 1 else samples[:, 0]
    if how.rate is not None and how.rate != rate:
        import soxr

        samples = soxr.resample(samples, rate, how.rate)
    return np.ascontiguousarray(samples.T, np.float32)


def _unreadable(path: str, reason: str) -> UnreadableFile:
    return damaged(f"the sound file {path!r}", reason, path, "read_audio")

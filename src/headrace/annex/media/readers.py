"""Functions that begin a dataset with files of sound or of video."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.options import of_files
from headrace.sources.file_source import PathArgument

__all__ = ["read_audio", "read_video"]


@known_arguments(also=ray_arguments.READ)
def read_audio(
    paths: PathArgument,
    *,
    mono: bool = False,
    sample_rate: int | None = None,
    include_paths: bool = False,
    max_samples: int = 1 << 28,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read each file of sound as one row: its samples in ``amplitude``, and their rate. Needs the extra ``audio``.

    The columns are those of Ray Data: ``amplitude``, an array of float32 of shape (channels, n), mostly between -1
    and 1, and ``sample_rate``, samples per second, int64. Shapes differ from row to row: a batch has n objects.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.wav``, ``.flac``, ``.mp3``, ``.ogg``, ``.oga``, ``.opus``,
        ``.aiff``, ``.aif``, ``.au``, ``.caf`` and ``.w64`` files.
    mono
        True takes the mean of the channels; arrays are of shape (n,) then, as models of speech take them.
    sample_rate
        Samples per second that all sound is brought to (by the library ``soxr``, at its high quality), such as
        16000. None: each file keeps its own.
    max_samples
        How many samples a file may hold, over all channels, by its header; 4 bytes each. The default is 1 GiB: 93
        minutes of one channel at 48 kHz. It is against small files that unpack to more than a machine has.

    Raises
    ------
    ArgumentError
        ``sample_rate`` or ``max_samples`` is something else. ``MissingLibrary``: soundfile is not installed.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file is damaged, no sound, has more than ``max_samples``, holds several recordings one behind another, or
        was cut short: WAV, AIFF, AU, CAF, Ogg, FLAC and MP3 files tell how long they should be. ``on_error`` says
        what becomes of its row.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr, numpy as np
    >>> soundfile = pytest.importorskip("soundfile")
    >>> file = f"{tempfile.mkdtemp()}/a.wav"
    >>> soundfile.write(file, np.zeros((8_000, 2)), 8_000)
    >>> row = hr.read_audio(file, mono=True, sample_rate=16_000).take(1)[0]
    >>> row["amplitude"].shape, row["amplitude"].dtype, row["sample_rate"]
    ((16000,), dtype('float32'), 16000)
    """
    return of_files("headrace.annex.media.audio:AudioSource", locals())


@known_arguments(also=ray_arguments.READ)
def read_video(
    paths: PathArgument,
    *,
    stride: int = 1,
    fps: float | None = None,
    resize: tuple[int, int] | None = None,
    include_timestamps: bool = False,
    include_paths: bool = False,
    max_pixels: int = 89_478_485,
    storage_options: Mapping[str, Any] | None = None,
) -> Dataset:
    """Read each frame of video files as one row: its pixels, and its number. Needs the extra ``video``.

    The columns are those of Ray Data: ``frame``, uint8 of shape (height, width, 3), RGB, and ``frame_index``, int64,
    from 0 in each file. Frames come in the order in which they are shown,
    and upright: what a phone recorded on its side is turned, as its file says.

    Parameters
    ----------
    paths, include_paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.mp4``, ``.m4v``, ``.mov``, ``.mkv``, ``.webm``, ``.avi``,
        ``.mpg``, ``.mpeg``, ``.ts``, ``.m2ts``, ``.mts``, ``.flv``, ``.wmv``, ``.asf``, ``.3gp``, ``.ogv`` and
        ``.mxf`` files.
    stride
        Take each frame whose number is a multiple of it. Groups of frames, from one key frame to the next, of which
        none is wanted are not decoded (H.264, HEVC, AV1 and VP9, in MP4, MOV, Matroska and WebM).
    fps
        Instead of ``stride``: about so many frames per second. As in Ray Data, the stride is then the file's own rate
        divided by it, rounded, and at least 1.
    resize
        ``(height, width)`` in pixels that all frames are scaled to (bilinear). None keeps their size; where files
        differ in it, a batch is n objects instead of one array.
    include_timestamps
        Whether to add ``frame_timestamp``: when the frame begins and ends, in seconds, float64 of shape (2,); NaN
        where the file does not say.
    max_pixels
        How many pixels a frame may have, against files that unpack to more than a machine can hold.

    The first frame of each file is decoded when the dataset is first looked at. MP4 and MOV files of more than 600
    frames are cut at key frames, and read by several workers at a time; other files are read by one.

    Raises
    ------
    ArgumentError
        ``stride``, ``fps`` or ``resize`` is something else. ``MissingLibrary``: PyAV is not installed.
    NothingMatched, InputChanged
        As for :func:`read_parquet`.
    UnreadableFile
        A file is damaged, no video, or has frames of more than ``max_pixels``; a frame cannot be decoded; or a file
        ends earlier than it says. ``on_error`` says what becomes of a frame; a file that ends early has one row for
        what is missing.

    Examples
    --------
    >>> import pytest, tempfile, headrace as hr, numpy as np
    >>> av = pytest.importorskip("av")
    >>> file = f"{tempfile.mkdtemp()}/a.mp4"
    >>> with av.open(file, "w") as video:
    ...     stream = video.add_stream("libx264", rate=25, width=64, height=48)
    ...     for _ in range(50):
    ...         video.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8))))
    ...     video.mux(stream.encode())
    >>> rows = hr.read_video(file, stride=20, resize=(24, 32)).take_all()
    >>> [(row["frame_index"], row["frame"].shape) for row in rows]
    [(0, (24, 32, 3)), (20, (24, 32, 3)), (40, (24, 32, 3))]
    """
    return of_files("headrace.annex.media.video:VideoSource", locals())

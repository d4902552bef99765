"""Functions that begin a dataset with files of sound, of video, or of pages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.core.arguments import known_arguments
from headrace.dataset.dataset import Dataset
from headrace.plan import ray_arguments
from headrace.readers.unfinished import warn_of_unfinished
from headrace.sources.files import PathArgument

__all__ = ["read_audio"]


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
    """Read each file of sound as one row: its samples in ``amplitude``, and their rate. Needs ``headrace[audio]``.

    The columns are those of Ray Data: ``amplitude``, an array of float32 of shape (channels, n), mostly between -1
    and 1, and ``sample_rate``, samples per second, int64. Shapes differ from row to row: a batch has n objects.

    Parameters
    ----------
    paths, storage_options
        As for :func:`read_parquet`; of a folder, ``.wav``, ``.flac``, ``.mp3``, ``.ogg``, ``.oga``, ``.opus``,
        ``.aiff``, ``.aif``, ``.au``, ``.caf`` and ``.w64`` files.
    mono
        True takes the mean of the channels; arrays are of shape (n,) then, as models of speech take them.
    sample_rate
        Samples per second that all sound is brought to (by the library ``soxr``, at its high quality), such as
        16000. None: each file keeps its own.
    include_paths
        Whether to add the string column ``path``, the file's absolute path.
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
        A file is damaged, no sound, has more than ``max_samples``, or was cut short: WAV, AIFF, AU, CAF, Ogg, FLAC
        and MP3 files tell how long they should be. ``on_error`` says what becomes of its row.

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
    from headrace.sources.media.audio import AudioSource

    warn_of_unfinished(paths)
    source = AudioSource(
        paths, mono=mono, sample_rate=sample_rate, include_paths=include_paths, max_samples=max_samples
    )
    return Dataset.from_source(source.in_store(storage_options))

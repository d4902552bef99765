"""Sound as rows of samples: what soundfile reads, and what becomes of files that are damaged or cut short."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.media.audio import AudioSource
from headrace.annex.media.containers import missing_bytes
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, MissingLibrary, UnreadableFile
from headrace.testing.sources import SourceContract

soundfile = pytest.importorskip("soundfile")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
FORMATS = [
    ("WAV", "PCM_16"), ("WAV", "PCM_U8"), ("WAVEX", "PCM_24"), ("RF64", "PCM_16"), ("W64", "PCM_U8"),
    ("AIFF", "PCM_16"), ("AIFF", "PCM_S8"), ("AU", "FLOAT"), ("CAF", "PCM_24"), ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"), ("OGG", "OPUS"), ("MP3", "MPEG_LAYER_III"),
]  # fmt: skip


def noise(samples: int, channels: int = 1) -> Any:
    return np.random.default_rng(samples).normal(0, 0.1, (samples, channels)).astype(np.float32)


def packed(samples: Any, kind: str = "WAV", subtype: str | None = None, rate: int = 48_000) -> bytes:
    stream = io.BytesIO()
    soundfile.write(stream, samples, rate, format=kind, subtype=subtype)
    return stream.getvalue()


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    return hr.read_audio(path, **options).with_options(**QUIET).take_all()


class AudioContract(SourceContract):
    folder: Path
    options: ClassVar[dict[str, Any]]

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.file_source.SPLIT_FILES", 3)
        monkeypatch.setattr("headrace.sources.file_source.SPLITS", 1)

    def make(self) -> Source:
        for number in range(5):
            path = self.folder / f"{number}.wav"
            if not path.exists():
                path.write_bytes(packed(noise(10 + number, 1 + number % 2), rate=8_000 * (1 + number)))
        return AudioSource(self.folder, include_paths=True, **self.options)

    def make_bad(self) -> tuple[Source, list[int]]:
        source = self.make()
        whole = (self.folder / "1.wav").read_bytes()
        (self.folder / "1.wav").write_bytes(whole[:-3])
        (self.folder / "4.wav").write_bytes(b"no sound")
        return source, [1, 4]


class TestAudio(AudioContract):
    options: ClassVar[dict[str, Any]] = {}


class TestSpeech(AudioContract):
    options: ClassVar[dict[str, Any]] = {"mono": True, "sample_rate": 16_000}


@pytest.mark.parametrize(("kind", "subtype"), FORMATS)
def test_samples_are_those_of_soundfile_and_a_file_that_lacks_some_is_no_shorter_sound(
    tmp_path: Path, kind: str, subtype: str
) -> None:
    """The library itself reads what is left of most files, without a word."""
    for count in (4_000, 4_001):
        data = packed(noise(count, 2), kind, subtype)
        assert missing_bytes(io.BytesIO(data), len(data)) == 0
        path = tmp_path / ("a.wav" if kind != "MP3" else "a.mp3")
        path.write_bytes(data)
        (row,) = read(path)
        expected, rate = soundfile.read(path, dtype="float32", always_2d=True)
        assert row["amplitude"].shape == (2, len(expected)) == (2, count)
        assert row["amplitude"].dtype == np.float32 and row["sample_rate"] == rate == 48_000
        np.testing.assert_array_equal(row["amplitude"], expected.T)
        path.write_bytes(data + b"more")
        assert len(read(path)) == 1
        for lost in (2, 7, len(data) // 3, len(data) - 50):
            path.write_bytes(data[:-lost])
            with pytest.raises(UnreadableFile, match=r"Cannot read the sound file '.*/a\.(wav|mp3)': "):
                read(path)


def test_lengths_that_were_never_filled_in_are_none(tmp_path: Path) -> None:
    data = bytearray(packed(noise(100)))
    for length in (0xFFFFFFFF, 0x7FFFF000):  # as ffmpeg and sox write them into a pipe
        data[40:44] = length.to_bytes(4, "little")
        (tmp_path / "a.wav").write_bytes(data)
        assert read(tmp_path)[0]["amplitude"].shape == (1, 100)


def test_sound_that_decoders_leave_unread_is_no_shorter_sound(tmp_path: Path) -> None:
    """libsndfile ends where the header says, or the first of several recordings does."""
    wav = packed(noise(4_000))
    tag = b"ID3\x03\0\0\0\0\x08\0" + bytes(1024)
    for kind in ("WAV", "AIFF", "FLAC", "OGG", "MP3"):
        plain = packed(noise(48_000), kind)
        tagged = tmp_path / "tagged"
        tagged.write_bytes(tag + plain)
        (tmp_path / "plain").write_bytes(plain)
        np.testing.assert_array_equal(read(tagged)[0]["amplitude"], read(tmp_path / "plain")[0]["amplitude"])
        if kind in ("FLAC", "OGG", "MP3"):
            for between in (b"", tag) if kind == "MP3" else (b"",):
                tagged.write_bytes(plain + between + packed(noise(47_000), kind))
                with pytest.raises(UnreadableFile, match="several recordings follow each other"):
                    read(tagged)
    (tmp_path / "a.wav").write_bytes(wav[:40] + bytes(4) + wav[44:])
    with pytest.raises(UnreadableFile, match="says that it has no samples, and 8,000 bytes come after it"):
        read(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(wav[:40] + bytes(4) + b"LIST\x04\0\0\0INFO")
    assert read(tmp_path / "a.wav")[0]["amplitude"].shape == (1, 0)


@pytest.mark.parametrize(("kind", "subtype"), [("WAV", "GSM610"), ("AU", "G723_24"), ("SVX", "PCM_16")])
def test_rarer_codecs(tmp_path: Path, kind: str, subtype: str) -> None:
    (tmp_path / "a.wav").write_bytes(packed(noise(640), kind, subtype, 8_000))
    with soundfile.SoundFile(tmp_path / "a.wav") as sound:
        expected = sound.read(sound.frames, dtype="float32", always_2d=True)
    assert len(expected) >= 640
    np.testing.assert_array_equal(read(tmp_path / "a.wav")[0]["amplitude"], expected.T)


def test_mono_and_rate(tmp_path: Path) -> None:
    soxr = pytest.importorskip("soxr")
    samples = noise(48_000, 2)
    (tmp_path / "a.wav").write_bytes(packed(samples, subtype="FLOAT"))
    (tmp_path / "b.wav").write_bytes(packed(noise(0, 1), subtype="FLOAT"))
    mean = samples.mean(axis=1)
    whole, empty = read(tmp_path, mono=True)
    np.testing.assert_array_equal(whole["amplitude"], mean)
    assert empty["amplitude"].shape == (0,)
    speech, empty = read(tmp_path, mono=True, sample_rate=16_000)
    np.testing.assert_array_equal(speech["amplitude"], soxr.resample(mean, 48_000, 16_000))
    assert speech["sample_rate"] == empty["sample_rate"] == 16_000
    assert empty["amplitude"].shape == (0,) and empty["amplitude"].dtype == np.float32
    both = read(tmp_path, sample_rate=16_000)[0]["amplitude"]
    np.testing.assert_array_equal(both, soxr.resample(samples, 48_000, 16_000).T)
    schema = hr.read_audio(tmp_path, mono=True).schema()
    assert schema.field("amplitude").type == pa.list_(pa.float32())
    batch = hr.read_audio(tmp_path).with_options(**QUIET).take_batch(2)
    assert [each.shape for each in batch["amplitude"]] == [(2, 48_000), (1, 0)]


def test_what_unpacks_to_too_much_is_refused(tmp_path: Path) -> None:
    """A FLAC file of silence has a hundredth of a byte for each sample."""
    bomb = packed(np.zeros((500_000, 2), np.float32), "FLAC")
    assert len(bomb) < 20_000
    (tmp_path / "a.flac").write_bytes(bomb)
    with pytest.raises(
        UnreadableFile, match=r"500,000 samples in each of 2 channels, more than max_samples=999,999,"
    ):
        read(tmp_path, max_samples=999_999)
    assert read(tmp_path, max_samples=1_000_000)[0]["amplitude"].shape == (2, 500_000)
    with pytest.raises(UnreadableFile, match="raise max_samples="):
        read(tmp_path, max_samples=1_000_000, sample_rate=96_000)
    header = bytearray(packed(noise(4_000), "FLAC"))
    header[21] |= 0xF  # 64 thousand million samples
    (tmp_path / "a.flac").write_bytes(header)
    with pytest.raises(UnreadableFile, match=r"64,424,513,440 samples"):
        read(tmp_path)


def test_bad_files_are_left_out_by_name(tmp_path: Path) -> None:
    sounds = tmp_path / "sounds"
    sounds.mkdir()
    (sounds / "a.wav").write_bytes(packed(noise(10)))
    (sounds / "b.wav").write_bytes(b"")
    (sounds / "c.flac").write_bytes(packed(noise(30_000), "FLAC")[:-100])
    (sounds / "d.csv").write_text("not looked at")
    data = hr.read_audio(sounds, include_paths=True).with_options(on_error="reject", **QUIET)
    result = data.map(lambda row: {"n": row["amplitude"].size}).write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (1, 2)
    rejected = hr.read_rejected(tmp_path / "out").with_options(**QUIET).take_all()
    assert [row["_file"] for row in rejected] == [str(sounds / "b.wav"), str(sounds / "c.flac")]
    assert "flac decoder lost sync" in rejected[1]["_error"]
    assert "cut short" in rejected[0]["_error"] or "not recognised" in rejected[0]["_error"]
    assert data.count() == 3, "names are counted without decoding"
    with pytest.raises(UnreadableFile, match="By its name, read_csv reads it"):
        read(sounds / "d.csv")


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.wav").write_bytes(packed(noise(10)))
    for options in ({"sample_rate": 0}, {"sample_rate": 16e3}, {"max_samples": 0}, {"max_samples": 1 << 31}):
        with pytest.raises(ArgumentError, match=f"{next(iter(options))} is a whole number from 1 to "):
            hr.read_audio(tmp_path, **options)
    monkeypatch.setitem(sys.modules, "soundfile", None)
    with pytest.raises(MissingLibrary, match=r'pip install "\.\[audio\]"'):
        hr.read_audio(tmp_path)

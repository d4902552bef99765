"""Frames of video: which are decoded, what their numbers are, and what becomes of files that are damaged."""

from __future__ import annotations

import struct
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest

import headrace as hr
from headrace.annex.media.video import VideoSource
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, MissingLibrary, UnreadableFile
from headrace.testing.sources import SourceContract, read_all

av = pytest.importorskip("av")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
HEIGHT, WIDTH = 48, 64
X264 = {"x264-params": "keyint=12:scenecut=0:bframes=3:open-gop=1:log-level=none"}
X265 = {"x265-params": "keyint=12:scenecut=0:bframes=3:open-gop=1:log-level=none"}
VP9 = {"lag-in-frames": "0", "deadline": "realtime", "cpu-used": "8"}
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "a.mp4": ("libx264", X264),
    "b.mkv": ("libx264", X264),
    "c.mov": ("libx265", X265),
    "d.webm": ("libvpx-vp9", VP9),
    "e.avi": ("mpeg4", {"bf": "2"}),
    "f.ts": ("libx264", X264),
    "g.mkv": ("mjpeg", {}),
}


def film(path: Path, count: int = 50, *, size: tuple[int, int] = (HEIGHT, WIDTH), **container: Any) -> Path:
    """Write frames that become lighter, with a white corner at the top left."""
    codec, options = KINDS.get(path.name, KINDS["a.mp4"])
    with av.open(str(path), "w", options=container) as video:
        stream = video.add_stream(codec, rate=25, options=options)
        stream.height, stream.width = size
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.gop_size = 12
        for number in range(count):
            pixels = np.full((*size, 3), 3 * number % 200, np.uint8)
            pixels[:16, :16] = 255
            pixels[16:, number % size[1]] = 90
            video.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        video.mux(stream.encode())
    return path


def decoded(path: Path) -> list[Any]:
    """Decode a file from its start, by the library alone."""
    with av.open(str(path)) as video:
        return [frame.to_ndarray(format="rgb24") for frame in video.decode(video=0)]


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    return hr.read_video(path, **options).with_options(**QUIET).take_all()


def rejecting(path: Path, tmp_path: Path, **options: Any) -> tuple[list[int], list[str]]:
    """Return the numbers of the frames that were read, and what was said of others."""
    data = hr.read_video(path, **options).with_options(on_error="reject", **QUIET)
    expected = decoded_whole[path.name]
    out = tmp_path / "out"
    same = data.map(
        lambda row: {
            "n": row["frame_index"],
            "same": bool((row["frame"] == expected[row["frame_index"]]).all()),
        }
    )
    same.write_parquet(out, mode="overwrite")
    rows = hr.read_parquet(out).with_options(**QUIET).take_all()
    assert all(row["same"] for row in rows), [row["n"] for row in rows if not row["same"]]
    said = [row["_error"] for row in hr.read_rejected(out).with_options(**QUIET).take_all()]
    return [row["n"] for row in rows], said


decoded_whole: dict[str, list[Any]] = {}


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("films")
    for name in KINDS:
        decoded_whole[name] = decoded(film(folder / name))
    decoded_whole["fast.mp4"] = decoded(film(folder / "fast.mp4", movflags="faststart"))
    return folder


@pytest.fixture
def short_splits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.annex.media.video._SPLIT_FRAMES", 10)


@pytest.mark.usefixtures("short_splits")
class TestVideo(SourceContract):
    folder: Path
    options: ClassVar[dict[str, Any]] = {"include_timestamps": True, "max_pixels": 10_000}

    def make(self) -> Source:
        for name, size in (("a.mp4", (HEIGHT, WIDTH)), ("e.avi", (32, 32))):
            if not (self.folder / name).exists():
                film(self.folder / name, 30, size=size)
        return VideoSource(self.folder, include_paths=True, **self.options)


class TestSomeFrames(TestVideo):
    options: ClassVar[dict[str, Any]] = {"stride": 7, "resize": (12, 16), "max_pixels": 10_000}

    def make_bad(self) -> tuple[Source, list[int]]:
        self.make()
        film(self.folder / "a.mp4", 50)
        spoil(self.folder / "a.mp4", 12)
        (self.folder / "e.avi").write_bytes(b"no video")
        return VideoSource(self.folder, **self.options), [2, 3, 8]


def spoil(path: Path, number: int) -> None:
    """Garble the frame that is the n-th to be decoded."""
    with av.open(str(path)) as video:
        entry = video.streams.video[0].index_entries[number]
    data = bytearray(path.read_bytes())
    data[entry.pos : entry.pos + entry.size] = b"\xff" * entry.size
    path.write_bytes(data)


# ---------------------------------------------------------------- which frames


@pytest.mark.usefixtures("short_splits")
@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_of_the_library_decoding_all(films: Path, name: str) -> None:
    """Groups that begin before their key frame is shown (open GOPs) included, whatever is passed over."""
    whole = decoded_whole[name]
    assert len(whole) == 50
    for stride in (1, 5, 13, 24, 49, 60):
        source = VideoSource(films / name, stride=stride, max_pixels=10_000)
        cut = name in ("a.mp4", "c.mov")
        assert (len(source.splits()) > 2) == cut
        table = read_all(source)
        assert table["frame_index"].to_pylist() == list(range(0, 50, stride))
        frames = table["frame"].combine_chunks().to_numpy_ndarray()
        np.testing.assert_array_equal(frames, np.stack(whole[::stride]))


def test_groups_without_a_wanted_frame_are_not_decoded(films: Path, tmp_path: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes((films / "a.mp4").read_bytes())
    for number in (13, 14, 15):
        spoil(path, number)
    assert [row["frame_index"] for row in read(path, stride=40)] == [0, 40]
    with pytest.raises(UnreadableFile, match=r"a\.mp4': frame \d+: "):
        read(path)


def test_moments_rates_and_sizes(films: Path, tmp_path: Path) -> None:
    row = read(films / "a.mp4", fps=5, include_timestamps=True)[1]
    assert row["frame_index"] == 5
    np.testing.assert_allclose(row["frame_timestamp"], [0.2, 0.24])
    assert len(read(films / "a.mp4", fps=60)) == 50
    (row,) = read(films / "a.mp4", stride=50, resize=(24, 32), include_paths=True)
    assert row["path"] == str(films / "a.mp4")
    with av.open(str(films / "a.mp4")) as video:
        first = next(video.decode(video=0))
        made = first.reformat(width=32, height=24, format="rgb24", interpolation="BILINEAR").to_ndarray()
    np.testing.assert_array_equal(row["frame"], made)
    film(tmp_path / "a.mp4", 2)
    film(tmp_path / "b.mkv", 2, size=(32, 32))
    assert hr.read_video(tmp_path).schema().field("frame").type == RaggedTensorType(pa.uint8(), 3)
    shapes = [row["frame"].shape for row in hr.read_video(tmp_path).with_options(**QUIET).take_all()]
    assert shapes == [(HEIGHT, WIDTH, 3)] * 2 + [(32, 32, 3)] * 2
    assert hr.read_video(tmp_path).with_options(**QUIET).count() == 4


def test_what_was_recorded_on_its_side_stands_upright(tmp_path: Path) -> None:
    path = film(tmp_path / "a.mp4", 3)
    data = bytearray(path.read_bytes())
    at = data.index(b"tkhd") + 4 + 40  # the matrix of the track, for a quarter clockwise
    data[at : at + 36] = struct.pack(">9i", 0, 1 << 16, 0, -1 << 16, 0, 0, HEIGHT << 16, 0, 1 << 30)
    path.write_bytes(data)
    (frame, *_) = (row["frame"] for row in read(path))
    assert frame.shape == (WIDTH, HEIGHT, 3)
    assert (frame[:8, -8:] > 200).all() and (frame[:8, :8] < 100).all(), "the corner is at the top right"
    (frame, *_) = (row["frame"] for row in read(path, resize=(32, 24)))
    assert frame.shape == (32, 24, 3) and (frame[:4, -4:] > 200).all()


# ---------------------------------------------------------------- damaged files


@pytest.mark.parametrize("name", ["fast.mp4", "b.mkv", "d.webm", "e.avi", "f.ts"])
def test_a_file_that_ends_early_says_so_behind_its_last_frame(films: Path, tmp_path: Path, name: str) -> None:
    data = (films / name).read_bytes()
    path = tmp_path / name
    if name == "f.ts":  # which does not tell how long it is
        path.write_bytes(data[: len(data) * 7 // 10])
        assert len(read(path)) < 50
        return
    for part in (7, 7.1, 7.2, 7.3, 7.4) if name == "e.avi" else (7,):  # between frames that are held back
        path.write_bytes(data[: int(len(data) * part / 10)])
        numbers, said = rejecting(path, tmp_path)
        assert numbers == list(range(len(numbers))) and 10 < len(numbers) < 45
        (reason,) = said
        assert f"{name}': frame {len(numbers)}: the file was cut short: " in reason
    path.write_bytes(data)
    assert len(read(path)) == 50
    path.write_bytes(data[:200])
    with pytest.raises(UnreadableFile, match=name):
        read(path)


@pytest.mark.usefixtures("short_splits")
def test_the_frames_of_a_damaged_group_are_lost_and_no_others(films: Path, tmp_path: Path) -> None:
    """Without a word, the library gives wrong pixels until the next key frame, or leaves frames out."""
    path = tmp_path / "a.mp4"
    path.write_bytes((films / "a.mp4").read_bytes())
    with av.open(str(path)) as video:
        entries = video.streams.video[0].index_entries
        keys = [i for i, entry in enumerate(entries) if entry.is_keyframe]
    spoil(path, keys[2])
    numbers, said = rejecting(path, tmp_path)
    lost = sorted({*range(50)} - {*numbers})
    assert len(said) == len(lost) > 8
    assert keys[2] <= lost[0] and lost[-1] < keys[3] + 4, (
        "what is shown before the next key frame is made of it"
    )
    assert f"frame {lost[0]}: " in said[0]


def test_a_gap_at_the_end_of_a_whole_file_is_noticed(films: Path, tmp_path: Path) -> None:
    for name in ("b.mkv", "d.webm"):
        data = bytearray((films / name).read_bytes())
        data[len(data) // 2 : -20] = bytes(len(data) - len(data) // 2 - 20)
        (tmp_path / name).write_bytes(data)
        run = hr.read_video(tmp_path / name).with_options(on_error="reject", **QUIET)
        run.drop_columns(["frame"]).write_parquet(tmp_path / f"{name}-out")
        said = [
            row["_error"]
            for row in hr.read_rejected(tmp_path / f"{name}-out").with_options(**QUIET).take_all()
        ]
        assert "ends early, after" in said[-1] and "of 2.00 seconds" in said[-1]


def test_what_is_no_video(films: Path, tmp_path: Path) -> None:
    bad = tmp_path / "a.mp4"
    (tmp_path / "list.txt").write_text("secret")
    for content in (b"", b"#EXTM3U\n#EXTINF:1,\nlist.txt\n", b"ffconcat version 1.0\nfile list.txt\n"):
        bad.write_bytes(content)
        with pytest.raises(UnreadableFile, match=r"Cannot read the video '.*a\.mp4'"):
            read(bad)
    with av.open(str(tmp_path / "b.mp4"), "w") as video:
        stream = video.add_stream("aac", rate=8000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), format="fltp", layout="mono")
        sound.rate = 8000
        video.mux(stream.encode(sound))
        video.mux(stream.encode())
    with pytest.raises(UnreadableFile, match="it has no pictures, only sound"):
        read(tmp_path / "b.mp4")
    with pytest.raises(UnreadableFile, match="more than 3,000 pixels, the limit"):
        read(films / "a.mp4", max_pixels=3_000)


def test_arguments(films: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"stride": 0}, "stride is a whole number"),
        ({"fps": 0}, "fps is a number of frames per second"),
        ({"fps": 5, "stride": 2}, "give one of them"),
        ({"resize": 224}, r"resize is \(height, width\) in pixels"),
        ({"max_pixels": "x"}, "max_pixels is a whole number"),
    ]
    for options, message in wrong:
        with pytest.raises(ArgumentError, match=message):
            hr.read_video(films / "a.mp4", **options)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibrary, match=r'pip install "\.\[video\]"'):
        hr.read_video(films / "a.mp4")

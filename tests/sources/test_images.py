"""Images as pixels: sizes and modes, one shape or many, and files that cannot be decoded."""

from __future__ import annotations

import io
import struct
import subprocess
import sys
import warnings
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import headrace as hr
from headrace.core.arrow.batch import one_array
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.forms import RaggedTensorType
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, InputChanged, UnreadableFile
from headrace.sources.images.source import MODES, ImageSource
from headrace.testing.sources import SourceContract, read_all, read_sound

RANDOM = np.random.default_rng(0)


def picture(height: int, width: int, channels: int = 3) -> Image.Image:
    """Smooth, so that a JPEG of it is near it."""
    coarse = RANDOM.integers(0, 256, (4, 4, channels) if channels > 1 else (4, 4), np.uint8)
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def pixels(path: Path, **options: Any) -> Any:
    """Return the pixels of the only image there."""
    return to_numpy(one_array(read_all(ImageSource(path, **options))["image"]))[0]


class ImageContract(SourceContract):
    folder: Path
    sizes: tuple[tuple[int, int], ...]

    @pytest.fixture(autouse=True)
    def small_splits(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("headrace.sources.file_source.SPLIT_FILES", 3)
        monkeypatch.setattr("headrace.sources.file_source.SPLITS", 1)

    def prepare(self) -> Path:
        for number, (height, width) in enumerate(self.sizes):
            path = self.folder / f"{number}.{'png' if number % 2 else 'jpg'}"
            if not path.exists():
                picture(height, width).save(path)
        return self.folder


class TestScaledImages(ImageContract):
    sizes = ((30, 20), (20, 30), (8, 8), (9, 9), (200, 200))

    def make(self) -> Source:
        return ImageSource(self.prepare(), size=(8, 12), include_paths=True)


class TestImagesOfOneSize(ImageContract):
    sizes = ((30, 20),) * 5

    def make(self) -> Source:
        return ImageSource(self.prepare(), mode="L")


class TestImagesOfManySizes(ImageContract):
    sizes = ((30, 20), (20, 30), (8, 8), (1, 9), (8, 8))

    def make(self) -> Source:
        return ImageSource(self.prepare(), include_paths=True)


# ---------------------------------------------------------------- shapes


def test_size_is_height_and_width(tmp_path: Path) -> None:
    picture(40, 30).save(tmp_path / "a.png")
    source = ImageSource(tmp_path, size=(5, 7))
    assert source.schema() == pa.schema([("image", pa.fixed_shape_tensor(pa.uint8(), [5, 7, 3]))])
    with Image.open(tmp_path / "a.png") as image:
        expected = np.asarray(image.resize((7, 5), Image.Resampling.BILINEAR))
    assert (pixels(tmp_path, size=(5, 7)) == expected).all()
    assert pixels(tmp_path, size=(5, 7), mode="L").shape == (5, 7)


def test_images_of_one_size_are_one_array(tmp_path: Path) -> None:
    for number in range(3):
        picture(6, 4).save(tmp_path / f"{number}.png")
    assert ImageSource(tmp_path).schema().field("image").type == pa.fixed_shape_tensor(pa.uint8(), [6, 4, 3])
    picture(4, 6).save(tmp_path / "3.png")
    assert ImageSource(tmp_path).schema().field("image").type == RaggedTensorType(pa.uint8(), 3)


def test_images_of_many_sizes_go_through_every_verb(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    expected = {}
    for number in range(5):
        image = picture(4 + number, 9)
        image.save(folder / f"{number}.png")
        expected[str(folder / f"{number}.png")] = np.asarray(image)
    data = hr.read_images(folder, include_paths=True).with_options(engine="inline", progress=False)

    def brightest(row: dict[str, Any]) -> dict[str, Any]:
        return {**row, "max": int(row["image"].max())}

    def thumbnails(batch: dict[str, Any]) -> dict[str, Any]:
        return {"small": np.stack([image[:2, :2] for image in batch["image"]])}

    assert (
        data.map_batches(thumbnails).take(1)[0]["small"].tolist()
        == next(iter(expected.values()))[:2, :2].tolist()
    )
    for made in (data, data.map(brightest), data.filter(lambda row: row["image"].shape[0] > 0)):
        rows = made.take_all()
        assert all((row["image"] == expected[row["path"]]).all() for row in rows)
        assert len(rows) == 5
    result = data.map(brightest).write_parquet(tmp_path / "out")
    assert result.rows == 5
    table = pq.read_table(tmp_path / "out")
    again = to_numpy(one_array(table["image"]))
    assert all((a == b).all() for a, b in zip(again, expected.values(), strict=True))
    back = hr.read_parquet(tmp_path / "out").with_options(engine="inline", progress=False).take(1)[0]
    assert back["image"].shape == (4, 9, 3)


def test_workers_read_images_of_many_sizes(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for number in range(4):
        picture(4 + number, 9).save(tmp_path / "in" / f"{number}.png")
    data = hr.read_images(tmp_path / "in").with_options(progress=False)
    assert (
        data.map_batches(lambda b: {"h": [i.shape[0] for i in b["image"]]})
        .write_parquet(tmp_path / "out")
        .rows
        == 4
    )
    assert pq.read_table(tmp_path / "out")["h"].to_pylist() == [4, 5, 6, 7]


# ---------------------------------------------------------------- modes


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_from_every_file(tmp_path: Path, mode: str) -> None:
    colour, grey = picture(9, 9), picture(9, 9, 1)
    palette = colour.quantize(8)
    saved(tmp_path / "a.png", colour)
    saved(tmp_path / "b.jpg", grey)
    saved(tmp_path / "c.png", palette, transparency=bytes(range(8)))
    saved(tmp_path / "d.gif", palette, save_all=True, append_images=[grey])
    saved(tmp_path / "e.jpg", colour.convert("CMYK"))
    saved(tmp_path / "f.png", colour.convert("RGBA"))
    saved(tmp_path / "g.png", colour.convert("1"))
    saved(tmp_path / "h.webp", colour)
    saved(tmp_path / "i.tiff", colour)
    saved(tmp_path / "j.bmp", grey)
    channels = () if mode == "L" else (MODES[mode],)
    table = read_all(ImageSource(tmp_path, mode=mode))
    assert to_numpy(one_array(table["image"])).shape == (10, 9, 9, *channels)
    assert (pixels(tmp_path / "a.png", mode=mode) == np.asarray(colour.convert(mode))).all()


def test_alpha_is_dropped_and_the_first_frame_taken(tmp_path: Path) -> None:
    clear = Image.new("RGBA", (2, 2), (10, 20, 30, 0))
    assert pixels(saved(tmp_path / "a.png", clear))[0, 0].tolist() == [10, 20, 30]
    assert pixels(tmp_path / "a.png", mode="RGBA")[0, 0].tolist() == [10, 20, 30, 0]
    frames = [Image.new("L", (2, 2), value) for value in (7, 200)]
    assert pixels(saved(tmp_path / "b.gif", frames[0], save_all=True, append_images=frames[1:]))[0, 0, 0] == 7


@pytest.mark.parametrize("name", ["a.png", "a.tiff"])
def test_of_sixteen_bits_the_upper_eight_are_taken(tmp_path: Path, name: str) -> None:
    deep = Image.fromarray(np.array([[0, 255, 256, 65535]], np.uint16))
    assert pixels(saved(tmp_path / name, deep), mode="L").tolist() == [[0, 0, 1, 255]]
    assert pixels(tmp_path / name)[0, 3].tolist() == [255, 255, 255]


def test_floats_have_no_range(tmp_path: Path) -> None:
    saved(tmp_path / "a.tiff", Image.fromarray(np.ones((2, 2), np.float32)))
    with pytest.raises(UnreadableFile, match=r"a\.tiff': its pixels \(mode F\) have no fixed range"):
        pixels(tmp_path)


def test_exif_orientation_is_left_to_the_user(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    assert pixels(saved(tmp_path / "a.jpg", picture(20, 30), exif=exif)).shape == (20, 30, 3)


def test_drafts_are_near_and_can_be_switched_off(tmp_path: Path) -> None:
    path = saved(tmp_path / "a.jpg", picture(640, 960), quality=95)
    with Image.open(path) as image:
        exact = np.asarray(image.resize((96, 64), Image.Resampling.BILINEAR))
    assert (pixels(path, size=(64, 96), draft=False) == exact).all()
    difference = np.abs(pixels(path, size=(64, 96)).astype(int) - exact)
    assert 0 < difference.mean() < 1
    assert (pixels(path, size=(161, 240)) == pixels(path, size=(161, 240), draft=False)).all()


# ---------------------------------------------------------------- splits


def test_splits_are_measured_in_pixels(tmp_path: Path) -> None:
    for number in range(200):
        (tmp_path / f"{number:03}.png").write_bytes(b"")  # planning with a size opens nothing
    splits = ImageSource(tmp_path, size=(1000, 1000)).splits()
    assert {(split.rows, split.bytes) for split in splits} == {(2, 6_000_000)}
    splits = ImageSource(tmp_path, size=(100, 100), mode="L").splits()
    assert {(split.rows, split.bytes) for split in splits} == {(3, 30_000), (2, 20_000)}


# ---------------------------------------------------------------- what cannot be read


def bomb(side: int) -> bytes:
    """A PNG whose header promises ``side`` × ``side`` pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


def damaged() -> dict[str, bytes]:
    whole = io.BytesIO()
    picture(50, 50).save(whole, "png")
    jpeg = io.BytesIO()
    picture(50, 50).save(jpeg, "jpeg")
    return {
        "nothing.png": b"",
        "text.jpg": b"no image at all",
        "cut.png": whole.getvalue()[:-200],
        "header.png": whole.getvalue()[:20],
        "cut.jpg": jpeg.getvalue()[: len(jpeg.getvalue()) // 2],
        "flipped.png": whole.getvalue()[:60] + bytes([whole.getvalue()[60] ^ 255]) + whole.getvalue()[61:],
        "bomb.png": bomb(20_000),
        "smaller-bomb.png": bomb(11_000),  # of which Pillow only warns
    }


@pytest.mark.parametrize("size", [None, (8, 8)])
@pytest.mark.parametrize("name", damaged())
def test_a_damaged_file_is_named(tmp_path: Path, name: str, size: tuple[int, int] | None) -> None:
    picture(50, 50).save(tmp_path / "0.png")
    (tmp_path / name).write_bytes(damaged()[name])
    source = ImageSource(tmp_path, size=size)
    with pytest.raises(UnreadableFile, match=rf"Cannot read .*{name}'") as caught:
        read_all(source)
    assert ("raise max_pixels=" in str(caught.value)) == ("bomb" in name)
    assert source.schema().field("image").type.shape[2] == 3  # the others settle it


@pytest.mark.parametrize("options", [{}, {"size": (8, 8)}, {"mode": "L", "size": (50, 50)}])
@pytest.mark.parametrize("mixed", [False, True])
def test_damaged_files_are_told_and_left_out(tmp_path: Path, options: dict[str, Any], mixed: bool) -> None:
    for number, (name, data) in enumerate(damaged().items()):
        (tmp_path / f"{number}-{name}").write_bytes(data)
        if number % 2:
            picture(50 + number * mixed, 50).save(tmp_path / f"{number}.png")
    source = ImageSource(tmp_path, include_paths=True, **options)
    names, told = [], []
    for split in source.splits():
        sound = read_sound(source, split, rows=3)
        names += [Path(path).name for path in sound.table["path"].to_pylist()]
        for rows, error in sound.bad.items():
            assert isinstance(error, UnreadableFile)
            assert str(error).startswith(f"Cannot read the image {source.locate(split, rows.start).file!r}: ")
            told.append(Path(source.locate(split, rows.start).file).name.partition("-")[2])
    assert names == ["1.png", "3.png", "5.png", "7.png"]
    assert told == list(damaged())


def test_of_a_thousand_images_exactly_the_bad_ones_are_told(tmp_path: Path) -> None:
    whole = io.BytesIO()
    picture(40, 60).save(whole, "jpeg")
    wrong: dict[int, bytes] = {
        **{number: whole.getvalue()[: 200 + 20 * number // 50] for number in range(7, 1000, 50)},
        **dict.fromkeys(range(11, 1000, 200), b"no image at all"),
        **{number: bomb(20_000 * number) for number in (1, 2)},
    }
    paths = [tmp_path / f"{number:03}.jpg" for number in range(1000)]
    for number, path in enumerate(paths):
        path.write_bytes(wrong.get(number, whole.getvalue()))
    source = ImageSource(tmp_path, include_paths=True)
    told, given = [], []
    for split in source.splits():
        sound = read_sound(source, split, rows=100)
        told += [Path(source.locate(split, row).file) for rows in sound.bad for row in rows]
        given += map(Path, sound.table["path"].to_pylist())
    assert len(told) == 27
    assert told == [paths[number] for number in sorted(wrong)]
    assert given == [path for number, path in enumerate(paths) if number not in wrong]


def test_the_limit_of_pixels_is_the_callers(tmp_path: Path) -> None:
    picture(50, 50).save(tmp_path / "a.png")
    assert read_all(ImageSource(tmp_path, max_pixels=2500)).num_rows == 1
    with pytest.raises(UnreadableFile, match="more than 2,499 pixels"):
        read_all(ImageSource(tmp_path, max_pixels=2499))
    (tmp_path / "a.png").write_bytes(bomb(14_000))
    with pytest.raises(UnreadableFile, match="truncated"):
        read_all(ImageSource(tmp_path, size=(8, 8), max_pixels=1 << 40))
    assert Image.MAX_IMAGE_PIXELS == 89_478_485


def test_an_image_that_is_a_program_is_not_run(tmp_path: Path) -> None:
    start = "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\n"
    (tmp_path / "a.jpg").write_text(f"{start}showpage\n%%EOF\n")
    with pytest.raises(UnreadableFile, match=r"a\.jpg': it is PostScript"):
        read_all(ImageSource(tmp_path, size=(8, 8)))


def test_a_file_that_vanished_is_no_bad_row(tmp_path: Path) -> None:
    for name in ("a.png", "b.png"):
        picture(5, 5).save(tmp_path / name)
    source = ImageSource(tmp_path)
    splits = source.splits()
    (tmp_path / "b.png").unlink()
    with pytest.raises(InputChanged, match="gone"):
        for split in splits:
            read_sound(source, split)


def test_only_unreadable_files(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UnreadableFile, match=r"a\.png': its first bytes do not belong to an image format"):
        read_all(ImageSource(tmp_path))


def test_warnings_of_others_are_left_alone(tmp_path: Path) -> None:
    picture(5, 5).save(tmp_path / "a.png")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        before = list(warnings.filters)
        for _ in range(3):
            warnings.warn("told once", stacklevel=1)
            read_all(ImageSource(tmp_path))
        assert warnings.filters == before
    assert [str(warning.message) for warning in caught] == ["told once"]


def test_pillows_remarks_on_metadata_are_passed_over(tmp_path: Path) -> None:
    picture(8, 8).save(
        tmp_path / "a.jpg", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x02\x01\x1a\0\x05\0\0\0\x01\0\0\xff\xff"
    )
    assert pixels(tmp_path).shape == (8, 8, 3)  # a warning would be an error here


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 224}, r"size is \(height, width\) in pixels, such as size=\(224, 224\), not 224"),
        ({"size": (1, 2, 3)}, "not .1, 2, 3."),
        ({"size": (0, 5)}, "each from 1 to"),
        ({"size": (2.5, 5)}, "in pixels"),
        ({"mode": "rgb"}, "not 'rgb'"),
        ({"mode": "RGBAX"}, "not 'RGBAX'. Did you mean 'RGBA'"),
        ({"mode": 3}, "not 3"),
        ({"max_pixels": 0}, "max_pixels is a whole number from 1 to 1,099,511,627,776, not 0"),
        ({"max_pixels": 1e6}, "not 1000000.0"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        hr.read_images("a", **options)


def test_pillow_is_imported_by_reading_alone(tmp_path: Path) -> None:
    picture(5, 5).save(tmp_path / "a.png")
    code = f"""
import sys, headrace as hr
data = hr.read_images({str(tmp_path)!r}, size=(4, 4))
from headrace.sources.images.source import ImageSource
source = ImageSource({str(tmp_path)!r}, size=(4, 4))
splits = source.splits()
assert "PIL" not in sys.modules and "pyarrow" not in sys.modules
assert next(source.read(splits[0], None, 9)).num_rows == 1
assert "pandas" not in sys.modules
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)

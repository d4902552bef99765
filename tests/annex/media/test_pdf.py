"""Pages of PDF documents: their text, their pictures, and what becomes of documents that cannot be read."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace as hr
from annex.media.pdfs import document
from headrace.annex.media.pdf import PdfSource
from headrace.core.source_ports import Source
from headrace.errors import ArgumentError, MissingLibrary, UnreadableFile
from headrace.testing.sources import SourceContract

pytest.importorskip("pypdfium2")

QUIET: dict[str, Any] = {"engine": "inline", "progress": False}
ENCRYPTED = "/ID [<00> <00>] /Encrypt << /Filter /Standard /V 1 /R 2 /P -4 /O <{0}> /U <{0}> >>".format(
    "41" * 32
)


def read(path: Path, **options: Any) -> list[dict[str, Any]]:
    return hr.read_pdf(path, **options).with_options(**QUIET).take_all()


class TestPdf(SourceContract):
    folder: Path

    def make(self) -> Source:
        for number in range(3):
            path = self.folder / f"{number}.pdf"
            if not path.exists():
                path.write_bytes(document([f"page {i} of {number}" for i in range(2 + number)]))
        return PdfSource(self.folder, dpi=36, include_paths=True)

    def make_bad(self) -> tuple[Source, list[int]]:
        self.make()
        (self.folder / "1.pdf").write_bytes(document(["one", "%", "three"]))
        (self.folder / "2.pdf").write_bytes(document(["secret"], trailer=ENCRYPTED))
        return PdfSource(self.folder), [3, 5]


def test_pages_have_their_text_in_lines(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(document(["Hello\nwörld".encode("latin1").decode("latin1"), ""]))
    (tmp_path / "b.pdf").write_bytes(document(["third"]))
    rows = read(tmp_path, include_paths=True)
    assert [(row["page"], Path(row["path"]).name) for row in rows] == [
        (1, "a.pdf"),
        (2, "a.pdf"),
        (1, "b.pdf"),
    ]
    assert rows[0]["text"].startswith("Hello\nw") and "\r" not in rows[0]["text"]
    assert [row["text"] for row in rows[1:]] == ["", "third"]
    (tmp_path / "b.pdf").write_bytes(document(["exam-\nple, two-\nthirds, end-", "one-"]))
    texts = [row["text"] for row in read(tmp_path / "b.pdf")]
    assert texts == ["exam-\nple, two-\nthirds, end-", "one-"], "a hyphen at the end of a line stays one"
    assert hr.read_pdf(tmp_path).columns() == ["page", "text"]


def test_pages_as_images(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_bytes(document(["one"]))
    (tmp_path / "b.pdf").write_bytes(document(["two"], size=(100, 100)))
    large, small = (row["image"] for row in read(tmp_path, dpi=144))
    assert large.shape == (400, 600, 3) and small.shape == (200, 200, 3) and large.dtype == np.uint8
    assert (large[-40:, :40] == [255, 0, 0]).all(), "red, at the lower left"
    assert (large[:40] == 255).all() and (large[40:120] < 100).any(), "black letters on white"
    with pytest.raises(
        UnreadableFile, match=r"a\.pdf': page 1: its image would have 600 × 400 pixels, more than"
    ):
        read(tmp_path, dpi=144, max_pixels=239_999)
    assert len(read(tmp_path, dpi=144, max_pixels=240_000)) == 2


def test_documents_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    whole = document(["one", "two"])
    bad = tmp_path / "a.pdf"
    for content, reason in (
        (b"", "it is damaged, or no PDF document"),
        (b"no document", "it is damaged, or no PDF document"),
        (whole[: len(whole) // 2], "it is damaged, or no PDF document"),
        (document(["one"], trailer=ENCRYPTED), "it is encrypted, and needs a password"),
        (document([]), "it is damaged, or no PDF document"),
        (document(["%"]), "page 1: "),
    ):
        bad.write_bytes(content)
        with pytest.raises(UnreadableFile, match=rf"Cannot read the PDF document '{bad}': .*{reason}"):
            read(bad)


def test_bad_pages_are_left_out_by_name(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.pdf").write_bytes(document(["one", "%", "three"]))
    (folder / "b.pdf").write_bytes(b"%PDF-1.4 cut short")
    (folder / "c.pdf").write_bytes(document(["four"]))
    data = hr.read_pdf(folder).with_options(on_error="reject", **QUIET)
    result = data.write_parquet(tmp_path / "out")
    assert (result.rows, result.rejected) == (3, 2)
    rows = hr.read_parquet(tmp_path / "out").with_options(**QUIET).take_all()
    assert [(row["page"], row["text"]) for row in rows] == [(1, "one"), (3, "three"), (1, "four")]
    rejected = hr.read_rejected(tmp_path / "out").with_options(**QUIET).take_all()
    assert [Path(row["_file"]).name for row in rejected] == ["a.pdf", "b.pdf"]
    assert "page 2: " in rejected[0]["_error"]


def test_threads_take_turns(tmp_path: Path) -> None:
    """PDFium is not made for several threads: without turns, this crashes the process."""
    (tmp_path / "a.pdf").write_bytes(document([f"page {i}" for i in range(40)]))
    found: list[list[str]] = []

    def work() -> None:
        found.append([row["text"] for row in read(tmp_path, dpi=20)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[f"page {i}" for i in range(40)]] * 4


def test_arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.pdf").write_bytes(document(["one"]))
    for options in ({"dpi": 0}, {"dpi": 72.5}, {"max_pixels": 0}):
        with pytest.raises(ArgumentError, match=f"{next(iter(options))} is a whole number from 1 to "):
            hr.read_pdf(tmp_path, **options)
    monkeypatch.setitem(sys.modules, "pypdfium2", None)
    with pytest.raises(MissingLibrary, match=r'pip install "\.\[pdf\]"'):
        hr.read_pdf(tmp_path)

"""PDF documents as rows of pages. pypdfium2 (PDFium) reads them, and is imported where they are read."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from headrace.core.files.artifacts import require
from headrace.core.files.formats import suffixes_read_by
from headrace.core.files.input_files import InputFile
from headrace.core.process import decoding
from headrace.core.source_ports import Bad, Location
from headrace.core.work import Split
from headrace.errors import HeadraceError, UnreadableFile
from headrace.sources.file_source import FileSource, PathArgument, content, fetched
from headrace.sources.images import BATCH_BYTES, MAX_PIXELS, whole_number
from headrace.sources.text import another_reader

if TYPE_CHECKING:
    import pyarrow as pa

_MOST_DPI = 4_800
_LOOKED_AT = 64 << 20
_POINTS = 72  # of an inch, in which pages are measured
_PDFIUM = threading.RLock()  # one thread at a time; it may have to close what it left open meanwhile


class _Page(NamedTuple):
    text: str
    pixels: Any  # (height, width, 3), or None


class PdfSource(FileSource[bool]):
    """Reads each page of PDF documents as one row: ``page``, ``text``, and ``image`` if asked for. A split is a file.

    Parameters
    ----------
    paths
        A file, a folder, a glob, or a list of these; of a folder, files that end in ``.pdf``.
    dpi
        Pixels per inch of the images of pages; None makes none.
    include_paths
        Whether to add the column ``path``: the absolute path, a string.
    max_pixels
        How many pixels the image of a page may have.
    """

    suffixes = suffixes_read_by("read_pdf")
    reads_objects = True

    decodes = True

    def __init__(
        self,
        paths: PathArgument,
        *,
        dpi: int | None = None,
        include_paths: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        super().__init__(paths, adds_path=include_paths)
        require("pypdfium2", "pdf", "read_pdf")
        self._dpi = None if dpi is None else whole_number(dpi, "read_pdf: dpi", _MOST_DPI)
        self._max_pixels = whole_number(max_pixels, "read_pdf: max_pixels", 1 << 31)

    def describe(self) -> dict[str, Any]:
        """Return the paths and options as given."""
        told = {"kind": "pdf", "paths": list(self.paths), "dpi": self._dpi}
        return {**told, "include_paths": self._adds_path}

    def inspect(self, files: list[InputFile]) -> bool:
        """Learn nothing: how many pages a document has is found out when it is read."""
        return True

    def schema(self) -> pa.Schema:
        """Return the columns."""
        return self.with_path(self._schema())

    def _schema(self) -> pa.Schema:
        import pyarrow as pa

        from headrace.core.arrow.forms import RaggedTensorType

        fields = [pa.field("page", pa.int64()), pa.field("text", pa.string())]
        if self._dpi is not None:
            fields.append(pa.field("image", RaggedTensorType(pa.uint8(), 3)))
        return pa.schema(fields)

    def splits(self) -> list[Split]:
        """Return a split for each document."""
        self.refreshed()
        return [
            Split(number, 0, file.size, bytes=max(1, file.size)) for number, file in enumerate(self._files)
        ]

    def read_rows(
        self, split: Split, columns: Sequence[str] | None, batch_rows: int, bad: Bad | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Read the pages of a document; a batch ends early at 64 MiB."""
        from headrace.sources.schemas import select

        own = self._schema()
        target = own if columns is None else select(own, columns)
        dpi = self._dpi if "image" in target.names else None
        found = _pages(self.file(split.file), dpi, self._max_pixels, texts="text" in target.names)
        pages: list[_Page] = []
        start = held = row = 0
        while True:
            with decoding():
                page = next(found, None)
            if page is None:
                break
            if isinstance(page, UnreadableFile):
                if bad is None:
                    raise page
                if pages:
                    yield _batch(pages, start, target)
                bad(row, 1, page.with_traceback(None))
                start, held, pages = row + 1, 0, []
            else:
                pages.append(page)
                held += len(page.text) + (page.pixels.nbytes if page.pixels is not None else 0)
                if len(pages) >= batch_rows or held > BATCH_BYTES:
                    yield _batch(pages, start, target)
                    start, held, pages = row + 1, 0, []
            row += 1
        if pages:
            yield _batch(pages, start, target)

    def locate(self, split: Split, row: int) -> Location:
        """Name the file and the page, counted from 1."""
        return Location(self.file(split.file).path, row + 1, "page")


def _batch(pages: Sequence[_Page], start: int, target: pa.Schema) -> pa.RecordBatch:
    import numpy as np
    import pyarrow as pa

    from headrace.core.arrow.batch import empty_columns
    from headrace.core.arrow.forms import ragged_column

    if not len(target):
        return empty_columns(len(pages))
    columns = []
    for field in target:
        if field.name == "page":
            columns.append(pa.array(range(start + 1, start + 1 + len(pages)), field.type))
        elif field.name == "text":
            columns.append(pa.array([page.text for page in pages], field.type))
        else:
            flat = np.concatenate([page.pixels.reshape(-1) for page in pages])
            shapes = np.array([page.pixels.shape for page in pages], np.int64)
            columns.append(ragged_column(flat, shapes, field.type))
    return pa.RecordBatch.from_arrays(columns, schema=target)


# ---------------------------------------------------------------- a document


def _pages(
    file: InputFile, dpi: int | None, max_pixels: int, *, texts: bool
) -> Iterator[_Page | UnreadableFile]:
    """Yield each page, or what is wrong with it; whatever is wrong with the document comes alone."""
    try:
        with _opened(file, forms=dpi is not None) as document:
            with _PDFIUM:
                count = len(document)
            if not count:
                yield _unreadable(file.path, "it has no pages")
            for number in range(count):
                try:
                    with _PDFIUM:
                        page = _page(document, number, dpi, max_pixels, texts=texts)
                except (HeadraceError, MemoryError):
                    raise
                except Exception as error:  # PdfiumError, and what comes of its numbers
                    yield _unreadable(file.path, f"page {number + 1:,}: {_reason(error)}")
                else:
                    yield page
    except UnreadableFile as error:
        yield error


@contextmanager
def _opened(file: InputFile, *, forms: bool) -> Iterator[Any]:
    import pypdfium2

    with next(fetched([file])) or content(file) as data:
        try:
            with _PDFIUM:
                document = pypdfium2.PdfDocument(data)
                if forms:
                    document.init_forms()  # so that what was filled in is seen
        except MemoryError:
            raise
        except Exception as error:
            raise _unreadable(file.path, _why_not(data, error)) from error
        try:
            yield document
        finally:
            with _PDFIUM:
                document.close()


def _page(document: Any, number: int, dpi: int | None, max_pixels: int, *, texts: bool) -> _Page:
    with closing(document[number]) as page:
        text, pixels = "", None
        if texts:
            with closing(page.get_textpage()) as found:
                text = _in_lines(found.get_text_bounded())
        if dpi is not None:
            width, height = (side * dpi / _POINTS for side in page.get_size())
            if not width * height <= max_pixels:
                raise ValueError(
                    f"its image would have {width:,.0f} × {height:,.0f} pixels, more than max_pixels={max_pixels:,}"
                )
            with closing(page.render(scale=dpi / _POINTS, rev_byteorder=True)) as bitmap:
                pixels = bitmap.to_numpy().copy()
        return _Page(text, pixels)


def _in_lines(text: str) -> str:
    """Return a text with ``"\\n"`` at the ends of lines, and with hyphens there.

    For both, PDFium has a character that is none where a word seems to go on in the next line.
    """
    return re.sub("[\x02\ufffe]\n?", "-\n", text.replace("\r\n", "\n").replace("\r", "\n"))


def _why_not(data: BinaryIO, error: Exception) -> str:
    """Return why a document cannot be opened. What PDFium says is at times what it said of the document before."""
    data.seek(0)
    if "password" in str(error).lower() and b"/Encrypt" in data.read(_LOOKED_AT):
        return "it is encrypted, and needs a password. Write a copy without one"
    return "it is damaged, or no PDF document"


def _reason(error: Exception) -> str:
    return str(error).rstrip(".") or type(error).__name__


def _unreadable(path: str, reason: str) -> UnreadableFile:
    return UnreadableFile(
        f"Cannot read the PDF document {path!r}: {reason}. Restore the file or leave it out of the input."
        f"{another_reader(path, 'read_pdf')}"
    )

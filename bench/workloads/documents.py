"""PDF files to vectors: text of each page, cut into chunks, each chunk embedded. One document gives several rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.workloads.texts import sentences

DOCUMENTS = 500
CHUNK = 60  # words
LINES = 34  # of a page


def chunks(pdf: bytes) -> list[str]:
    """The text of a document in pieces of so many words, in order."""
    import pypdfium2

    document = pypdfium2.PdfDocument(pdf)
    try:
        words: list[str] = []
        for number in range(len(document)):
            page = document[number]
            text = page.get_textpage()
            words += text.get_text_bounded().split()
            text.close()
            page.close()
    finally:
        document.close()
    return [" ".join(words[at : at + CHUNK]) for at in range(0, len(words), CHUNK)]


def chunk_rows(path: Any, pdf: bytes) -> list[dict[str, Any]]:
    """A row for each chunk: the document, the chunk's number, its text."""
    return [{"path": path, "chunk": number, "text": text} for number, text in enumerate(chunks(pdf))]


def make(folder: Path, scale: float) -> None:
    """Documents of one to three pages of made-up sentences."""
    for number in range(max(4, round(DOCUMENTS * scale))):
        pages = [
            [line[:90] for line in sentences(LINES // 2, 9, seed=number * 10 + page)]
            for page in range(1 + number % 3)
        ]
        (folder / f"{number:05d}.pdf").write_bytes(pdf(pages))


def pdf(pages: list[list[str]]) -> bytes:
    """A PDF of pages of lines, in the font that every reader has; nothing else is in it."""
    count = len(pages)
    kids = " ".join(f"{4 + 2 * number} 0 R" for number in range(count))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, lines in enumerate(pages):
        objects.append(
            "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>"
        )
        shown = "".join(f"({line}) Tj T*\n" for line in lines)
        stream = f"BT /F1 11 Tf 14 TL 50 790 Td\n{shown}ET"
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{body}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010d} 00000 n \n" for place in places)
    start = len(out)
    size = len(objects) + 1
    out += f"xref\n0 {size}\n0000000000 65535 f \n{table}".encode()
    return out + f"trailer\n<< /Size {size} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF\n".encode()

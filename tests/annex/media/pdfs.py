"""PDF documents, written by the words of the format's specification."""

from __future__ import annotations

from collections.abc import Sequence


def document(pages: Sequence[str], *, size: tuple[int, int] = (300, 200), trailer: str = "") -> bytes:
    """Return a document with these texts, a page each; lines stand one below the other. ``%`` is a damaged page."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for number, text in enumerate(pages):
        lines = "".join(f"({line}) Tj 0 -20 Td " for line in text.split("\n"))
        content = f"1 0 0 rg 0 0 20 20 re f 0 g BT /F1 18 Tf 20 160 Td {lines}ET"
        page = (
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {size[0]} {size[1]}] "
            f"/Resources << /Font << /F1 3 0 R >> >> /Contents {5 + 2 * number} 0 R >>"
        )
        objects.append("(no page)" if text == "%" else page)
        objects.append(f"<< /Length {len(content)} >>\nstream\n{content}\nendstream")
    made, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(made))
        made += f"{number} 0 obj\n{each}\nendobj\n".encode()
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    end = f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{len(made)}\n%%EOF\n"
    return made + f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}{end}".encode()

"""Binary files where text is expected, recognised by their first bytes."""

from __future__ import annotations

from headrace.core.files.formats import reader_of
from headrace.errors import UnreadableFile
from headrace.sources.text import compression_of, plain_encoding

_LOOKED_AT = 4096
_BINARY = (
    (0, b"PAR1", "PAR1", "a Parquet file; read_parquet reads it"),
    (
        0,
        b"ARROW1",
        "ARROW1",
        "an Arrow IPC (Feather) file; pyarrow.feather.read_table and from_arrow take it",
    ),
    (0, b"FEA1", "FEA1", "a Feather file; pyarrow.feather.read_table and from_arrow take it"),
    (0, b"ORC", "ORC", "an ORC file; read_orc reads it"),
    (0, b"Obj\x01", "Obj", "an Avro file; read_avro reads it"),
    (0, b"PK\x03\x04", "PK", "a zip archive or an Excel workbook; unpack it, or save it as CSV"),
    (0, b"SQLite format 3", "SQLite format 3", "an SQLite database; export the table first"),
    (0, b"\x89HDF", "HDF", "an HDF5 file; convert it to Parquet first"),
    (0, b"%PDF", "%PDF", "a PDF document; read_pdf reads it"),
    (0, b"\x89PNG", "PNG", "an image; read_images reads it"),
    (257, b"ustar", "a tar header", "a tar archive; unpack it"),
)
_MARKS = (
    (b"\xff\xfe\0\0", "utf-32"),
    (b"\0\0\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
)


def refuse_other_formats(path: str, data: bytes, wanted: str, *, encoding: str | None) -> None:
    """Raise ``UnreadableFile`` if ``data``, the first bytes of a file's stream, are of a binary format.

    ``encoding`` is the text's; None where only UTF-8 will do. Letters such as ``PAR1`` may begin a text, too:
    only with a zero byte after it is it a signature.
    """
    start = data[:_LOOKED_AT]
    begins = f"Cannot read {path!r} as {wanted}: it begins with"
    if encoding is None or plain_encoding(encoding) == "utf8":
        for mark, name in _MARKS:
            if start.startswith(mark):
                advice = f"set encoding={name!r}" if encoding is not None else "convert it to UTF-8"
                raise UnreadableFile(f"{begins} the mark of {name.upper()} text; {advice}.")
    if b"\0" not in start:
        return
    for offset, signature, shown, what in _BINARY:
        if start.startswith(signature, offset):
            packing = compression_of(path)
            packed = f" (once decompressed; {packing})" if packing else ""
            raise UnreadableFile(f"{begins} {shown}{packed}, so it is {what}.")


def another_reader(path: str, mine: str) -> str:
    """Return `` By its name, read_csv reads it.``, or an empty string where ``mine`` does or none is known."""
    other = reader_of(path)
    return f" By its name, {other} reads it." if other not in ("", mine) else ""


def not_text(path: str, where: str, error: UnicodeError, encoding: str = "UTF-8") -> UnreadableFile:
    """Return the error for a text file, part of which is not in the encoding that it was read with."""
    byte = f" (byte {error.object[error.start]:#04x})" if isinstance(error, UnicodeDecodeError) else ""
    return UnreadableFile(
        f"Cannot read {path!r}: {where} is not valid {encoding}{byte}. Set the encoding of the file, for "
        "instance encoding='latin1', if it is text at all."
    )

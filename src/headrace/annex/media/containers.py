"""Whether a file of sound or video is all there, by what its container says of its length.

Decoders take the end of the file for the end of what is in it: half a recording would pass for a short one. Looked at
are RIFF (WAV, AVI), RF64, Wave64, AIFF, AU, CAF, Ogg, ISO media (MP4, MOV, M4A) and Matroska (MKV, WebM). FLAC and
MP3 tell how many samples they have; other formats do not tell. What decoders leave unread behind the end is looked
for, too.
"""

from __future__ import annotations

import io
from typing import BinaryIO, Literal

# As lengths, by who cannot go back to fill them in.
_UNTOLD = (
    0x7FFFF000,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
)
_NEAR = 64
_MOST_BOXES = 256
_BOXES = b"ftyp moov mdat moof free skip wide pnot uuid meta mfra sidx ssix styp prft emsg pdin".split()
_LAST = 70_000  # bytes, more than a page of Ogg has
_SEGMENT = b"\x18\x53\x80\x67"
_TAGGED = (b"RIFF", b"RF64", b"FORM", b"riff", b".snd", b"caff", b"OggS", b"fLaC")
_FLAC = b"fLaC\x00\x00\x00\x22"
_SOME_FRAMES = 8_192  # bytes of MP3 by which encoders disagree on how long a file is


def missing_bytes(file: BinaryIO, size: int) -> int:
    """Return how many bytes are missing at the end of a file of ``size`` bytes, as far as it tells; 0 if none."""
    file.seek(0)
    head = file.read(64)
    end = _end(file, head, size)
    file.seek(0)
    return max(0, end - size)


def behind_tag(file: BinaryIO, size: int) -> tuple[BinaryIO, int]:
    """Return a file of sound without the ID3 tag before it, and its size; MP3 files keep theirs.

    libsndfile passes over such a tag, and then misses as many bytes at the end.
    """
    file.seek(0)
    skipped = _tag(file.read(10))
    file.seek(skipped)
    tagged = bool(skipped) and file.read(4) in _TAGGED
    file.seek(skipped if tagged else 0)
    if not tagged:
        return file, size
    rest = file.read()
    return io.BytesIO(rest), len(rest)


def unread(file: BinaryIO, size: int) -> str:
    """Return why a decoder would read less than there is: it ends where the header, or the first of several
    recordings, says. Empty if all of it will be read."""
    file.seek(0)
    kind = file.read(12)
    several = (
        "several recordings follow each other in it, and only the first would be read. Join them into one"
    )
    if kind[:4] in (b"RIFF", b"FORM"):
        behind = _behind_nothing(file, size, kind[:4] == b"RIFF")
        why = f"its header says that it has no samples, and {behind:,} bytes come after it" if behind else ""
    elif kind[:4] == b"OggS":
        why = several if _chained(file, size) else ""
    elif kind[:4] == b"fLaC":
        why = several if _twice(file, _FLAC) else ""
    else:
        why = several if _mp3_goes_on(file, size, _tag(kind)) else ""
    file.seek(0)
    return why


def lacking(lost: int) -> str:
    """Return the words for what is missing.

    >>> lacking(1), lacking(2_000)
    ('1 byte or more is missing', '2,000 bytes or more are missing')
    """
    return "1 byte or more is missing" if lost == 1 else f"{lost:,} bytes or more are missing"


def _end(file: BinaryIO, head: bytes, size: int) -> int:
    """Return where the file should end; 0 where it does not say."""
    kind = head[:4]
    if kind == b"RIFF" and head[8:12] == b"AVI ":
        return _avi(file, size)
    if kind in (b"RIFF", b"RF64"):
        long = _number(head[28:36], "little") if kind == b"RF64" else 0
        return _chunk(file, size, b"data", "little", long)
    if kind == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return _chunk(file, size, b"SSND", "big")
    if kind == b"riff":
        return _wave64(file, size)
    if kind == b".snd":
        length = _told(_number(head[8:12], "big"), 0)
        return length and length + _number(head[4:8], "big")
    if kind == b"caff":
        return _caf(file, size)
    if kind == b"OggS":
        return _ogg(file, size)
    if head[4:8] == b"ftyp":
        return _boxes(file, size)
    return _matroska(head) if kind == b"\x1a\x45\xdf\xa3" else 0


def _number(data: bytes, order: Literal["little", "big"]) -> int:
    return int.from_bytes(data, order)


def _told(length: int, more: int) -> int:
    """Return a length with ``more`` bytes; 0 if it is one of those that stand for no length."""
    return 0 if not length or any(abs(length - each) <= _NEAR for each in _UNTOLD) else length + more


def _chunk(file: BinaryIO, size: int, wanted: bytes, order: Literal["little", "big"], long: int = 0) -> int:
    """Return where the chunk with the samples ends; ``long`` is its length where four bytes are too few for it."""
    at = 12
    while at + 8 <= size:
        file.seek(at)
        chunk = file.read(8)
        length = _number(chunk[4:8], order)
        if chunk[:4] == wanted:
            return long + at + 8 if long else _told(length, at + 8)
        at += 8 + length + length % 2
    return at + 8  # the samples are not there


def _wave64(file: BinaryIO, size: int) -> int:
    at = 40
    while at + 24 <= size:
        file.seek(at)
        chunk = file.read(24)
        length = _number(chunk[16:24], "little")
        if chunk[:4] == b"data" or length < 24:
            return at + length
        at += length + -length % 8
    return at + 24


def _avi(file: BinaryIO, size: int) -> int:
    """Return where the last of the RIFF chunks ends, of which each has up to 1 GiB."""
    at = 0
    while at < size:
        file.seek(at)
        chunk = file.read(8)
        length = _told(_number(chunk[4:8], "little"), 0)
        if chunk[:4] != b"RIFF" or not length:
            return 0
        at += 8 + length
    return at


def _caf(file: BinaryIO, size: int) -> int:
    at = 8
    while at < size:
        file.seek(at)
        chunk = file.read(12)
        length = _number(chunk[4:12], "big")
        if length >= 1 << 63:  # up to the end of the file
            return 0
        at += 12 + length
        if chunk[:4] == b"data":
            return at
    return at


def _ogg(file: BinaryIO, size: int) -> int:
    start = max(0, size - _LAST)
    file.seek(start)
    data = file.read(_LAST)
    at = data.rfind(b"OggS")
    if at < 0:
        return 0
    page = data[at:]
    if len(page) < 27 or len(page) < 27 + page[26]:
        return size + 1
    return start + at + 27 + page[26] + sum(page[27 : 27 + page[26]])


def _boxes(file: BinaryIO, size: int) -> int:
    at = 0
    for _ in range(_MOST_BOXES):
        if at >= size:
            return at
        file.seek(at)
        box = file.read(16)
        length = _number(box[:4], "big")
        # Up to the end of the file; or something behind the last one.
        if length == 0 or box[4:8] not in _BOXES:
            return 0
        at += _number(box[8:16], "big") if length == 1 else max(8, length)
    return 0


def _matroska(head: bytes) -> int:
    at, header = _length(head, 4)
    at += header
    if head[at : at + 4] != _SEGMENT:
        return 0
    at, length = _length(head, at + 4)
    return at + length if length else 0


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Return where a length of EBML ends, and the length; 0 if it is not known."""
    first = data[at] if at < len(data) else 0
    if not first:
        return at, 0
    width = 9 - first.bit_length()
    value = _number(data[at : at + width], "big") & ((1 << 7 * width) - 1)
    return at + width, 0 if value == (1 << 7 * width) - 1 else value


# ---------------------------------------------------------------- what is behind the end


def _tag(head: bytes) -> int:
    """Return how long the ID3 tag is that a file begins with; 0 if there is none."""
    if head[:3] != b"ID3" or len(head) < 10:
        return 0
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(reversed(head[6:10])))
    return 10 + length + (10 if head[5] & 0x10 else 0)


def _behind_nothing(file: BinaryIO, size: int, little: bool) -> int:
    """Return how many bytes that are no chunks are behind a chunk of samples that is said to be empty."""
    at, empty = 12, 0
    while at + 8 <= size:
        file.seek(at)
        chunk = file.read(8)
        length = _number(chunk[4:8], "little" if little else "big")
        if chunk[:4] == (b"data" if little else b"SSND"):
            if length > (0 if little else 8):
                return 0
            empty = at + 8 + length
        at += 8 + length + length % 2
    return size - empty if empty and at != size else 0


def _chained(file: BinaryIO, size: int) -> bool:
    """Say whether a page of Ogg begins a stream behind those that begin the file."""
    at, begun = 0, False
    while at + 27 <= size:
        file.seek(at)
        page = file.read(27)
        if page[:4] != b"OggS":
            return False
        if page[5] & 2 and begun:
            return True
        begun = begun or not page[5] & 2
        at += 27 + page[26] + sum(file.read(page[26]))
    return False


def _twice(file: BinaryIO, mark: bytes) -> bool:
    file.seek(len(mark))
    end = b""
    while data := file.read(1 << 20):
        if mark in end + data:
            return True
        end = data[1 - len(mark) :]
    return False


def _mp3_goes_on(file: BinaryIO, size: int, start: int) -> bool:
    """Say whether frames of MP3 are behind those that the first one, of Xing or LAME, counts."""
    file.seek(start)
    frame = file.read(64)
    at = max(frame.find(b"Xing"), frame.find(b"Info"))
    if not _begins_frame(frame) or at < 0 or frame[at + 7] & 3 != 3:
        return False
    end = start + _number(frame[at + 12 : at + 16], "big")
    file.seek(end)
    behind = file.read(4)
    return size - end > _SOME_FRAMES and (_begins_frame(behind) or behind[:3] == b"ID3")


def _begins_frame(data: bytes) -> bool:
    return len(data) > 1 and data[0] == 0xFF and data[1] >= 0xE0

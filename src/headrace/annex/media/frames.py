"""What ``VideoSource`` does with PyAV: open a file, find its key frames, decode the frames that are asked for.

Frames are counted in the order in which they are shown. Where each packet is one frame, and says when it is shown
(H.264, HEVC, AV1, VP9 and the like in MP4, MOV, Matroska or WebM), groups from one key frame to the next are
decoded only if a frame of theirs is wanted, and a frame that does not come out is known by its number. Other files
are decoded from their start, and their frames counted.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, BinaryIO, NamedTuple

import av
import numpy as np

from headrace.annex.media.containers import lacking, missing_bytes
from headrace.core.files.input_files import InputFile
from headrace.core.stores.objects import open_binary
from headrace.errors import HeadraceError, UnreadableFile
from headrace.sources.file_source import damaged

# Those of them that open no other files.
_DEMUXERS = "mov,mp4,m4a,3gp,3g2,mj2,matroska,webm,avi,mpegts,mpeg,flv,asf,ogg,mxf"
_CONTAINERS = ("mov", "matroska")
_CODECS = ("h264", "hevc", "av1", "vp9", "mjpeg", "prores", "ffv1")
_FORGIVING = ("h264", "hevc")  # behind a key frame, frames may name others before it that they do not need
_BUFFER = 1 << 20
_SPARE = 1 << 20  # pixels that decoders have around a frame
_DAMAGED = "its data are damaged"
_END = 0.5  # seconds by which the last frame may end before the file says, as sound is often longer

Pixels = np.ndarray[Any, np.dtype[np.uint8]]


class Known(NamedTuple):
    """What the header and the first frame tell of a file."""

    height: int
    width: int
    rate: float  # frames per second; 0 if unknown
    frames: int  # 0 if unknown
    keys: tuple[int, ...]  # the numbers, in decoding order, at which groups begin; empty if unknown


class Got(NamedTuple):
    """A frame by its number: as decoded, or else the reason why there is none."""

    number: int
    frame: Any
    fault: str


@contextmanager
def _demuxed(file: BinaryIO, size: int) -> Iterator[tuple[Any, int]]:
    lost = missing_bytes(file, size)
    options = {"format_whitelist": _DEMUXERS, "protocol_whitelist": "none"}
    with av.open(file, options=options, buffer_size=_BUFFER) as container:
        yield container, lost


@contextmanager
def opened(path: str, size: int, max_pixels: int) -> Iterator[tuple[Any, Any, int]]:
    """Open a file of ``size`` bytes; gives the container, its stream of pictures, and how many bytes are missing.

    Whatever is wrong with the file names it.
    """
    try:
        with open_binary(path) as file, _demuxed(file, size) as (container, lost):
            stream = next((each for each in container.streams.video if not _is_cover(each)), None)
            if stream is None:
                raise unreadable(path, "it has no pictures, only sound")
            context = stream.codec_context
            if context.width * context.height > max_pixels:
                raise oversized(path, max_pixels)
            strict = {} if context.name in _FORGIVING else {"err_detect": "explode"}
            context.options = {"max_pixels": str(2 * max_pixels + _SPARE), **strict}
            context.thread_count = 1  # there are as many workers as cores
            yield container, stream, lost
    except (HeadraceError, MemoryError, GeneratorExit):
        raise
    except Exception as error:  # of damaged files, FFmpeg raises much
        raise unreadable(path, reason_of(error)) from error


def _is_cover(stream: Any) -> bool:
    return "attached_pic" in str(stream.disposition).lower()


def known_of(file: InputFile, max_pixels: int) -> Known | None:
    """Read the header and decode one frame; None for what cannot be read, which is left to reading."""
    try:
        with opened(file.path, file.size, max_pixels) as (container, stream, _):
            keys = _keys(container, stream)
            first = next(container.decode(stream))
            turned = turns(first) % 2
            size = (first.width, first.height) if turned else (first.height, first.width)
            rate = float(stream.average_rate or 0)
            return Known(*size, rate, len(stream.index_entries) if keys else 0, keys)
    except (UnreadableFile, OSError, StopIteration):
        return None


def _keys(container: Any, stream: Any) -> tuple[int, ...]:
    """Return where groups begin, if the header lists all frames; those that are not shown are not counted."""
    if container.format.name.split(",")[0] != "mov" or not _tells_frames(container, stream):
        return ()
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return ()
    return tuple(i for i, entry in enumerate(entries) if entry.is_keyframe)


def _tells_frames(container: Any, stream: Any) -> bool:
    return container.format.name.split(",")[0] in _CONTAINERS and stream.codec_context.name in _CODECS


def turns(frame: Any) -> int:
    """Return how many quarters, against the clock, a frame is turned before it is shown."""
    return round((getattr(frame, "rotation", 0) or 0) / 90) % 4


def pixels_of(frame: Any, size: tuple[int, int] | None) -> Pixels:
    """Return a frame as RGB of shape (height, width, 3), upright, and of ``size`` if one is given."""
    quarters = turns(frame)
    if size is not None:
        height, width = size if quarters % 2 == 0 else size[::-1]
        frame = frame.reformat(width=width, height=height, format="rgb24", interpolation="BILINEAR")
    made: Pixels = frame.to_ndarray(format="rgb24")
    return np.rot90(made, quarters) if quarters else made


def seconds_of(frame: Any, stream: Any) -> tuple[float, float]:
    """Return when a frame begins and ends; NaN where that is not known."""
    base, rate = float(stream.time_base), float(stream.average_rate or 0)
    if frame.pts is None:
        return float("nan"), float("nan")
    start = frame.pts * base
    length = frame.duration * base if frame.duration else 1 / rate if rate else float("nan")
    return start, start + length


# ---------------------------------------------------------------- decoding


def frames(
    path: str, bounds: tuple[int, int], size: int, stride: int, max_pixels: int
) -> Iterator[tuple[Got, Any]]:
    """Yield each frame whose number is a multiple of ``stride``, with its stream; of the groups within ``bounds``.

    ``bounds`` count frames in decoding order, (0, -1) are all. What is missing is yielded as such, in its turn.
    """
    with opened(path, size, max_pixels) as (container, stream, lost):
        cut = f"the file was cut short: {lacking(lost)} at its end" if lost else ""
        if _tells_frames(container, stream):
            found = _by_groups(container, stream, bounds, stride, cut=bool(lost))
        else:
            found = _one_by_one(container, stream, stride, cut=bool(lost))
        number = -1
        for got in found:
            number = got.number
            if cut and got.frame is None:
                yield got._replace(fault=cut), stream
                return
            yield got, stream
        if cut and bounds[1] < 0:
            yield Got(number + 1, None, cut), stream


def _one_by_one(container: Any, stream: Any, stride: int, *, cut: bool) -> Iterator[Got]:
    index, end = 0, -math.inf
    # What a decoder holds back at a cut belongs behind frames that are lost: its numbers are not known.
    packets = itertools.chain(_packets(container, stream, cut=cut), [] if cut else [None])
    decoded = (frame for packet in packets for frame in stream.codec_context.decode(packet))
    while True:
        try:
            frame = next(decoded)
        except StopIteration:
            break
        except Exception as error:
            yield Got(index, None, f"{reason_of(error)}; what comes after it was not read")
            return
        if index % stride == 0:
            yield Got(index, None, _DAMAGED) if frame.is_corrupt else Got(index, frame, "")
        index, end = index + 1, max(end, seconds_of(frame, stream)[1])
    if short := _ends_early(stream, end):
        yield Got(index, None, short)


def _ends_early(stream: Any, end: float) -> str:
    """Return what is wrong if the last frame is shown long before the end that the file tells."""
    if end == -math.inf:
        return "it has no frames"
    told = math.nan
    if stream.duration is not None:
        told = float(((stream.start_time or 0) + stream.duration) * stream.time_base)
    elif "DURATION" in stream.metadata:
        told = _clock(stream.metadata["DURATION"])
    rate = float(stream.average_rate or 0)
    allowed = max(_END, 5 / rate if rate else _END)
    return f"it ends early, after {end:.2f} of {told:.2f} seconds" if end < told - allowed else ""


def _clock(text: str) -> float:
    """Return the seconds of a time such as 00:00:04.000; NaN for other texts."""
    try:
        hours, minutes, seconds = text.split(":")
        return int(hours) * 3600 + int(minutes) * 60 + float(seconds)
    except ValueError:
        return math.nan


def _by_groups(
    container: Any, stream: Any, bounds: tuple[int, int], stride: int, *, cut: bool
) -> Iterator[Got]:
    first, stop = bounds
    entries = list(stream.index_entries) if stop >= 0 else []
    # It may need the group before.
    at = next((i for i in range(first - 1, -1, -1) if entries[i].is_keyframe), 0)
    number = sum(not entry.is_discard for entry in entries[:at])
    groups = _Groups(stream, stride)
    for packets, until in _grouped(container, stream, entries[at].timestamp if at else None, cut=cut):
        if at < first:
            groups.before = packets
        else:
            yield from groups.group(packets, number, until)
        number += sum(not packet.is_discard and packet.pts <= until for packet in packets)
        at += len(packets)
        if 0 <= stop <= at:
            break
    yield from groups.rest()
    if at < stop:
        yield Got(number, None, f"it ends early, after {at:,} of {len(entries):,} frames")
    elif stop < 0 and (short := _ends_early(stream, groups.end)):
        yield Got(number, None, short)


def _grouped(
    container: Any, stream: Any, start: int | None, *, cut: bool
) -> Iterator[tuple[list[Any], float]]:
    """Yield the packets of each group, from the one that is decoded at ``start`` on.

    And up to which moment all frames are there: what is missing at the end of a file that was cut short would be
    decoded later, and is shown after that, but may be shown before what is there.
    """
    if start is not None:
        container.seek(start, stream=stream)
    held: list[Any] = []
    for packet in _packets(container, stream, cut=cut):
        if start is not None and packet.dts != start:
            continue
        start = None
        if packet.is_keyframe and held:
            yield held, math.inf
            held = []
        held.append(packet)
    if held:
        last = held[-1].dts
        yield held, (-math.inf if last is None else last) if cut else math.inf


def _packets(container: Any, stream: Any, *, cut: bool) -> Iterator[Any]:
    """Yield the packets of a stream; of a file that was ``cut`` short all but the last, which may be half of one."""
    last = None
    for packet in container.demux(stream):
        if not packet.size:
            continue
        if last is not None:
            yield last
        last = packet
    if last is not None and not cut:
        yield last


class _Groups:
    """Decodes groups of packets, each from one key frame to the next, and knows the number of each frame."""

    def __init__(self, stream: Any, stride: int) -> None:
        self._stream, self._context, self._stride = stream, stream.codec_context, stride
        # Wanted frames that were not decoded yet, by when they are shown.
        self._numbers: dict[int, int] = {}
        self._decodes = False
        self.before: list[Any] = []  # packets of the last group, if it was passed over
        self.end = -math.inf

    def group(self, packets: list[Any], first: int, until: float) -> Iterator[Got]:
        """Decode one group, if a frame of it is wanted; ``first`` is the number of its first frame."""
        last = max(packets, key=lambda packet: packet.pts)
        self.end = max(self.end, seconds_of(last, self._stream)[1])
        shown = sorted(packet.pts for packet in packets if not packet.is_discard and packet.pts <= until)
        wanted = {pts: first + i for i, pts in enumerate(shown) if (first + i) % self._stride == 0}
        if not wanted:
            yield from self.rest()
            self.before = packets
            return
        if len({*shown}) < len(shown):
            yield from self.rest()
            for number in wanted.values():
                yield Got(number, None, "several of its frames are shown at the same moment")
            return
        if self.before and min(shown) < packets[0].pts:  # frames before the key frame need those before them
            key = self.before[0].pts
            yield from self._decoded([packet for packet in self.before if packet.pts >= key])
        self.before = []
        self._numbers.update(wanted)
        yield from self._decoded(packets)

    def _decoded(self, packets: Sequence[Any]) -> Iterator[Got]:
        self._decodes = True
        try:
            for packet in packets:
                for frame in self._context.decode(packet):
                    for pts in sorted(pts for pts in self._numbers if pts < frame.pts):
                        yield Got(self._numbers.pop(pts), None, _DAMAGED)
                    yield from self._got(frame)
        except av.error.FFmpegError as error:
            yield from self.rest(reason_of(error))

    def rest(self, fault: str = _DAMAGED) -> Iterator[Got]:
        """Have the decoder give what it holds; what is missing then is lost."""
        if not self._decodes:
            return
        found: list[Got] = []
        with suppress(av.error.FFmpegError):
            for frame in self._context.decode(None):
                found += self._got(frame)
        found += [Got(number, None, fault) for number in self._numbers.values()]
        self._numbers.clear()
        self._context.flush_buffers()
        self._decodes = False
        yield from sorted(found, key=lambda got: got.number)

    def _got(self, frame: Any) -> Iterator[Got]:
        number = self._numbers.pop(frame.pts, None)
        if number is not None:
            yield Got(number, None, _DAMAGED) if frame.is_corrupt else Got(number, frame, "")


def reason_of(error: Exception) -> str:
    """Return what a library says, in a few words."""
    reason = getattr(error, "strerror", "") or str(error) or type(error).__name__
    return reason.rstrip(".")


def unreadable(path: str, reason: str) -> UnreadableFile:
    """Return the error for a file, or a frame of it."""
    return damaged(f"the video {path!r}", reason, path, "read_video")


def oversized(path: str, max_pixels: int) -> UnreadableFile:
    """Return the error for a file whose frames are too large."""
    return UnreadableFile(
        f"Cannot read the video {path!r}: its frames have more than {max_pixels:,} pixels, the limit that protects "
        "against files that do not fit into memory. If you trust it, raise max_pixels=."
    )

"""Where rows come from: in words, and on their way to another process."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from millrace.core.ports import Source
from millrace.core.work import Split
from millrace.run.guard import stretch
from millrace.run.rows import Rows, Span


class _Packed(msgspec.Struct, frozen=True, array_like=True):
    split: Split
    first: int
    count: int
    index: bytes | None
    last: int | None


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[list[_Packed]])


def packed(spans: Sequence[Sequence[Span]]) -> bytes:
    """Encode the coordinates of the rows of several batches."""
    return _encoder.encode(
        [
            [
                _Packed(
                    span.split,
                    span.first,
                    span.count,
                    span.index.tobytes() if span.index is not None else None,
                    span.last,
                )
                for span in each
            ]
            for each in spans
        ]
    )


def unpacked(data: bytes) -> list[tuple[Span, ...]]:
    """Decode what ``packed`` made."""
    return [
        tuple(
            Span(
                span.split,
                span.first,
                span.count,
                np.frombuffer(span.index, np.int64) if span.index is not None else None,
                span.last,
            )
            for span in each
        )
        for each in _decoder.decode(data)
    ]


def where(source: Source, rows: Rows) -> str:
    """Say in words from where to where rows stand."""
    if not rows.spans:
        return "no rows"
    first, last = rows.spans[0], rows.spans[-1]
    return stretch(source.locate(first.split, first.bounds()[0]), source.locate(last.split, last.bounds()[1]))

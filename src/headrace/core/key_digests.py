"""Sets of keys on disk: 16 bytes for each, sorted, looked up without being loaded.

One column of integers, dates, times or booleans is kept as it is. Any other key is kept as its BLAKE2b of 128 bits:
among 10¹⁰ keys, two have the same one with a probability below 10⁻¹⁸.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import zlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.core.arrow.plain import kind_of, plain, plain_type
from headrace.core.files import safe_files
from headrace.errors import ArgumentError, BadInput, JournalDamaged, unknown_column

Digests: TypeAlias = "np.ndarray[Any, np.dtype[np.uint64]]"  # two for each key
MOST = 1 << 21  # keys in memory at a time
_HALVES = ("high", "low")


def check_key(schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raise ``UnknownColumn`` or ``ArgumentError`` for columns that cannot be a key."""
    for name in columns:
        if name not in schema.names:
            raise unknown_column("key", name, schema.names)
        type_ = plain_type(schema.field(name).type)
        if pa.types.is_null(type_):
            continue  # there are no values: of no rows, or an error when they are read
        if not (_is_number(type_) or _is_bytes(type_) or pa.types.is_decimal(type_)):
            raise ArgumentError(
                f"key={name!r}: it is of type {type_}, whose values are not always the same or not. A key is of "
                "integers, texts, bytes, dates, times, decimals or booleans."
            )


def digests_of(batch: pa.RecordBatch, columns: Sequence[str]) -> Digests:
    """Return the digest of each row's key; raise ``BadInput`` where a part of one is null.

    >>> digests_of(pa.record_batch({"id": [7, 8]}), ["id"]).tolist()
    [[7, 0], [8, 0]]
    """
    arrays = [batch.column(batch.schema.get_field_index(name)) for name in columns]
    for name, array in zip(columns, arrays, strict=True):
        if array.null_count:
            raise BadInput(f"key={name!r}: it is null in {array.null_count:,} of {len(array):,} rows.")
    arrays = [plain(array) for array in arrays]
    found = np.zeros((batch.num_rows, 2), np.uint64)
    if len(arrays) == 1 and _is_number(arrays[0].type):
        found[:, 0] = _numbers(arrays[0])
        return found
    parts = [_texts(array) for array in arrays]
    rows: Iterable[bytes] = parts[0]
    if len(parts) > 1:
        rows = (
            b"".join(len(part).to_bytes(8, "big") + part for part in row) for row in zip(*parts, strict=True)
        )
    data = b"".join(hashlib.blake2b(row, digest_size=16).digest() for row in rows)
    found[:] = np.frombuffer(data, ">u8").reshape(-1, 2)
    return found


def kinds_of(schema: pa.Schema, columns: Sequence[str]) -> list[str]:
    """Return what the values of key columns are, in words: digests of keys are equal only within one of these.

    It is "null" where there are none.

    >>> kinds_of(pa.schema({"id": pa.int32(), "at": pa.timestamp("ms", "UTC")}), ["id", "at"])
    ['integer', 'timestamp[ms] with a zone']
    """
    return [_kind(plain_type(schema.field(name).type)) for name in columns]


def _kind(type_: pa.DataType) -> str:
    if pa.types.is_integer(type_):
        return "uint64" if pa.types.is_uint64(type_) else "integer"
    if pa.types.is_timestamp(type_):
        return f"timestamp[{type_.unit}]{' with a zone' if type_.tz else ''}"
    if pa.types.is_decimal(type_):
        return f"decimal with {type_.scale} places"
    return "text or bytes" if _is_bytes(type_) else str(type_)


def _is_number(type_: pa.DataType) -> bool:
    kinds = pa.types
    return bool(kinds.is_integer(type_) or kinds.is_temporal(type_) or kinds.is_boolean(type_)) and not bool(
        kinds.is_interval(type_)
    )


def _is_bytes(type_: pa.DataType) -> bool:
    return kind_of(type_) in ("text", "binary")


def _numbers(array: pa.Array) -> np.ndarray[Any, np.dtype[np.uint64]]:
    if pa.types.is_temporal(array.type):
        array = array.view(pa.int32() if array.type.bit_width == 32 else pa.int64())
    elif pa.types.is_boolean(array.type):
        array = array.cast(pa.int8())
    values = array.to_numpy(zero_copy_only=False)
    wide: np.ndarray[Any, np.dtype[np.uint64]] = values.astype(np.int64).view(np.uint64)
    return wide if values.dtype.kind == "i" else values.astype(np.uint64)


def _texts(array: pa.Array) -> list[bytes]:
    if _is_number(array.type):
        data = _numbers(array).astype(">u8").tobytes()
        return [data[at : at + 8] for at in range(0, len(data), 8)]
    if pa.types.is_decimal(array.type):
        return [str(value).encode() for value in array.to_pylist()]
    return pc.cast(array, pa.large_binary()).to_pylist()  # type: ignore[no-any-return]


class Keys(NamedTuple):
    """Sorted keys: their first halves, and their second."""

    high: Digests
    low: Digests

    def has(self, digests: Digests) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Say of each key whether it is there."""
        found = np.zeros(len(digests), np.bool_)
        order = np.argsort(digests[:, 0])
        asked = digests[order]
        at = np.searchsorted(self.high, asked[:, 0])
        left = np.flatnonzero(at < len(self.high))
        while len(left):  # more than once only where first halves are equal
            left = left[self.high[at[left]] == asked[left, 0]]
            same = self.low[at[left]] == asked[left, 1]
            found[order[left[same]]] = True
            left = left[~same]
            at[left] += 1
            left = left[at[left] < len(self.high)]
        return found


class KeyFile:
    """Keys of several owners in a folder, mapped into memory: of each, some blocks of sorted keys."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.about = _about(folder)
        self._halves = Keys(*(_mapped(folder / half, self.about["keys"]) for half in _HALVES))

    def blocks(self, owner: str) -> list[Keys]:
        """Return the keys of one owner."""
        places = self.about["blocks"].get(owner, ())
        return [Keys(*(half[start:stop] for half in self._halves)) for start, stop in places]

    def whole(self) -> Keys:
        """Return all keys, where they are one block."""
        return self._halves

    def check(self) -> None:
        """Raise ``JournalDamaged`` if it is not what was written."""
        for half in _HALVES:
            with safe_files.file(self.folder / half) as data:
                crc = 0
                while piece := data.read(1 << 22):
                    crc = zlib.crc32(piece, crc)
            if crc != self.about[half]:
                raise JournalDamaged(_lost(self.folder, "is damaged"))


def write_keys(
    folder: Path, owners: Iterable[tuple[str, Iterable[Digests]]], about: dict[str, Any], *, lasting: bool
) -> KeyFile:
    """Write keys of several owners, each in any order and number; at once or not at all."""
    blocks: dict[str, list[tuple[int, int]]] = {}

    def parts() -> Iterator[Digests]:
        at = 0
        for owner, batches in owners:
            places = blocks.setdefault(owner, [])
            for keys in _sorted(batches):
                places.append((at, at + len(keys)))
                at += len(keys)
                yield keys

    return _written(folder, parts(), {**about, "blocks": blocks}, lasting=lasting)


def merged_keys(folder: Path, sets: Sequence[Keys], *, without: Keys | None = None) -> Keys:
    """Write the union of sets, without the keys of one, with a bounded amount of memory; return it, mapped."""
    return _written(folder, _merged(sets, without), {}, lasting=False).whole()


def _merged(sets: Sequence[Keys], without: Keys | None) -> Iterator[Digests]:
    """Yield the sorted union in parts: what lies between two bounds is taken from each set."""
    sizes = [len(each.high) for each in sets]
    step = max(1, MOST // max(1, 2 * len(sets)))
    bounds: list[Any] = [None]
    if sum(sizes) > MOST:
        samples = [np.array(each.high[step - 1 :: step]) for each in sets]
        bounds = [*_thinned(np.unique(np.concatenate(samples)), sum(sizes)), None]
    starts = [0] * len(sets)
    for bound in bounds:
        parts = [np.empty((0, 2), np.uint64)]
        for number, each in enumerate(sets):
            stop = sizes[number] if bound is None else int(np.searchsorted(each.high, bound, "right"))
            taken = slice(starts[number], stop)
            parts.append(np.stack([each.high[taken], each.low[taken]], axis=1))
            starts[number] = stop
        keys = _unique(np.concatenate(parts))
        yield keys if without is None else keys[~without.has(keys)]


def _thinned(bounds: Digests, keys: int) -> Digests:
    """Return fewer bounds, so that about half of what may be in memory lies between two."""
    return bounds[:: max(1, len(bounds) * MOST // (4 * keys))]


def _sorted(batches: Iterable[Digests]) -> Iterator[Digests]:
    held: list[Digests] = []
    count = 0
    for batch in batches:
        held.append(batch)
        count += len(batch)
        if count >= MOST:
            yield _unique(np.concatenate(held))
            held, count = [], 0
    if held:
        yield _unique(np.concatenate(held))


def _unique(keys: Digests) -> Digests:
    keys = keys[np.lexsort((keys[:, 1], keys[:, 0]))]
    if len(keys) < 2:
        return keys
    other = np.ones(len(keys), np.bool_)
    other[1:] = (keys[1:] != keys[:-1]).any(axis=1)
    return keys[other]


def _written(folder: Path, parts: Iterable[Digests], about: dict[str, Any], *, lasting: bool) -> KeyFile:
    temporary = folder.with_name(f"{folder.name}{safe_files.TEMPORARY}")
    shutil.rmtree(temporary, ignore_errors=True)
    shutil.rmtree(folder, ignore_errors=True)
    safe_files.make_folder(folder.parent, 0o700)
    _write(temporary, parts, about, lasting=lasting)
    os.rename(temporary, folder)
    if lasting:
        safe_files.sync_folder(folder.parent)
    return KeyFile(folder)


def _write(folder: Path, parts: Iterable[Digests], about: dict[str, Any], *, lasting: bool) -> None:
    safe_files.make_folder(folder, 0o700)
    count, sums = 0, [0, 0]
    with safe_files.new_file(folder / "high") as high, safe_files.new_file(folder / "low") as low:
        for keys in parts:
            for number, half in enumerate((high, low)):
                data = np.ascontiguousarray(keys[:, number]).tobytes()
                sums[number] = zlib.crc32(data, sums[number])
                half.write(data)
            count += len(keys)
        for half in (high, low):
            half.flush()
            if lasting:
                safe_files.sync_fd(half.fileno())
    known = {**about, "keys": count, "high": sums[0], "low": sums[1]}
    safe_files.create(folder / "about", msgspec.json.encode(known), lasting=lasting)
    if lasting:
        safe_files.sync_folder(folder)


def _mapped(path: Path, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    try:
        if safe_files.size(path) != 8 * count:
            raise JournalDamaged(_lost(path, "is of another size than was written"))
        return np.memmap(path, np.uint64, "r", shape=(count,)) if count else np.empty(0, np.uint64)
    except OSError as error:
        raise JournalDamaged(_lost(path, f"cannot be read: {error.strerror}")) from error


def _about(folder: Path) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(safe_files.content(folder / "about"), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise JournalDamaged(_lost(folder / "about", "cannot be read")) from error
    return found


def _lost(path: Path, how: str) -> str:
    return (
        f"{path}, which has keys of rows that are in the output, {how}. Which rows are new is not known without it: "
        "restore it from a copy, or write to another folder."
    )

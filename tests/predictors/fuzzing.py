"""Damage to the bytes of a small file, at random: bits, lengths, numbers, and texts that no parser likes."""

from __future__ import annotations

import random
import re

_BIG = (
    b"\xff" * 8,
    b"\xff\xff\xff\xff\x07",
    b"\x7f\xff\xff\xff\xff\xff\xff\xff",
    b"\x00\x00\x00\x80\x00\x00\x00\x00",
)
_TEXTS = (
    b"null",
    b"-1",
    b"1e999",
    b"99999999999999",
    b"[]",
    b"{}",
    b'""',
    b"[" * 100_000,
    b'"\\ud800"',
    b"../../x",
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")
_NUMBERS = (
    b"0",
    b"-1",
    b"1",
    b"2",
    b"-3",
    b"7",
    b"200",
    b"65536",
    b"2147483647",
    b"-2147483648",
    b"99999999999",
    b"nan",
)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Return bytes with one to three damages."""
    made = bytearray(data)
    for _ in range(dice.choice((1, 1, 2, 3))):
        at = dice.randrange(len(made) + 1)
        length = min(dice.choice((1, 2, 4, 8, 64, 1024)), len(made) - at)
        how = dice.choice((0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 8))
        if how == 0:
            for _ in range(dice.randint(1, 8)):
                if made:
                    made[dice.randrange(len(made))] ^= 1 << dice.randrange(8)
        elif how == 1:
            del made[at:]
        elif how == 2:
            del made[at : at + length]
        elif how == 3:
            made[at:at] = made[at : at + length] * dice.choice((1, 2, 100))
        elif how == 4:
            other = dice.randrange(len(made) + 1)
            made[at : at + length], made[other : other + length] = (
                made[other : other + length],
                made[at : at + length],
            )
        elif how == 5:
            big = dice.choice(_BIG)
            made[at : at + dice.choice((0, len(big)))] = big
        elif how == 6:
            made[at : at + length] = bytes(dice.randrange(256) for _ in range(length))
        elif how == 7:
            made[at : at + length] = dice.choice(_TEXTS)
        else:
            _other_number(made, at, dice)
    return bytes(made)


def _other_number(made: bytearray, at: int, dice: random.Random) -> None:
    """Put another number, of the same file or an odd one, in the place of the next that is written as text."""
    found = _NUMBER.search(made, at)
    if found is None:
        return
    other = _NUMBER.search(made, dice.randrange(len(made)))
    with_ = dice.choice(_NUMBERS) if other is None or dice.random() < 0.5 else other[0]
    made[found.start() : found.end()] = with_

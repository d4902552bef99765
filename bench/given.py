"""Numbers on a command line: what makes no sense is refused before anything runs."""

from __future__ import annotations

import argparse
from math import inf


def count(text: str) -> int:
    """A number of things, one at least.

    >>> count("3"), count("1_000")
    (3, 1000)
    """
    return _whole(text, 1)


def counts(description: str | None, **defaults: int) -> list[int]:
    """Read a command line of counts, which may be left out from the end on.

    >>> counts(None, lines=10, kills=2)  # doctest: +SKIP
    [10, 2]
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        parser.add_argument(name, nargs="?", type=count, default=default, help=f"(default {default:,})")
    return [*vars(parser.parse_args()).values()]


def some(text: str) -> int:
    """A number of things, or none."""
    return _whole(text, 0)


def amount(text: str) -> float:
    """More than nothing: seconds, a share."""
    found = _number(text)
    if not 0 < found < inf:
        raise argparse.ArgumentTypeError(f"{text} is not more than 0")
    return found


def spent(text: str) -> float:
    """Seconds or the like, or none."""
    found = _number(text)
    if not 0 <= found < inf:
        raise argparse.ArgumentTypeError(f"{text} is less than 0")
    return found


def share(text: str) -> float:
    """A share, from 0 to less than 1."""
    found = _number(text)
    if not 0 <= found < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1")
    return found


def _whole(text: str, least: int) -> int:
    try:
        found = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None
    if found < least:
        raise argparse.ArgumentTypeError(f"{text} is less than {least}")
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None

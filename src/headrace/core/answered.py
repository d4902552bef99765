"""What language models answered to rows, and what a worker has asked them: small sums that travel."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    import pyarrow as pa


class Answered(msgspec.Struct, frozen=True, array_like=True):
    """What language models answered to some rows; a row counts wherever its answer came from.

    Tokens, and the ``latency`` in seconds, are those of the columns of the answers. ``truncated``: rows whose answer
    was cut at ``max_tokens``, kept or not; ``asked_longer``: rows whose answer is whole since it was asked with more.
    ``repaired``: rows whose answer is as it should be since the model was shown what was wrong. ``cached_tokens`` are
    those of prompts that the model had computed before; ``first_token`` are the seconds until the first token, of
    ``first_tokens`` rows of which that is known. ``lengths[n]`` is how many answers have fewer than 2**n tokens, and
    not fewer than half of that. ``runaway``: rows whose answer is far longer than others, stopped or not. ``cost``:
    what the tokens cost by ``prices``, 0 where nobody says.
    """

    rows: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    truncated: int = 0
    asked_longer: int = 0
    repaired: int = 0
    latency: float = 0.0
    first_token: float = 0.0
    first_tokens: int = 0
    lengths: tuple[int, ...] = ()
    runaway: int = 0
    cost: float = 0.0

    def __add__(self, other: Answered) -> Answered:
        """Return both together.

        >>> (Answered(1, lengths=(0, 1)) + Answered(2, lengths=(1,))).lengths
        (1, 1)
        """
        sums: dict[str, Any] = {name: getattr(self, name) + getattr(other, name) for name in _SUMS}
        lengths = tuple(a + b for a, b in zip_longest(self.lengths, other.lengths, fillvalue=0))
        return Answered(**sums, lengths=lengths)

    def least_most(self, bucket: int) -> tuple[int, int]:
        """Return how many tokens the answers of ``lengths[bucket]`` have, at least and at most.

        >>> Answered().least_most(0), Answered().least_most(4)
        ((0, 0), (8, 15))
        """
        return (1 << bucket) >> 1, (1 << bucket) - 1

    def data(self) -> dict[str, Any]:
        """Return it as plain values by name."""
        return {**msgspec.structs.asdict(self), "lengths": list(self.lengths)}


_SUMS = tuple(name for name in Answered.__struct_fields__ if name != "lengths")


def both(some: Answered | None, others: Answered | None) -> Answered | None:
    """Return the sum of two that may be missing."""
    return some + others if some is not None and others is not None else some or others


def answered_from(data: Mapping[str, Any]) -> Answered | None:
    """Return what ``Answered.data`` made; None for what makes no sense."""
    known = {name: value for name, value in data.items() if name in Answered.__struct_fields__}
    return Answered(**{**known, "lengths": tuple(known["lengths"])}) if _sound(known) else None


USE = b"headrace.answered"
"""Where the schema of answers has what they are in sum, on their way from the model to where rows are counted."""


def with_answered(results: pa.RecordBatch, answered: Answered) -> pa.RecordBatch:
    """Return answers with what they are in sum."""
    return results.replace_schema_metadata({USE: msgspec.msgpack.encode(answered)})


def without_answered(results: Any) -> tuple[Any, Answered | None]:
    """Return the results of a model, and what they are in sum if they are answers."""
    found = (getattr(getattr(results, "schema", None), "metadata", None) or _NOTHING).get(USE)
    if found is None:
        return results, None
    return results.replace_schema_metadata(None), msgspec.msgpack.decode(found, type=Answered)


_NOTHING: Mapping[bytes, bytes] = {}


def _sound(data: Mapping[str, Any]) -> bool:
    lengths = data.get("lengths")
    numbers = [value for name, value in data.items() if name != "lengths"]
    listed = lengths if isinstance(lengths, list) and len(lengths) <= 64 else None
    return listed is not None and all(
        isinstance(each, (int, float)) and not isinstance(each, bool) and 0 <= each < 2**62
        for each in (*numbers, *listed)
    )


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """What answers have cost: how many there were, their tokens in and out, and a price."""

    answers: int = 0
    prompt: int = 0
    completion: int = 0
    cost: float = 0.0

    def __add__(self, other: Tokens) -> Tokens:
        return Tokens(
            self.answers + other.answers,
            self.prompt + other.prompt,
            self.completion + other.completion,
            self.cost + other.cost,
        )

"""Texts and structured answers against what they should be, such as answers of language models."""

from __future__ import annotations

import json
import re
import string
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from headrace.accumulators.base import Array, Metric, Nan
from headrace.accumulators.exact import ratio
from headrace.accumulators.moments import Averaged
from headrace.core.arrow.batch import filtered
from headrace.errors import ArgumentError, BadInput, nearest

Normalize = Literal["squad", "spaces"] | None
_NORMALIZE = ("squad", "spaces")
_FENCE = re.compile(r"^\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*$", re.DOTALL)
_ARTICLES = ("a", "an", "the")
_ARTICLE = re.compile(r"\b(?:a|an|the)\b")
_PUNCTUATION = string.punctuation.encode()


class ExactMatch(Averaged):
    """The share of rows whose text ``prediction`` is the text ``label``; None if there is no row.

    Parameters
    ----------
    label, prediction
        Columns of texts. A label may be a list of texts, and then one of them is enough. An empty list means that
        only an empty text is right.
    normalize
        What is made of both texts before. ``"squad"``: lower case, without punctuation (ASCII), without the articles
        a, an and the, and with one space between words. ``"spaces"``: only one space between words, and none
        around. None: nothing.
    weight
        A column of weights.
    nan
        ``"count"`` leaves rows with null out, ``"raise"`` ends the run.

    Raises
    ------
    ArgumentError
        What is no name, or no way to normalize. ``BadInput`` in a run: a column that holds no texts.

    Examples
    --------
    >>> import headrace as hr
    >>> data = hr.from_items([{"y": ["Oslo", "Christiania"], "p": "oslo."}, {"y": ["Rome"], "p": "Milan"}])
    >>> data.evaluate(right=hr.ExactMatch(label="y", prediction="p"))
    {'right': 0.5}
    """

    settings = ("label", "prediction", "normalize", "weight")

    def __init__(
        self,
        label: str,
        prediction: str,
        *,
        normalize: Normalize = "squad",
        weight: str | None = None,
        nan: Nan = "raise",
    ) -> None:
        if normalize is not None and normalize not in _NORMALIZE:
            raise ArgumentError(
                f"normalize={normalize!r}: it is 'squad', 'spaces' or None.{nearest(str(normalize), _NORMALIZE)}"
            )
        self.label, self.prediction, self.normalize, self.weight = label, prediction, normalize, weight
        self._begin([label, prediction, weight], nan)

    def _values(self, arrays: dict[str, Array]) -> Array:
        pairs = zip(arrays[self.label].tolist(), arrays[self.prediction].tolist(), strict=True)
        return np.array([self._score(label, said) for label, said in pairs], np.float64)

    def _score(self, label: Any, said: Any) -> float:
        """Return how good a text is, by the best of its labels."""
        labels = label if isinstance(label, (list, np.ndarray)) else [label]
        said = self._words(said, self.prediction)
        return max(
            self._one(self._words(each, self.label), said) for each in (labels if len(labels) else [""])
        )

    def _words(self, text: Any, column: str) -> list[str]:
        """Return the words that are compared; the text alone where it is compared as it is."""
        if not isinstance(text, str):
            raise BadInput(
                f"{self!r}: column {column!r} holds {type(text).__name__}, and not text. Make text of it before, "
                "or use hr.Accuracy, which takes numbers, too."
            )
        if self.normalize is None:
            return [text]
        if self.normalize == "spaces":
            return text.split()
        text = text.lower().encode().translate(None, _PUNCTUATION).decode()
        words = text.split()
        if "".join(words).isalnum():
            return [word for word in words if word not in _ARTICLES]
        return _ARTICLE.sub(" ", text).split()

    def _one(self, label: list[str], said: list[str]) -> float:
        return float(label == said)


class TokenF1(ExactMatch):
    """How many words ``prediction`` and ``label`` have in common: the mean F1 of rows; None if there is no row.

    F1 is the harmonic mean of precision (the share of the words of the prediction that are in the label) and recall
    (the share of those of the label that are in the prediction). A word counts as often as it is there. Words are
    what white space divides, so a language that is written without spaces needs a column of divided words. Of
    several labels the best counts. If either text has no word, F1 is 1 where both have none, else 0.

    This is the F1 of SQuAD: Rajpurkar et al., "SQuAD: 100,000+ Questions for Machine Comprehension of Text", EMNLP
    2016, section 6.1. For classes there is ``PrecisionRecallF1``.

    ``normalize``, ``weight`` and ``nan``, and what is raised, are as in ``ExactMatch``.

    >>> import headrace as hr
    >>> data = hr.from_items([{"y": "the red wheel", "p": "A wheel, red and round"}])
    >>> data.evaluate(f1=hr.TokenF1(label="y", prediction="p"))
    {'f1': 0.6666666666666666}
    """

    def _words(self, text: Any, column: str) -> list[str]:
        words = super()._words(text, column)
        return words if self.normalize is not None else words[0].split()

    def _one(self, label: list[str], said: list[str]) -> float:
        if not label or not said:
            return float(label == said)
        left: dict[str, int] = {}  # a Counter is slower for some ten words
        for word in label:
            left[word] = left.get(word, 0) + 1
        common = 0
        for word in said:
            if left.get(word):
                left[word] -= 1
                common += 1
        return 2 * common / (len(label) + len(said))


class JSONFields(Metric):
    """How often each field of a structured answer is right: ``{"all": …, "fields": {name: …}, "invalid": …}``.

    All are shares of rows, from 0 to 1. ``all``: of the rows in which each field is right; ``fields``: for each
    field, of the rows whose label has it; ``invalid``: of the rows whose answer is no JSON object. In such a row
    each field is wrong. None if there is no row.

    Parameters
    ----------
    label, prediction
        Columns of structs, or of texts that are JSON objects. JSON may stand in a Markdown fence.
    fields
        The fields that count. Default: those that the label of a row has. A field that is null, and one that is not
        there, are the same. Fields that only the answer has do not count.
    nan
        ``"count"`` leaves rows with null out, ``"raise"`` ends the run.

    Values are right if they are equal as JSON: ``2`` and ``2.0`` are, ``1`` and ``true`` are not, text is compared
    as it is, and lists in their order.

    Raises
    ------
    ArgumentError
        What is no name. ``BadInput`` in a run: a label that is no JSON object, or a column of another type.

    Examples
    --------
    >>> import headrace as hr
    >>> one = {"y": '{"kind": "boot", "stars": 2}', "p": '{"kind": "boot", "stars": 3}'}
    >>> other = {"y": '{"kind": "lamp"}', "p": "It is a lamp."}
    >>> hr.from_items([one, other]).evaluate(fields=hr.JSONFields(label="y", prediction="p"))
    {'fields': {'all': 0.0, 'fields': {'kind': 0.5, 'stars': 0.0}, 'invalid': 0.5}}
    """

    settings = ("label", "prediction", "fields")

    def __init__(
        self, label: str, prediction: str, *, fields: str | Sequence[str] | None = None, nan: Nan = "raise"
    ) -> None:
        self.label, self.prediction = label, prediction
        self.fields = [fields] if isinstance(fields, str) else None if fields is None else list(fields)
        if self.fields is not None and not (
            self.fields and all(isinstance(name, str) for name in self.fields)
        ):
            raise ArgumentError(f"fields={fields!r}: it takes names of fields.")
        self._begin([label, prediction], nan)

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        kept = self._without_nulls(batch)
        if kept is not None:
            self.skipped += len(kept) - int(np.count_nonzero(kept))
            batch = filtered(batch, kept)
        labels, answers = (batch.column(name).to_pylist() for name in (self.label, self.prediction))
        for label, answer in zip(labels, answers, strict=True):
            self._take(self._object(label, self.label), self._object(answer, self.prediction))

    def _take(self, label: Mapping[str, Any] | None, answer: Mapping[str, Any] | None) -> None:
        if label is None:
            raise BadInput(
                f"{self!r}: column {self.label!r} holds a text that is no JSON object. Correct or filter such rows "
                "before."
            )
        names = label if self.fields is None else self.fields
        right = {name: answer is not None and _alike(label.get(name), answer.get(name)) for name in names}
        for name, good in right.items():
            counts = self._counts.setdefault(name, [0, 0])
            counts[0] += good
            counts[1] += 1
        self._rows[0] += answer is not None and all(right.values())
        self._rows[1] += answer is None
        self._rows[2] += 1

    def _object(self, value: Any, column: str) -> Mapping[str, Any] | None:
        """Return a value as an object of JSON, None for a text that is none."""
        if isinstance(value, dict):
            return value
        if not isinstance(value, str):
            raise BadInput(
                f"{self!r}: column {column!r} holds {type(value).__name__}, and neither a struct nor text."
            )
        try:
            found = json.loads(unfenced(value))
        except (ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def result(self) -> dict[str, Any] | None:
        """Return the shares."""
        right, invalid, rows = self._rows
        if not rows:
            return None
        fields = {name: ratio(*self._counts[name]) for name in sorted(self._counts)}
        return {"all": ratio(right, rows), "fields": fields, "invalid": ratio(invalid, rows)}

    def _clear(self) -> None:
        self._counts: dict[str, list[int]] = {}  # of each field: right, and all
        self._rows = [0, 0, 0]  # right in each field, invalid, all

    def _merge(self, other: JSONFields) -> None:
        for name, counts in other._counts.items():
            mine = self._counts.get(name, [0, 0])
            self._counts[name] = [mine[0] + counts[0], mine[1] + counts[1]]
        self._rows = [a + b for a, b in zip(self._rows, other._rows, strict=True)]

    def _state(self) -> Any:
        return [self._rows, sorted(self._counts.items())]

    def _restore(self, state: Any) -> None:
        self._rows, self._counts = list(state[0]), {name: list(counts) for name, counts in state[1]}

    def _reason(self) -> str:
        return "" if self._rows[2] else "no rows"


def unfenced(text: str) -> str:
    """Return what a Markdown fence holds, if the text is one: models put JSON into it.

    >>> unfenced("```json\\n[1]\\n```")
    '[1]'
    """
    fenced = _FENCE.match(text)
    return fenced[1] if fenced else text


def _alike(one: Any, other: Any) -> bool:
    """Say whether two values of JSON are the same: null is as if it were not there, and true is not 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return all(_alike(one.get(name), other.get(name)) for name in one.keys() | other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_alike, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)

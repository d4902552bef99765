"""A metric that a language model counts: it judges each answer, or says which of two is better."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from headrace.accumulators.base import Metric, plain_key
from headrace.accumulators.classes import Weighting, given_weighting, kappa_of
from headrace.accumulators.exact import ratio
from headrace.annex.llm.settings import given_model
from headrace.annex.llm.template import Template
from headrace.errors import ArgumentError, BadInput

_MOST = 100
"""So many verdicts may be chosen from."""
_ORDERS = ("first", "second", "tie")
_DROPPED = ("finish_reason", "latency")


class Judge(Metric):
    """A language model judges each row; this counts its verdicts, and how far they agree with labels.

    In ``accumulate`` and ``evaluate`` it asks the model as ``Dataset.prompt`` does: once for each row, however often
    the run is killed. Its verdicts stand in a column of the output, with the reasons.

    Parameters
    ----------
    rubric
        What is asked, with names of columns in braces: ``"Does {answer} answer {question}?"``. How the verdict has
        to look is added to it.
    model
        Who judges, as in ``prompt``.
    scale
        What a verdict may be. Two whole numbers, ``(1, 5)``: one of the numbers from the worst to the best (the
        default). A list of texts, ``["wrong", "right"]``: one of them.
    pair
        Two columns of texts: which of them is the better answer? The model is asked twice, with each of them first.
        If it does not say the same both times, the verdict is a tie. Verdicts are the names of the columns, and
        ``"tie"``. ``rubric`` does not name these columns.
    label
        A column of verdicts of people, to compare with. Rows where it is null count, but not for this.
    weighting
        As in ``CohenKappa``: how bad it is to miss by several steps of the scale.
    output
        The name of the column of verdicts: a struct of ``reason`` and ``verdict``. With ``pair`` it is one of
        ``verdict``, ``consistent``, ``reason`` and ``reason_swapped``. Beside it are the tokens of its prompts, as
        ``judge_prompt_tokens``.
    via
        As in ``prompt``: ``"batch"`` has the endpoint's batch service judge, for about half the price.

    The result is a dict. ``shares``: the share of each verdict. ``mean``: the mean of a scale of numbers.
    ``consistent``: the share of pairs with the same verdict in both orders. ``agreement``: the share of labels that
    are the verdict. ``kappa``: the same beyond chance, as ``CohenKappa`` counts it. A row without a verdict follows
    ``on_error`` of the run; with ``"null"``, it is left out, and ``notes`` says how many there are.

    Unless the model has a ``sampling`` of its own, the temperature is 0. Two metrics with the same judge, such as one
    within ``hr.By``, ask once.

    Raises
    ------
    ArgumentError
        A scale or a pair that is none. ``BadInput`` in a run: a label that is no verdict. The rest as in ``prompt``.

    Examples
    --------
    >>> import headrace as hr
    >>> from headrace.testing import FakeLLMServer
    >>> verdict = '{"reason": "It is short.", "verdict": 4}'
    >>> with FakeLLMServer(lambda prompt: verdict) as server:
    ...     judge = hr.llm.Judge("How clear is this? {text}", hr.llm.Endpoint(server.url, "fake"), label="people")
    ...     rows = hr.from_items([{"text": "Stop.", "people": 4}, {"text": "Go.", "people": 5}])
    ...     found = rows.with_options(engine="inline").evaluate(clear=judge)["clear"]
    >>> found["mean"], found["agreement"]
    (4.0, 0.5)
    """

    settings = ("rubric", "scale", "pair", "label", "weighting", "output")

    def __init__(
        self,
        rubric: str,
        model: Any,
        *,
        scale: Sequence[Any] | None = None,
        pair: Sequence[str] | None = None,
        label: str | None = None,
        weighting: Weighting = None,
        output: str = "judge",
        via: str = "requests",
    ) -> None:
        self.rubric, self.label, self.output = rubric, label, output
        self.via = via
        self.model = given_model("Judge", model)
        if self.model.settings.n > 1:
            raise ArgumentError("Judge: the model has n= above 1, and a verdict is a single answer.")
        if not self.model.settings.sampling:
            self.model = self.model.with_options(sampling={"temperature": 0.0})
        self.pair = None if pair is None else _given_pair(pair)
        self.scale = _given_scale(scale, self.pair)
        self.weighting = given_weighting(weighting)
        for order in self._orders():
            Template(self._asked(order))  # which refuses what is none
        self._begin([output, label], "count")

    # ------------------------------------------------------------ asking

    def prepare(self, dataset: Any) -> Any:
        """Return the dataset with the column of verdicts, unless it has it from the same judge."""
        names = [self.output, f"{self.output}_swapped"][: len(self._orders())]
        made = dataset
        for name, order in zip(names, self._orders(), strict=True):
            asked = self._asked(order)
            made = made.prompt(asked, self.model, output=name, schema=self._schema(), via=self.via)
            if _key_of(made._plan.steps[-1]) in map(_key_of, dataset._plan.steps):
                return dataset
        if self.pair is not None:
            made = made.with_column(self.output, _joined(names, self.pair)).drop_columns([names[1]])
        return made.drop_columns([f"{name}_{each}" for name in names for each in _DROPPED])

    def _orders(self) -> list[tuple[str, ...]]:
        return [()] if self.pair is None else [self.pair, self.pair[::-1]]

    def _asked(self, order: tuple[str, ...]) -> str:
        if not isinstance(self.rubric, str) or not self.rubric.strip():
            raise ArgumentError(f"Judge({self.rubric!r:.80}): the rubric is a text that is not empty.")
        if order:
            shown = f"The first answer:\n{{{order[0]}}}\n\nThe second answer:\n{{{order[1]}}}"
            wanted = 'then say which answer is better: "first", "second", or "tie" if neither is'
            return f"{self.rubric}\n\n{shown}\n\nGive your reason in one or two sentences, {wanted}."
        wanted = f"the number of your verdict, from {self.scale[0]} (worst) to {self.scale[-1]} (best)"
        if isinstance(self.scale[0], str):
            wanted = f"your verdict: {', '.join(_quoted(each) for each in self.scale)}"
        return f"{self.rubric}\n\nGive your reason in one or two sentences, then {wanted}."

    def _schema(self) -> dict[str, Any]:
        verdicts = list(_ORDERS if self.pair is not None else self.scale)
        kind = "string" if isinstance(verdicts[0], str) else "integer"
        return {
            "type": "object",
            "properties": {"reason": {"type": "string"}, "verdict": {"type": kind, "enum": verdicts}},
            "required": ["reason", "verdict"],
            "additionalProperties": False,
        }

    # ------------------------------------------------------------ counting

    def update(self, batch: pa.RecordBatch) -> None:
        """Count more verdicts."""
        column = batch.column(self.output)
        verdicts = pc.struct_field(column, "verdict").to_pylist()
        consistent = (
            pc.struct_field(column, "consistent").to_pylist() if self.pair is not None else repeat(True)
        )
        labels = batch.column(self.label).to_pylist() if self.label is not None else repeat(None)
        found = Counter(zip(map(plain_key, labels), verdicts, consistent, strict=False))
        for (label, verdict, same), count in found.items():
            if verdict is None:
                self.skipped += count
                continue
            if label is not None and label not in self.scale:
                raise BadInput(
                    f"{self!r}: column {self.label!r} holds {label!r:.80}, which is no verdict: "
                    f"{', '.join(map(repr, self.scale))}."
                )
            cell = label, verdict, bool(same)
            self._cells[cell] = self._cells.get(cell, 0) + count

    def result(self) -> dict[str, Any] | None:
        """Return shares and agreement; None if there is no verdict."""
        rows = sum(self._cells.values())
        if not rows:
            return None
        counts = dict.fromkeys(self.scale, 0)
        pairs: dict[tuple[Any, Any], int] = {}
        for (label, verdict, _), count in self._cells.items():
            counts[verdict] += count
            if label is not None:
                pairs[label, verdict] = pairs.get((label, verdict), 0) + count
        found: dict[str, Any] = {"shares": {each: ratio(count, rows) for each, count in counts.items()}}
        if not isinstance(self.scale[0], str):
            found["mean"] = ratio(sum(each * count for each, count in counts.items()), rows)
        if self.pair is not None:
            found["consistent"] = ratio(
                sum(count for (_, _, same), count in self._cells.items() if same), rows
            )
        if self.label is not None:
            labelled, same = sum(pairs.values()), sum(count for (a, b), count in pairs.items() if a == b)
            found["agreement"] = ratio(same, labelled) if labelled else None
            found["kappa"] = kappa_of(pairs, self.scale, self.weighting)
        return found

    def note(self) -> str:
        """Say how many rows have no verdict, and how many a label."""
        rows = sum(self._cells.values())
        labelled = sum(count for (label, _, _), count in self._cells.items() if label is not None)
        notes = [] if rows else ["no verdicts"]
        notes += [f"{self.skipped:,} without a verdict left out"] * bool(self.skipped)
        notes += [f"{labelled:,} of {rows:,} rows have a label"] * (
            self.label is not None and labelled < rows
        )
        return "; ".join(notes)

    def chart(self) -> dict[str, Any] | None:
        """Return the shares as bars."""
        found = self.result()
        if found is None:
            return None
        shares = found["shares"]
        return {
            "kind": "bars",
            "labels": list(map(str, shares)),
            "values": list(shares.values()),
            "left_out": 0,
        }

    def _clear(self) -> None:
        self._cells: dict[
            tuple[Any, Any, bool], int
        ] = {}  # rows by label, verdict, and whether both orders agree

    def _merge(self, other: Judge) -> None:
        for cell, count in other._cells.items():
            self._cells[cell] = self._cells.get(cell, 0) + count

    def _state(self) -> Any:
        return [[*cell, self._cells[cell]] for cell in sorted(self._cells, key=repr)]

    def _restore(self, state: Any) -> None:
        self._cells = {(label, verdict, same): count for label, verdict, same, count in state}


def _given_pair(value: Sequence[str]) -> tuple[str, str]:
    pair = tuple(value)
    if (
        isinstance(value, str)
        or len(pair) != 2
        or pair[0] == pair[1]
        or not all(isinstance(each, str) and each for each in pair)
    ):
        raise ArgumentError(f"pair={value!r}: it takes the names of two columns.")
    if "tie" in pair:
        raise ArgumentError(f"pair={value!r}: 'tie' is a verdict; give the column another name before.")
    return pair[0], pair[1]


def _given_scale(value: Sequence[Any] | None, pair: tuple[str, str] | None) -> list[Any]:
    """Return all verdicts, from the worst to the best."""
    if pair is not None:
        if value is not None:
            raise ArgumentError(f"scale={value!r} with pair=: the verdict is one of the two, or a tie.")
        return [pair[0], "tie", pair[1]]
    scale = [1, 5] if value is None else list(value) if isinstance(value, (list, tuple)) else []
    if len(scale) == 2 and all(type(each) is int for each in scale) and 0 < scale[1] - scale[0] < _MOST:
        return list(range(scale[0], scale[1] + 1))
    texts = all(isinstance(each, str) and each for each in scale)
    if not texts or not 2 <= len(set(scale)) == len(scale) <= _MOST:
        raise ArgumentError(
            f"scale={value!r:.80}: it takes two whole numbers, the worst and the best, such as (1, 5), or a list of "
            f"2 to {_MOST} different texts."
        )
    return scale


def _quoted(text: str) -> str:
    """Return a verdict as a template holds it: braces are doubled."""
    return '"' + text.replace("{", "{{").replace("}", "}}") + '"'


def _joined(names: Sequence[str], pair: Sequence[str]) -> pc.Expression:
    """Return the verdict about a pair, of those in both orders."""
    said, swapped = (pc.struct_field(pc.field(name), ["verdict"]) for name in names)
    for_first = (said == pc.scalar("first")) & (swapped == pc.scalar("second"))
    for_second = (said == pc.scalar("second")) & (swapped == pc.scalar("first"))
    tied = (said == pc.scalar("tie")) & (swapped == pc.scalar("tie"))
    second_or_tie = pc.if_else(for_second, pc.scalar(pair[1]), pc.scalar("tie"))
    return pc.make_struct(
        pc.if_else(for_first, pc.scalar(pair[0]), second_or_tie),
        for_first | for_second | tied,
        *(pc.struct_field(pc.field(name), ["reason"]) for name in names),
        field_names=["verdict", "consistent", "reason", "reason_swapped"],
    )


def _key_of(step: Any) -> Any:
    """Return what tells a prompt from others; None for another step."""
    if step.verb != "prompt":
        return None
    (model,) = step.models
    return model.output, model.function.predictor.identity()

"""Verbs that compute metrics of the rows of a run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Self

from headrace.core.door import completed
from headrace.core.model_ports import Accumulator, AccumulatorParts
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError
from headrace.plan.steps.functions import Accumulate

if TYPE_CHECKING:
    from headrace.plan.logical import Bound, Plan
    from headrace.result import Metrics


class MetricVerbs(DatasetBase):
    """Verbs that take accumulators."""

    __slots__ = ()

    def accumulate(self, **metrics: Accumulator) -> Self:
        """Have ``metrics`` see the columns as they are here; they count the rows that are written in the end.

        So rows that are filtered, rejected or cut by ``limit`` later do not count, and columns may be dropped,
        renamed or changed later. A metric counts each row once, however often a run is killed and goes on; with the
        result come ``result.metrics["name"]`` and a line of the summary. Only ``write_*`` and ``evaluate`` count:
        other verbs return the rows as if there were no metrics. Metrics belong to the plan that
        an output is recognised by.

        Parameters
        ----------
        metrics
            By name: those of ``headrace.accumulators``, such as ``AUROC``, or anything that fills the
            ``Accumulator`` port.

        Raises
        ------
        ArgumentError
            It is no metric, or there is one of that name already. ``PlanError``: ``map_batches`` or ``flat_map``
            comes later, which may give back other rows. ``UnknownColumn`` comes when the plan is checked.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> data = hr.range(5).accumulate(mean=hr.Mean("id"), rows=hr.Count()).filter(expr="id > 1")
        >>> data = data.with_options(engine="inline", progress=False)
        >>> data.write_parquet(f"{tempfile.mkdtemp()}/out").metrics
        {'mean': 3.0, 'rows': 3}
        """
        return self._accumulated("accumulate", metrics)

    def evaluate(self, **metrics: Accumulator) -> Metrics:
        """Run the plan for ``metrics`` alone, those of ``accumulate`` before it included; no row is written.

        Returns their results by name, a dict whose ``notes`` has words beside some of them, such as why there is
        none. Only columns that somebody needs are read. Raises ``ArgumentError`` for what is no metric, or if there
        is none; and what a run raises.

        >>> import headrace as hr
        >>> hr.range(5).evaluate(mean=hr.Mean("id"))
        {'mean': 2.0}
        """
        counted = self if self._plan.metrics and not metrics else self._accumulated("evaluate", metrics)
        return self._evaluated(counted._plan)

    def require(
        self,
        figures: Mapping[str, Bound] = MappingProxyType({}),
        /,
        *,
        against: str | os.PathLike[str] | None = None,
        on: str | Sequence[str] | None = None,
        **named: Bound,
    ) -> Self:
        """Have the output published only if these figures are as they should be; readers see the old one until then.

        All rows are computed and counted first. If a figure is not met, ``RequirementNotMet`` is raised, and the
        output is kept *unpublished*: no reader finds its rows, no table or database gets them. ``hr.publish`` makes
        them visible all the same, ``hr.discard`` drops them. The same run with other requirements asks again, and
        computes nothing. Figures are those of the whole output, with the rows of earlier runs of it.

        Only ``write_*`` asks: other verbs return the rows as if nothing were required. Requirements are no part of
        the plan that an output is recognised by.

        Parameters
        ----------
        named
            By the name of a metric of ``accumulate``, or of what each run has: ``rows`` (written), ``rejected`` and
            ``nulled`` (shares of the rows read, from 0 to 1), ``seconds`` (of the command that computes the last
            rows), ``cost`` (of language models with ``prices``). The value is ``hr.at_least``, ``hr.at_most`` or
            ``hr.between``. What is None or NaN is never met.
        figures
            The same as a dict, for a number within a result: ``{"scores.f1": hr.at_least(0.8)}``.
        against
            Another output, a table or files, which the new rows are compared with as ``hr.compare`` does it. Then
            ``changed`` (the share of all rows that are not the same), ``only_old`` and ``only_new`` may be required,
            and of a column ``{"columns.score.psi": …}``, ``share`` or ``ks``. It may be the output itself, which a
            run with ``mode="overwrite"`` replaces. What cannot be compared is not met.
        on
            The column or columns that tell a row, for ``against``. Default: its position.

        Raises
        ------
        ArgumentError
            There is no such figure, or the value is no requirement.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = f"{tempfile.mkdtemp()}/out"
        >>> data = hr.range(5).accumulate(mean=hr.Mean("id")).with_options(engine="inline", progress=False)
        >>> data.require(mean=hr.at_least(3)).write_parquet(folder)
        Traceback (most recent call last):
            ...
        headrace.errors.RequirementNotMet: ... mean is 2 (asked: at least 3). ...
        >>> data.require(mean=hr.at_least(2), rows=hr.between(1, 10)).write_parquet(folder).rows
        5
        """
        from headrace.plan.logical import Against, given
        from headrace.plan.parameters import given_folder

        plan = self._plan
        if not isinstance(figures, Mapping):
            raise ArgumentError(f"require({_shown(figures)}): figures are a dict, or come by their names.")
        keys = (on,) if isinstance(on, str) else tuple(on or ())
        if on is not None and (against is None or not keys or not all(isinstance(key, str) for key in keys)):
            raise ArgumentError(f"require(on={on!r}): it names columns, and goes with against=.")
        other = None if against is None else Against(given_folder(against), keys)
        metrics = [name for name, _ in with_shadow(plan).metrics]
        asked = given("require", {**figures, **named}, metrics, other)
        return type(self)(replace(plan, requirements=(*plan.requirements, *asked)), self._options)

    def _accumulated(self, verb: str, metrics: Mapping[str, Accumulator]) -> Self:
        from headrace.accumulators.by import is_accumulator

        if not metrics:
            raise ArgumentError(
                f"{verb}() takes metrics by name, such as {verb}(auc=hr.AUROC(label='y', score='p'))."
            )
        for name, metric in metrics.items():
            if not is_accumulator(metric):
                raise ArgumentError(f"{verb}({name}={_shown(metric)}) is not a metric{_way_out(metric)}.")
            if name in dict(self._plan.metrics):
                raise ArgumentError(
                    f"{verb}({name}=…): the dataset counts a metric of this name already. Use another name."
                )
        data = self
        for metric in metrics.values():
            data = completed(metric, AccumulatorParts).prepare(data)
        made = tuple((name, metric.empty()) for name, metric in metrics.items())
        return data.with_step(Accumulate(made, len(data._plan.accumulates), asked_by=verb))


def with_shadow(plan: Plan) -> Plan:
    """Return the plan with a metric ``shadow`` of two models called ``old`` and ``new`` that run side by side.

    Where later steps may change which rows there are, it would count others than those that are written.
    """
    for at, step in enumerate(plan.steps, 1):
        if step.verb != "predict" or "shadow" in dict(plan.metrics):
            continue
        from headrace.plan.steps.predict import Predict  # start-up is imports

        names = {each.output for each in step.models if each.keyed} if isinstance(step, Predict) else {""}
        later = any(each.makes_rows for each in plan.steps[at:])
        if {"old", "new"}.issubset(names) and not later:
            from headrace.accumulators.differences import Differences

            metric = ("shadow", Differences("old", "new"))
            shadow = Accumulate((metric,), len(plan.accumulates), asked_by="predict", of_models=True)
            return replace(plan, steps=(*plan.steps[:at], shadow, *plan.steps[at:]))
    return plan


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _way_out(value: object) -> str:
    if isinstance(value, type):
        return f": it is a class. Use {value.__name__}(…)"
    if any(each.__module__.partition(".")[0] == "torchmetrics" for each in type(value).__mro__):
        return (
            ": it does not say which columns it reads. Use hr.TorchMetric(metric, inputs=['score', 'label'])"
        )
    return ", such as hr.AUROC(label='y', score='p'), or an object that fills headrace.core.model_ports.Accumulator"

"""Verbs that measure: metrics that count the rows of a run once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from millrace import execution
from millrace.core.ports import Accumulator
from millrace.errors import ArgumentError
from millrace.plan.logical import Accumulate
from millrace.verbs.described import Described

if TYPE_CHECKING:
    from millrace.dataset import Dataset
    from millrace.result import Metrics


class Measures(Described):
    """What is counted on the way."""

    __slots__ = ()

    def accumulate(self, **metrics: Accumulator) -> Dataset:
        """Have ``metrics`` see the columns as they are here; they count the rows that are written in the end.

        So rows that are filtered, rejected or cut by ``limit`` later do not count, and columns may be dropped,
        renamed or changed later. A metric counts each row once, however often a run is killed and goes on; with the
        result come ``result.metrics["name"]`` and a line of the summary. Only ``write_*`` and ``evaluate`` count:
        who looks at the rows in another way has them as if there were no metrics. Metrics belong to the plan that
        an output is recognised by.

        Parameters
        ----------
        metrics
            By name: those of ``millrace.accumulators``, such as ``AUROC``, or anything that fills the
            ``Accumulator`` port.

        Raises
        ------
        ArgumentError
            It is no metric, or there is one of that name already. ``PlanError``: ``map_batches`` or ``flat_map``
            comes later, which may give back other rows. ``UnknownColumn`` comes when the plan is looked at.

        Examples
        --------
        >>> import tempfile, millrace as mr
        >>> data = mr.range(5).accumulate(mean=mr.Mean("id"), rows=mr.Count()).filter(expr="id > 1")
        >>> data = data.with_options(engine="inline", progress=False)
        >>> data.write_parquet(f"{tempfile.mkdtemp()}/out").metrics
        {'mean': 3.0, 'rows': 3}
        """
        return self._then(self._accumulate("accumulate", metrics))

    def evaluate(self, **metrics: Accumulator) -> Metrics:
        """Run the plan for ``metrics`` alone, those of ``accumulate`` before it included; rows go nowhere.

        Returns their results by name, a dict whose ``notes`` has words beside some of them, such as why there is
        none. Only columns that somebody needs are read. Raises ``ArgumentError`` for what is no metric, or if there
        is none; and what a run raises.

        >>> import millrace as mr
        >>> mr.range(5).evaluate(mean=mr.Mean("id"))
        {'mean': 2.0}
        """
        plan = self._plan
        if metrics or not plan.metrics:
            plan = plan.then(self._accumulate("evaluate", metrics))
        return execution.evaluate(plan, self._options, self._note)

    def _accumulate(self, verb: str, metrics: Mapping[str, Accumulator]) -> Accumulate:
        from millrace.accumulators.by import is_accumulator

        if not metrics:
            raise ArgumentError(
                f"{verb}() takes metrics by name, such as {verb}(auc=mr.AUROC(label='y', score='p'))."
            )
        for name, metric in metrics.items():
            if not is_accumulator(metric):
                raise ArgumentError(f"{verb}({name}={_shown(metric)}) is no metric{_way_out(metric)}.")
            if name in dict(self._plan.metrics):
                raise ArgumentError(
                    f"{verb}({name}=…): there is a metric of that name before it in the plan."
                )
        made = tuple((name, metric.empty()) for name, metric in metrics.items())
        return Accumulate(made, len(self._plan.accumulates))


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _way_out(value: object) -> str:
    if isinstance(value, type):
        return f": it is a class. Say {value.__name__}(…)"
    if any(each.__module__.partition(".")[0] == "torchmetrics" for each in type(value).__mro__):
        return (
            ", as nobody knows which columns it reads. Say mr.TorchMetric(metric, inputs=['score', 'label'])"
        )
    return ", such as mr.AUROC(label='y', score='p'), or what fills millrace.core.ports.Accumulator"

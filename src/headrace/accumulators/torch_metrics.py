"""Metrics of the library torchmetrics, as accumulators."""

from __future__ import annotations

import copy
import io
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from headrace.accumulators.base import Metric
from headrace.core.arrow.batch_formats import to_numpy
from headrace.errors import ArgumentError, BadInput

_MERGED = "sum", "min", "max", "cat"


class TorchMetric(Metric):
    """A metric of torchmetrics, whose ``update`` is given the columns ``inputs`` as tensors, in this order.

    All its states have to be ones that torchmetrics merges by sum, min, max or concatenation, as most are; others are
    refused. Sums are in the dtype that the metric has, so they are merged in the order of shards: a run that is
    resumed gives the same as one that never stopped, but another number of shards may differ in the last bits.

    Parameters
    ----------
    metric
        An object of torchmetrics. It is copied, and as it is at the beginning.
    inputs
        Columns, of shape (n,) or (n, k…), in the order of the arguments of its ``update``: mostly predictions first.

    Raises
    ------
    ArgumentError
        A state of it cannot be merged; the message says which. ``BadInput`` in a run: a column that holds no numbers.

    Examples
    --------
    >>> import headrace as hr
    >>> hr.TorchMetric(print, inputs=["score", "label"])
    Traceback (most recent call last):
    ...
    headrace.errors.ArgumentError: TorchMetric takes an object of torchmetrics, not <built-in function print>.
    """

    settings = ("inputs",)

    def __init__(self, metric: Any, *, inputs: Sequence[str]) -> None:
        reductions = getattr(metric, "_reductions", None)
        if not isinstance(reductions, dict) or not hasattr(metric, "compute"):
            raise ArgumentError(f"TorchMetric takes an object of torchmetrics, not {metric!r}.")
        self._how = {name: _merged(metric, name, how) for name, how in reductions.items()}
        self.inputs = [inputs] if isinstance(inputs, str) else list(inputs)
        self._empty_metric = copy.deepcopy(metric)
        self._empty_metric.reset()
        self._begin(self.inputs)

    def update(self, batch: pa.RecordBatch) -> None:
        """Take more rows."""
        import torch

        if not batch.num_rows:
            return
        tensors = []
        for name in self.inputs:
            values = to_numpy(batch.column(name))
            if values.dtype.kind not in "fiub":
                raise BadInput(f"{self!r}: column {name!r} cannot become a tensor: it holds {values.dtype}.")
            tensors.append(torch.from_numpy(values.copy()))
        self._metric.update(*tensors)
        self._rows += batch.num_rows

    def result(self) -> Any:
        """Return what ``compute`` does, as numbers; None if there is no row."""
        return _plain(self._metric.compute()) if self._rows else None

    def describe(self) -> dict[str, Any]:
        """Return what identifies it: its class, and its settings, as far as attributes hold them."""
        metric = self._empty_metric
        settings = {
            name: repr(value)
            for name, value in sorted(vars(metric).items())
            if not name.startswith("_") and isinstance(value, (bool, int, float, str, type(None)))
        }
        kind = f"{type(metric).__module__}.{type(metric).__qualname__}"
        return {"kind": kind, "inputs": self.inputs, "settings": settings}

    def __repr__(self) -> str:
        return f"TorchMetric({type(self._empty_metric).__name__}, inputs={self.inputs})"

    def _clear(self) -> None:
        self._metric = copy.deepcopy(self._empty_metric)
        self._rows = 0

    def _merge(self, other: TorchMetric) -> None:
        import torch

        for name, how in self._how.items():
            mine, others = getattr(self._metric, name), getattr(other._metric, name)
            if how == "cat":
                setattr(self._metric, name, [*_listed(mine), *_listed(others)])
            else:
                merge = {"sum": torch.add, "min": torch.minimum, "max": torch.maximum}[how]
                setattr(self._metric, name, merge(mine, others))
        self._rows += other._rows
        self._metric._update_count = max(self._metric._update_count, other._metric._update_count)
        self._metric._computed = None

    def _state(self) -> Any:
        import torch

        states = {}
        for name, how in self._how.items():
            state = getattr(self._metric, name)
            if how == "cat":
                parts = _listed(state)
                state = (
                    torch.cat([part.reshape(-1) if part.ndim == 0 else part for part in parts])
                    if parts
                    else None
                )
            states[name] = state
        out = io.BytesIO()
        torch.save(states, out)
        return [self._rows, out.getvalue()]

    def _restore(self, state: Any) -> None:
        import torch

        self._rows, data = state
        for name, found in torch.load(io.BytesIO(data), weights_only=True).items():
            cat = self._how[name] == "cat"
            setattr(self._metric, name, ([] if found is None else [found]) if cat else found)
        self._metric._update_count = int(self._rows > 0)
        self._metric._computed = None

    def _reason(self) -> str:
        return "" if self._rows else "no rows"


def _merged(metric: Any, name: str, how: Any) -> str:
    known = str(getattr(how, "__name__", how)).removeprefix("dim_zero_")
    if known in _MERGED and (known == "cat" or not isinstance(getattr(metric, name), list)):
        return known
    raise ArgumentError(
        f"The state {name!r} of {type(metric).__name__} is merged by {known if how is not None else 'nothing'}, "
        f"which cannot be repeated shard by shard: states that merge by {', '.join(_MERGED)} can. Another metric, or "
        "one of your own that fills headrace.core.model_ports.Accumulator, would do."
    )


def _listed(state: Any) -> list[Any]:
    return list(state) if isinstance(state, (list, tuple)) else [state]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value

"""A loaded PyTorch module: it runs batches, one at a time, or two on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.arrow.model_columns import Columns, pieces
from headrace.predictors.torch.errors import FailedCall, explained, wants_dict
from headrace.predictors.torch.values import (
    Inputs,
    Transfers,
    concat_arrays,
    concat_tensors,
    device_copy,
    first_rows,
    to_array,
    to_result,
)

_RAISED_BY_MODULES = (RuntimeError, ValueError, TypeError, IndexError, AssertionError, AttributeError)


@dataclass(frozen=True, slots=True)
class Submitted:
    """A batch that the module has. ``done``: the event after which ``output`` can be read, on CUDA."""

    batch: Columns
    args: tuple[Any, ...] = ()
    kwargs: Any = None
    output: Any = None
    done: Any = None


class _TakesDict(Exception):
    """A module seems to take a dict of columns; ``otherwise`` is what to raise if it does not."""

    def __init__(self, otherwise: Exception | None) -> None:
        super().__init__()
        self.otherwise = otherwise


@dataclass(slots=True)
class LoadedModule:
    """A module that is ready, and what has to be restored when it is closed.

    ``call`` is the module, or what torch.compile made of it. ``rows``: an exported program takes just so many, and
    ``exported_for`` describes its inputs.
    """

    module: Any
    call: Callable[..., Any]
    label: str
    compiled: bool
    autocast: str | None
    inputs: Inputs
    exported_for: str
    rows: int | None
    training: list[tuple[Any, bool]]
    threads: int
    transfers: Transfers | None

    def submit(self, batch: Columns) -> Submitted:
        """Give the module a batch. CUDA computes from here on by itself; elsewhere ``collect`` does."""
        if self.rows is not None:
            return Submitted(batch)
        transfers = self.transfers
        if transfers is None:
            return Submitted(batch, *self.inputs.arguments(batch))
        output = self._with_dict_if_taken(lambda: self._run(batch, None, transfers.to_host))
        return Submitted({}, output=output, done=transfers.mark())

    def collect(self, submitted: Submitted) -> Any:
        """Return the result for a batch."""
        batch = submitted.batch
        if submitted.done is not None:
            submitted.done.synchronize()
            return to_result(submitted.output)
        if self.rows is None:
            return self._with_dict_if_taken(
                lambda: self._run(batch, (submitted.args, submitted.kwargs)), lambda: self._run(batch)
            )
        parts = [first_rows(self._run(piece), self.rows, count) for piece, count in pieces(batch, self.rows)]
        return concat_arrays(parts)

    def predict_in_pieces(self, batch: Columns, rows: int) -> Any:
        """Return the result for each ``rows`` rows, concatenated; all of them become tensors at once."""
        if self.rows is not None:
            return self.collect(self.submit(batch))
        return self._with_dict_if_taken(lambda: self._in_pieces(batch, rows))

    def close(self) -> None:
        """Restore the module's modes and the number of threads."""
        import torch

        for part, mode in self.training:
            part.training = mode
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)

    def _with_dict_if_taken(self, run: Callable[[], Any], retry: Callable[[], Any] | None = None) -> Any:
        """Run; if the module turns out to take a dict of columns, give it one from now on."""
        try:
            return run()
        except _TakesDict as request:
            otherwise, cause = request.otherwise, request.__cause__
        before = self.inputs
        self.inputs = replace(before, as_dict=True)
        try:
            return (retry or run)()
        except Exception:
            if otherwise is None:
                raise
        self.inputs = before
        raise otherwise from cause if otherwise is not cause else None

    def _in_pieces(self, batch: Columns, rows: int) -> Any:
        args, kwargs = self.inputs.arguments(batch)
        total = len(next(iter(batch.values())))
        parts = []
        with self._context():
            for start in range(0, max(total, 1), rows):
                piece = tuple(_sliced(each, start, rows) for each in args), _sliced(kwargs, start, rows)
                size = min(rows, total - start)
                parts.append(first_rows(self._output(batch, *piece, device_copy), size, size))
            return concat_tensors(parts)

    def _run(
        self,
        batch: Columns,
        arguments: tuple[tuple[Any, ...], dict[str, Any]] | None = None,
        copy: Callable[[Any], Any] = to_array,
    ) -> Any:
        args, kwargs = arguments or self.inputs.arguments(batch)
        with self._context():
            return self._output(batch, args, kwargs, copy)

    def _context(self) -> ExitStack:
        """Return the context in which the module computes."""
        import torch

        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if self.autocast is not None:
                device = self.inputs.device.type
                stack.enter_context(torch.autocast(device, getattr(torch, self.autocast)))
            return stack.pop_all()

    def _output(
        self, batch: Columns, args: tuple[Any, ...], kwargs: dict[str, Any], copy: Callable[[Any], Any]
    ) -> Any:
        try:
            output = self.call(*args, **kwargs)
        except _RAISED_BY_MODULES as error:
            may_take_dict = not self.inputs.as_dict and len(args) == 1 and not isinstance(args[0], dict)
            if may_take_dict and wants_dict(error):
                raise _TakesDict(None) from error
            if isinstance(error, AttributeError):
                raise
            call = FailedCall(
                self.module, self.label, self.compiled, self.inputs, self.exported_for, batch, args, kwargs
            )
            explanation = explained(call, error)
            # A tensor that is indexed by a name raises it, too.
            if may_take_dict and isinstance(error, IndexError):
                raise _TakesDict(explanation or error) from error
            if explanation is None:
                raise
            raise explanation from error
        return to_result(output, copy)


def _sliced(value: Any, start: int, rows: int) -> Any:
    """Return some rows of a tensor, or of each in a dict."""
    if isinstance(value, dict):
        return {name: tensor[start : start + rows] for name, tensor in value.items()}
    return value[start : start + rows]

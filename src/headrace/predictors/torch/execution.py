"""A loaded PyTorch module: it runs batches, one at a time, or two on CUDA, and says why one does not fit."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from headrace.core.arrow.model_columns import Columns, pieces, shapes
from headrace.core.files.artifacts import shortened
from headrace.errors import BadInput, HeadraceError, ModelError
from headrace.predictors.torch.values import (
    Inputs,
    Transfers,
    concat_arrays,
    first_rows,
    to_array,
    to_result,
)

# ---------------------------------------------------------------- errors for batches that do not fit

_ABOUT_INPUT = re.compile(
    r"\b(shapes?|sizes?|dim|dims|dimensions?|dimensional|\dD|dtype|scalar types?|channels?|mat1|"
    r"out of range|expected|missing value|guard failed|same type|input type|elements)\b",
    re.IGNORECASE,
)
_ABOUT_DTYPE = re.compile(r"\bdtype|scalar types?|same type|input type", re.IGNORECASE)
_DICT_WANTED = re.compile(  # the errors of a tensor that is indexed by a column's name
    r"got str\)|invalid data type 'str'|'Tensor' object has no attribute '(items|keys|values|get|pop)'|"
    r"__contains__ only supports .* <class 'str'>|must be a mapping, not Tensor|'Tensor' object is not a mapping"
)
_OUT_OF_MEMORY = re.compile("out of memory|can't allocate memory|not enough memory", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class FailedCall:
    """A call of a module that failed; ``exported_for`` describes the inputs of an exported program."""

    module: Any
    label: str
    compiled: bool
    inputs: Inputs
    exported_for: str
    batch: Columns
    args: tuple[Any, ...]
    named: dict[str, Any]


def wants_dict(error: Exception) -> bool:
    """Return whether a module raised this because it takes a dict of columns, and was given a tensor."""
    return _DICT_WANTED.search(str(error)) is not None


def explained(call: FailedCall, error: Exception) -> HeadraceError | None:
    """Return the error of ours that this one is; None if it is not about the input, and stays itself."""
    import torch

    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    message = " ".join(lines)
    if isinstance(error, torch.cuda.OutOfMemoryError) or _OUT_OF_MEMORY.search(message):
        return None
    if call.compiled and isinstance(error, torch._dynamo.exc.TorchDynamoException):
        if not isinstance(error, torch._dynamo.exc.TorchRuntimeError):
            return ModelError(
                f"torch.compile cannot compile {call.label}: {shortened(' '.join(lines[:2]), 500)}."
            )
    elif isinstance(error, TypeError):
        if _binds(call):
            return None
    elif isinstance(error, AssertionError):
        if not message.startswith("Guard failed"):  # one of an exported program
            return None
    elif not _ABOUT_INPUT.search(message):
        return None
    short = shortened(lines[-1] if "TorchScript" in message else lines[0], 500)
    why = _why(call, error, short)
    choose = ". Choose columns with inputs=[…]" if len(call.batch) > 1 else ""
    return BadInput(
        f"{why}{'. It' if why else 'the model'} was given {shapes(call.batch)}; torch's error: {short}{choose}"
    )


def _why(call: FailedCall, error: Exception, message: str) -> str:
    """Return what does not fit, as far as that is known."""
    if call.exported_for:
        return call.exported_for
    first = call.args[0] if call.args else None
    tensors = [*(first.values() if isinstance(first, dict) else call.args), *call.named.values()]
    if isinstance(error, TypeError):
        return f"forward takes {', '.join(call.inputs.names)}" if call.inputs.names else ""
    layer = call.inputs.layer
    misfit = layer.misfit(tensors[0]) if layer is not None and len(tensors) == 1 else ""
    if not misfit and _ABOUT_DTYPE.search(message) and not all(each.is_floating_point() for each in tensors):
        kind = str(call.inputs.floating).removeprefix("torch.")
        return f"the module works in {kind}, and integers are given as they are: make floats of such columns before"
    if misfit or layer is None or len(tensors) == 1:
        return misfit
    return layer.takes()


def _binds(call: FailedCall) -> bool:
    try:
        inspect.signature(call.module.forward).bind(*call.args, **call.named)
    except (TypeError, ValueError):
        return False
    return True


_SPEAKING = ("dropout", "batch_norm", "attention", "lstm", "gru", "rnn")


def check_recorded(program: Any, label: str) -> None:
    """Raise ``ModelError`` if a program has dropout, or the statistics of each batch, recorded as constants.

    ``model.eval()`` changes a module, and a script that asks for its mode. What was traced or exported does not ask.
    """
    import torch

    if isinstance(program, torch.export.ExportedProgram):
        how, calls = "exported", _exported(program)
    elif isinstance(program, torch.jit.ScriptModule):
        how, calls = "traced", _traced(program)
    else:
        return
    found = next((name for name, given in calls if _trains(given)), None)
    if found is not None:
        raise ModelError(
            f"{label} was {how} in training mode: it would predict with {found} as in training, with other results "
            f"for the same row. Call model.eval() before it is {how}. If that is what you want, call the program in "
            "a function of your own: map_batches(…)."
        )


def _trains(given: Mapping[str, Any]) -> bool:
    if given.get("training") is True:
        return given.get("running_mean") is not None  # else it has no other statistics in either mode
    if given.get("train") is True:
        return bool(given.get("p", given.get("dropout")))
    rate = given.get("dropout_p")
    return isinstance(rate, float) and rate > 0


def _exported(program: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in program.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        if node.op == "call_function" and schema is not None:
            names = [argument.name for argument in schema.arguments]
            yield _short(schema.name), {**dict(zip(names, node.args, strict=False)), **node.kwargs}


def _traced(program: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield calls that are always made; those of a script stand in branches that ask for its mode."""
    import torch

    try:
        graph = program.inlined_graph
    except (AttributeError, RuntimeError):  # it has methods, but no forward
        return
    for node in graph.nodes():
        if any(word in node.kind() for word in _SPEAKING):
            names = [argument.name for argument in torch._C.parse_schema(node.schema()).arguments]
            values = [_constant(value) for value in node.inputs()]
            yield _short(node.kind()), dict(zip(names, values, strict=False))


def _constant(value: Any) -> Any:
    """Return what a value of a graph is, or the value itself if that is known only when it runs."""
    return value.toIValue() if value.node().kind() == "prim::Constant" else value


def _short(name: str) -> str:
    return name.rpartition("::")[2]


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

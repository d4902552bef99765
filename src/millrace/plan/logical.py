"""The plan as the user wrote it: a source, a linear list of steps, maybe a sink. Frozen values, no behaviour
beyond saying what they are."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millrace.core.ports import Accumulator, Predictor, Sink, Source
from millrace.errors import ArgumentError, PlanError
from millrace.screen import one_line

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.core.batch import BatchFormat


@dataclass(frozen=True, slots=True)
class Remote:
    """What a cluster is told about each worker of a step, in its own words."""

    args: Mapping[str, Any]

    def __hash__(self) -> int:
        return hash(frozenset(self.args))


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker of a step needs, and how many workers there may be.

    ``num_cpus`` is in cores, ``num_gpus`` in devices, ``memory`` in bytes; ``workers`` is ``(min, max)`` or
    None for as many as the machine has room for. ``remote`` is for a cluster.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    workers: tuple[int, int] | None = None
    remote: Remote | None = None


def _here(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


@dataclass(frozen=True, slots=True)
class Function:
    """The user's code in a step: a function, a callable object, or a class made once per worker.

    ``model``: it may be, or make, a predictor, and is then loaded and asked to predict instead of called.
    """

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init_args: tuple[Any, ...] = ()
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None
    model: bool = False

    @property
    def name(self) -> str:
        """The name that messages use."""
        return callable_name(self.call)

    @property
    def predictor(self) -> Predictor | None:
        """The predictor that this is, if it is one."""
        call: Any = self.call
        return call if self.model and is_predictor(call) and not isinstance(call, type) else None

    @property
    def is_async(self) -> bool:
        """True if what is called per batch is a coroutine function."""
        call: Any = self.call
        return is_async(call.predict if self.model and is_predictor(call) else call)

    def build(self, run: Callable[..., Any] = _here) -> Built:
        """Make what is called per batch or row; constructs a class and loads a model, so once per worker.

        Whatever else than the calls themselves is the user's code, ``run(function, *args, **kwargs)`` carries out.
        """
        call: Any = self.call
        predictor = None
        if isinstance(call, type):
            call = run(call, *self.init_args, **self.init_kwargs)
        elif hasattr(call, "__dict__") and not callable(getattr(call, "__get__", None)):
            call = copy.copy(call)  # what it keeps of its work is not to become a part of what the user gave
        if self.model and is_predictor(call):
            predictor = call
            run(predictor.load)
            _check_format(predictor)
            call = predictor.predict
        if self.args or self.kwargs:
            call = functools.partial(_call_with, call, self.args, dict(self.kwargs))
        return Built(call, predictor, run)


def _check_format(predictor: Any) -> None:
    wanted = getattr(predictor, "batch_format", None)
    if wanted not in (None, "numpy", "pandas", "pyarrow"):
        raise ArgumentError(
            f"{callable_name(predictor)}.batch_format is {wanted!r}; it may be 'numpy', 'pandas' or 'pyarrow'."
        )


@dataclass(frozen=True, slots=True)
class Built:
    """A function at work in one worker: what is called, and the predictor behind it, if there is one."""

    call: Callable[[Any], Any]
    predictor: Predictor | None = None
    run: Callable[..., Any] = _here

    def close(self) -> None:
        """Let a predictor go of what it holds."""
        if self.predictor is not None:
            self.run(self.predictor.close)


def is_predictor(value: Any) -> bool:
    """Say whether ``value``, or what a class makes, fills the ``Predictor`` port."""
    return all(callable(getattr(value, name, None)) for name in ("load", "predict", "close"))


def is_async(call: Any) -> bool:
    """Say whether calling a function, a callable object, or what a class makes, gives a coroutine."""
    return inspect.iscoroutinefunction(_called(call))


def is_async_generator(call: Any) -> bool:
    """Say whether it gives an async generator instead."""
    return inspect.isasyncgenfunction(_called(call))


def _called(call: Any) -> Any:
    while isinstance(call, functools.partial):
        call = call.func
    return call if inspect.isroutine(call) else getattr(call, "__call__", call)  # noqa: B004 - the method itself


def _call_with(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    return call(value, *args, **kwargs)


def callable_name(call: Any) -> str:
    """Name a function, class or callable object as its author would."""
    while isinstance(call, functools.partial):
        call = call.func
    if is_predictor(call) and not isinstance(call, type):
        return one_line(str(getattr(call, "label", None) or type(call).__qualname__))
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return one_line(str(name).replace("<locals>.", ""))


@dataclass(frozen=True, slots=True)
class MapBatches:
    """Batch in, batch or batches out; ``max_in_flight`` of them at a time, if the user said how many.

    ``batch_size`` in rows, or ``batch_bytes``; with neither, what is fastest is found out.
    """

    function: Function
    batch_size: int | None
    batch_format: BatchFormat
    columns: tuple[str, ...] | None
    resources: Resources = Resources()
    max_in_flight: int | None = None
    batch_bytes: int | None = None
    verb = "map_batches"


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a ``predict`` step: what it reads, and what it adds to each row.

    An array becomes the column ``output``; named results bring their own names, put behind ``output`` and an
    underscore if ``prefixed``. ``inputs`` None: all columns that entered the step. ``max_in_flight``: batches at a
    time, if the user said how many. ``batch_size`` and ``batch_bytes`` as in ``MapBatches``.
    """

    function: Function
    output: str
    inputs: tuple[str, ...] | None
    prefixed: bool
    batch_size: int | None
    batch_format: BatchFormat
    resources: Resources = Resources()
    max_in_flight: int | None = None
    batch_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Predict:
    """One result per row from each model, beside the columns that are carried. ``keep`` None: all of them."""

    models: tuple[Model, ...]
    keep: tuple[str, ...] | None
    replace: bool
    verb = "predict"

    def joined(self, other: Predict) -> Predict | None:
        """Return the one step that does what this and then ``other`` does, if one can.

        It can where ``other`` sees nothing that this one changed, but by naming it, and workers need the same.
        """
        carries = self.keep is None and other.keep is None and not (self.replace or other.replace)
        named = all(model.inputs is not None for model in other.models)
        alike = len({model.resources for model in (*self.models, *other.models)}) == 1
        return Predict((*self.models, *other.models), None, False) if carries and named and alike else None


class AddColumn(Predict):
    """The same for a function that the user does not call a model; its column may take another's place."""

    __slots__ = ()
    verb = "add_column"


@dataclass(frozen=True, slots=True)
class MapRows:
    """One row in, one row out."""

    function: Function
    resources: Resources = Resources()
    verb = "map"


@dataclass(frozen=True, slots=True)
class FlatMap:
    """One row in, any number of rows out."""

    function: Function
    resources: Resources = Resources()
    verb = "flat_map"


@dataclass(frozen=True, slots=True)
class Filter:
    """Keep the rows for which the function, or the Arrow expression, is true."""

    function: Function | None
    expression: Any = None
    resources: Resources = Resources()
    verb = "filter"


@dataclass(frozen=True, slots=True)
class Select:
    """Keep these columns, in this order."""

    columns: tuple[str, ...]
    verb = "select_columns"


@dataclass(frozen=True, slots=True)
class Drop:
    """Leave these columns out."""

    columns: tuple[str, ...]
    verb = "drop_columns"


@dataclass(frozen=True, slots=True)
class Rename:
    """Give columns other names."""

    names: tuple[tuple[str, str], ...]
    verb = "rename_columns"


@dataclass(frozen=True, slots=True)
class Limit:
    """Let the first ``rows`` rows pass, in input order over the whole dataset."""

    rows: int
    verb = "limit"


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Have metrics see the columns as they are here; they count the rows that are written in the end.

    ``number``: so many such steps come before it in the plan.
    """

    metrics: tuple[tuple[str, Accumulator], ...]
    number: int = 0
    verb = "accumulate"

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that some metric reads."""
        return tuple(dict.fromkeys(name for _, metric in self.metrics for name in metric.columns))


Step = MapBatches | Predict | MapRows | FlatMap | Filter | Select | Drop | Rename | Limit | Accumulate


def functions_of(step: Step) -> tuple[Function, ...]:
    """Return the user's code in this step."""
    if isinstance(step, Predict):
        return tuple(model.function for model in step.models)
    function = getattr(step, "function", None)
    return () if function is None else (function,)


def resources_of(step: Step) -> tuple[Resources, ...]:
    """Return what the parts of this step need."""
    if isinstance(step, Predict):
        return tuple(model.resources for model in step.models)
    resources = getattr(step, "resources", None)
    return () if resources is None else (resources,)


def of_this_machine(step: Step) -> Step:
    """Return a step without what only a cluster is told."""
    if not any(resources.remote for resources in resources_of(step)):
        return step
    if isinstance(step, Predict):
        models = tuple(
            replace(model, resources=replace(model.resources, remote=None)) for model in step.models
        )
        return replace(step, models=models)
    assert isinstance(step, (MapBatches, MapRows, FlatMap, Filter))
    return replace(step, resources=replace(step.resources, remote=None))


def in_flight_of(step: Step) -> tuple[int | None, ...]:
    """Return, for each of ``functions_of(step)``, how many batches at a time the user asked for."""
    if isinstance(step, Predict):
        return tuple(model.max_in_flight for model in step.models)
    return (getattr(step, "max_in_flight", None),) * len(functions_of(step))


def labels_of(step: Step) -> tuple[str, ...]:
    """Return, for each of ``functions_of(step)``, what messages call it."""
    if isinstance(step, Predict):
        return tuple(model_label(step, model) for model in step.models)
    return (step_label(step),) * len(functions_of(step))


def may_rename(step: Step) -> bool:
    """Say whether only running the step tells which columns come out of it."""
    return isinstance(step, (MapBatches, Predict, MapRows, FlatMap))


def model_label(step: Predict, model: Model) -> str:
    """Name one model of a step: ``predict(Fare)``, or ``predict(small: Fare)`` where there are several."""
    name = model.function.name
    return f"{step.verb}({name})" if len(step.models) == 1 else f"{step.verb}({model.output}: {name})"


def step_label(step: Step) -> str:
    """Name a step as the user wrote it: ``map_batches(clean)``."""
    if isinstance(step, Predict):
        if len(step.models) == 1:
            return model_label(step, step.models[0])
        named = ", ".join(f"{model.output}: {model.function.name}" for model in step.models)
        return f"{step.verb}({named})"
    for function in functions_of(step):
        return f"{step.verb}({function.name})"
    if isinstance(step, Limit):
        return f"limit({step.rows})"
    if isinstance(step, Filter):
        return f"filter({step.expression})"
    if isinstance(step, Rename):
        return f"rename_columns({dict(step.names)})"
    if isinstance(step, Accumulate):
        return f"accumulate({', '.join(name for name, _ in step.metrics)})"
    assert isinstance(step, (Select, Drop))
    return f"{step.verb}({list(step.columns)})"


@dataclass(frozen=True, slots=True)
class Plan:
    """A source, a linear list of steps, maybe a sink."""

    source: Source
    steps: tuple[Step, ...] = ()
    sink: Sink | None = None
    output_schema: pa.Schema | None = None

    def then(self, step: Step) -> Plan:
        """Return the plan with one step more; models that can run side by side become one step."""
        if isinstance(step, Predict) and self.steps and isinstance(self.steps[-1], Predict):
            joined = self.steps[-1].joined(step)
            if joined is not None:
                return replace(self, steps=(*self.steps[:-1], joined))
        if isinstance(step, (MapBatches, FlatMap)) and self.accumulates:
            raise PlanError(
                f"{step_label(step)} comes behind {step_label(self.accumulates[-1])}: it may give back other rows "
                "than it got, so nobody would know which of the rows that the metrics saw are written in the end. "
                "Put accumulate behind it; columns that the metrics need have to be kept until there."
            )
        return replace(self, steps=(*self.steps, step))

    @property
    def accumulates(self) -> tuple[Accumulate, ...]:
        """The steps with metrics, in order."""
        return tuple(step for step in self.steps if isinstance(step, Accumulate))

    @property
    def metrics(self) -> tuple[tuple[str, Accumulator], ...]:
        """All metrics with their names, in order."""
        return tuple(metric for step in self.accumulates for metric in step.metrics)

    def without_metrics(self) -> Plan:
        """Return what is left when nobody asks for metrics."""
        return replace(self, steps=tuple(step for step in self.steps if not isinstance(step, Accumulate)))

    def into(self, sink: Sink, schema: pa.Schema | None = None) -> Plan:
        """Return the plan with its sink, and the output's schema if the user settled it."""
        return replace(self, sink=sink, output_schema=schema)

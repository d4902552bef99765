"""The plan as the user wrote it: a source, a linear list of steps, maybe a sink. Frozen values, no behaviour
beyond saying what they are."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from millrace.core.ports import Sink, Source

if TYPE_CHECKING:
    import pyarrow as pa

    from millrace.core.batch import BatchFormat


@dataclass(frozen=True, slots=True)
class Resources:
    """What one worker of a step needs, and how many workers there may be.

    ``num_cpus`` is in cores, ``num_gpus`` in devices, ``memory`` in bytes; ``workers`` is ``(min, max)`` or
    None for as many as the machine has room for.
    """

    num_cpus: float | None = None
    num_gpus: float | None = None
    memory: int | None = None
    workers: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Function:
    """The user's code in a step: a function, a callable object, or a class made once per worker."""

    call: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    init_args: tuple[Any, ...] = ()
    init_kwargs: Mapping[str, Any] = field(default_factory=dict)
    version: str | None = None

    @property
    def name(self) -> str:
        """The name that messages use."""
        return callable_name(self.call)

    def build(self) -> Callable[[Any], Any]:
        """Make what is called per batch or row; constructs a class, so call it once per worker."""
        call = self.call
        if isinstance(call, type):
            call = call(*self.init_args, **self.init_kwargs)
        if self.args or self.kwargs:
            return functools.partial(_call_with, call, self.args, dict(self.kwargs))
        return call


def _call_with(call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], value: Any) -> Any:
    return call(value, *args, **kwargs)


def callable_name(call: Any) -> str:
    """Name a function, class or callable object as its author would."""
    while isinstance(call, functools.partial):
        call = call.func
    name = getattr(call, "__qualname__", None) or type(call).__qualname__
    return str(name).replace("<locals>.", "")


@dataclass(frozen=True, slots=True)
class MapBatches:
    """Batch in, batch or batches out."""

    function: Function
    batch_size: int | None
    batch_format: BatchFormat
    columns: tuple[str, ...] | None
    resources: Resources = Resources()
    verb = "map_batches"


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


Step = MapBatches | MapRows | FlatMap | Filter | Select | Drop | Rename | Limit


def function_of(step: Step) -> Function | None:
    """Return the user's code in this step, if it has any."""
    return getattr(step, "function", None)


def step_label(step: Step) -> str:
    """Name a step as the user wrote it: ``map_batches(clean)``."""
    function = function_of(step)
    if function is not None:
        return f"{step.verb}({function.name})"
    if isinstance(step, Limit):
        return f"limit({step.rows})"
    if isinstance(step, Filter):
        return f"filter({step.expression})"
    if isinstance(step, Rename):
        return f"rename_columns({dict(step.names)})"
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
        """Return the plan with one step more."""
        return replace(self, steps=(*self.steps, step))

    def into(self, sink: Sink, schema: pa.Schema | None = None) -> Plan:
        """Return the plan with its sink, and the output's schema if the user settled it."""
        return replace(self, sink=sink, output_schema=schema)

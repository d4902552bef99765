"""``predict``, ``with_column`` by a function, and ``prompt``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from headrace.core.model_ports import Rates, Shares
from headrace.errors import ArgumentError, ColumnExists, PlanError
from headrace.plan.functions import Function
from headrace.plan.steps.base import ALL_COLUMNS, UNDECLARED, NeededColumns, Resources, Step, StepFunction, V

if TYPE_CHECKING:
    import pyarrow as pa

    from headrace.core.arrow.batch_formats import BatchFormat
    from headrace.core.model_ports import Ahead


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a ``predict`` step: what it reads, and what it adds to each row.

    An array becomes the column ``output``, and so does a single named result; the names of several are put behind
    ``output`` and an underscore. ``own_names``: what has names keeps them. ``keyed``: it is one of a dict of models.
    ``inputs`` None: all columns that entered the step. ``max_in_flight``: batches at a
    time, if the user said how many. ``batch_size`` and ``batch_bytes`` as in ``MapBatches``.
    """

    function: Function
    output: str
    inputs: tuple[str, ...] | None
    keyed: bool
    batch_size: int | None
    batch_format: BatchFormat
    resources: Resources = UNDECLARED
    max_in_flight: int | None = None
    batch_bytes: int | None = None
    own_names: bool = False

    def shape(self) -> dict[str, Any]:
        """Return what must match for two runs to be the same."""
        inputs = list(self.inputs) if self.inputs is not None else None
        return {"inputs": inputs, "output": self.output, "format": self.batch_format}

    def calling(self, call: Any) -> Model:
        """Return the same with something else that is called."""
        return replace(self, function=msgspec.structs.replace(self.function, call=call))


@dataclass(frozen=True, slots=True)
class Predict(Step):
    """One result per row from each model, beside the columns that are carried. ``keep`` None: all of them."""

    models: tuple[Model, ...]
    keep: tuple[str, ...] | None
    replace: bool
    verb = "predict"
    one_to_one = True
    passes_values = True

    def functions(self) -> tuple[StepFunction, ...]:
        """Return the models."""
        return tuple(
            StepFunction(
                model.function,
                self.label_of(model),
                self._identity_of(model),
                model.max_in_flight,
                model.batch_size,
                model.batch_bytes,
                model.batch_format,
                predicts=True,
                inputs=model.inputs,
            )
            for model in self.models
        )

    def needs(self) -> tuple[Resources, ...]:
        """Return what each model needs."""
        return tuple(model.resources for model in self.models)

    def without_remote(self) -> Predict:
        """Return the step for this machine."""
        models = (
            replace(model, resources=msgspec.structs.replace(model.resources, remote=None))
            for model in self.models
        )
        return replace(self, models=tuple(models))

    def sharing(self, rates: Rates, shares: Shares | None) -> Predict:
        """Return the step with models that share rates and budgets."""
        models = tuple(
            model
            if (made := model.function.parts.sharing) is None
            or (call := made(rates, shares)) is model.function.call
            else model.calling(call)
            for model in self.models
        )
        return self if models == self.models else replace(self, models=models)

    def reads(self) -> tuple[str, ...]:
        """Return the inputs of the first model, and ``keep=``: what a later model reads, an earlier one may make."""
        return (*(self.models[0].inputs or ()), *(self.keep or ()))

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse a result, too, that would take the name of a column that is carried."""
        Step.check_columns(self, names)
        carried = [name for name in names if self.keep is None or name in self.keep]
        for model in self.models:
            if model.output in carried and not self.replace and not model.keyed:
                raise ColumnExists(
                    f"{self.label_of(model)} would add a column {model.output!r}, and there is one of that name "
                    "already. Give the result another name with output=, leave the other out with keep=, or say "
                    "replace=True."
                )

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return None: a model may name its results itself."""
        return None

    def carried(self, types: dict[str, V]) -> dict[str, V]:
        """Return what is kept; with ``replace``, without what a result may take the place of."""
        if self.replace and any(model.own_names for model in self.models):
            return {}
        taken = tuple(model.output for model in self.models) if self.replace else ()
        return {
            name: known
            for name, known in types.items()
            if (self.keep is None or name in self.keep)
            and not (taken and (name in taken or name.startswith(tuple(f"{output}_" for output in taken))))
        }

    def needed_before(self, needed: NeededColumns, schema: pa.Schema) -> NeededColumns:
        """Return the inputs of the models, and what is carried and needed."""
        if any(model.inputs is None for model in self.models):
            return ALL_COLUMNS
        carried = needed
        if self.keep is not None:
            carried = NeededColumns(frozenset(filter(needed.has, self.keep)))
        return carried.plus(name for model in self.models for name in model.inputs or ())

    def unread_after(self, unread: frozenset[str]) -> frozenset[str]:
        """Return what is carried."""
        return unread if self.keep is None else unread.intersection(self.keep)

    def joined(self, other: Step) -> Predict | None:
        """Join two steps whose models can run side by side.

        They can where ``other`` sees nothing that this one changed, but by naming it, and workers need the same.
        Prompts stay steps of their own: what they add is known, and their answers are kept.
        """
        if type(self) is not Predict or type(other) is not Predict:
            return None
        carries = self.keep is None and other.keep is None and not (self.replace or other.replace)
        named = all(model.inputs is not None for model in other.models)
        alike = len({*self.needs(), *other.needs()}) == 1
        return Predict((*self.models, *other.models), None, False) if carries and named and alike else None

    def separated(self) -> list[Step]:
        """Return one step for each group of neighbouring models that need the same workers."""
        if len(set(self.needs())) == 1:
            return [self]
        groups: list[list[Model]] = []
        for model in self.models:
            if groups and groups[-1][0].resources == model.resources:
                groups[-1].append(model)
            else:
                groups.append([model])
        unnamed = any(model.inputs is None for group in groups[1:] for model in group)
        if unnamed or self.keep is not None or self.replace:
            raise ArgumentError(
                f"{self.label()}: models that need different workers are run one after another, so say which "
                "columns each reads (inputs=), and leave keep= and replace= as they are: select_columns and "
                "drop_columns do the same afterwards."
            )
        return [Predict(tuple(group), None, False) for group in groups]

    def rejoined(self, part: Step) -> Predict:
        """Return the step with the models of both."""
        assert isinstance(part, Predict)
        return Predict((*self.models, *part.models), part.keep, part.replace)

    def check_cluster(self, workers: int, folder: str) -> None:
        """Refuse a cap that several machines would count each for themselves."""
        for model in self.models:
            asked = model.function.parts.asked
            if not (asked and asked.settings.budget) or (workers == 1 and (folder or asked.settings.cache)):
                continue
            way = "say concurrency=1, which may have as many requests under way"
            if workers == 1:
                way = "write to a folder that all machines see, or name one for the answers by cache="
            raise PlanError(
                f"{self.label_of(model)} has a budget, which the workers of one machine keep together. On a "
                f"cluster each machine would count for itself: {way}, or use engine='local'."
            )

    def check_output(self, folder: str) -> None:
        """Refuse a cap for all runs of an output that is in no folder, where they could be counted."""
        for model in self.models:
            asked = model.function.parts.asked
            if not folder and asked and asked.settings.budget and asked.settings.budget.caps["output"]:
                raise PlanError(
                    f"{self.label_of(model)} has {asked.settings.budget!r}, and what all runs of an output use is "
                    "counted in its folder. This output is in an object store: write to a folder, or give run= and "
                    "day= instead of output=."
                )

    def label(self) -> str:
        """Return ``predict(Fare)``, or ``predict(small: Fare, large: Fare2)``."""
        if len(self.models) == 1:
            return self.label_of(self.models[0])
        named = ", ".join(f"{model.output}: {model.function.name}" for model in self.models)
        return f"{self.verb}({named})"

    def label_of(self, model: Model) -> str:
        """Name one model: ``predict(Fare)``, or ``predict(small: Fare)`` where there are several."""
        name = model.function.name
        return f"{self.verb}({name})" if len(self.models) == 1 else f"{self.verb}({model.output}: {name})"

    def _identity_of(self, model: Model) -> str:
        """Name a model without the name of its file, which is no part of what it is."""
        return f"{self.verb}(output={model.output!r})" if model.function.predictor else self.label_of(model)

    def shape(self) -> dict[str, Any]:
        """Return inputs and outputs of the models, and which columns are carried."""
        shape: dict[str, Any] = {"verb": self.verb, "models": [model.shape() for model in self.models]}
        shape["keep"] = "all" if self.keep is None else list(self.keep)
        return shape | ({"replace": True} if self.replace else {})


def ahead_in(steps: Sequence[Step]) -> Iterator[tuple[int, Predict, Model, Ahead]]:
    """Yield the models that may do something before a run, each with its step and the number of that."""
    for number, step in enumerate(steps):
        for model in step.models if isinstance(step, Predict) else ():
            ahead = model.function.parts.ahead
            if ahead is not None:
                assert isinstance(step, Predict)
                yield number, step, model, ahead


class WithComputed(Predict):
    """The same for a function that the user does not call a model; its column may take another's place."""

    __slots__ = ()
    verb = "with_column"


class Prompt(Predict):
    """The same for a language model: what it adds is known, and its answers are kept until the run has ended."""

    __slots__ = ()
    verb = "prompt"
    keeps_answers = True

    def columns_after(self, names: list[str] | None) -> list[str] | None:
        """Return what is carried, and the columns of the answers."""
        if names is None:
            return None
        kept = [name for name in names if self.keep is None or name in self.keep]
        added = [name for model in self.models for name in self._columns(model)]
        return [*kept, *(name for name in added if name not in kept)]

    def check_columns(self, names: Sequence[str]) -> None:
        """Refuse answers that would take the name of a column that is carried."""
        Step.check_columns(self, names)
        carried = [name for name in names if self.keep is None or name in self.keep]
        for model in self.models:
            taken = [name for name in self._columns(model) if name in carried]
            if taken and not self.replace:
                raise ColumnExists(
                    f"{self.label_of(model)} would add a column {taken[0]!r}, and there is one of that name already. "
                    "Give the answers another name with output=, leave the other out with keep=, or say replace=True."
                )

    def batch_sizes(self) -> tuple[int, ...]:
        """Return none: rows are asked one by one, and shards need not end where batches do."""
        return ()

    @staticmethod
    def _columns(model: Model) -> tuple[str, ...]:
        return model.function.parts.columns or (model.output,)

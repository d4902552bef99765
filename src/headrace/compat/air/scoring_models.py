"""Scoring with the model of a checkpoint: which arguments it takes, where it works, and what comes out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.compat.air.scored_data import Prepared, ScoredData
from headrace.compat.air.scoring_functions import (
    OUTPUT,
    argument_names,
    checked_only,
    column_named,
    fits_one_process,
)
from headrace.compat.air.scoring_hosts import InProcessPredictor, UserPredictor, method_of
from headrace.core.direct_predictor import COLUMN, Direct
from headrace.errors import ArgumentError, ColumnExists
from headrace.session.models import given_predict

_AT_A_TIME = 131_072  # rows that a model in this process is given at a time, if they are no heavier than
_AT_A_TIME_BYTES = 16 << 20  # this
_SAMPLE = 1_024
_ALONE = ("TorchPredictor", "OnnxPredictor", "XGBoostPredictor", "LightGBMPredictor", "KerasPredictor")


class ModelScoring:
    """A predictor class, ours or the user's, with the checkpoint that its models are of, and its options."""

    def __init__(self, checkpoint: Any, kind: Any, options: dict[str, Any]) -> None:
        self.options = options
        self._checkpoint = checkpoint
        self._kind = kind
        self._made: dict[str, Any] = {}
        self._check()

    def __str__(self) -> str:
        return f"checkpoint={self._checkpoint!r}, predictor_cls={self._kind.__name__}"

    def preprocessor(self) -> Any:
        """Return the checkpoint's, if it has one."""
        get = getattr(self._checkpoint, "get_preprocessor", None)
        return get() if callable(get) else None

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        if not is_ours(self._kind):
            return argument_names(getattr(self._kind, method_of(self._kind)))
        if self._kind.__name__ == "TransformersPredictor":
            return None  # what is not its own is its pipeline's
        return *(argument_names(self._kind.__init__) or ()), "model", "use_gpu"

    def _check(self) -> None:
        if is_ours(self._kind):
            if not self._kind.__module__.startswith("headrace."):
                base = next(each for each in self._kind.__mro__ if each.__module__.startswith("headrace."))
                raise ArgumentError(
                    f"from_checkpoint: {self._kind.__name__} derives from {base.__name__}, which calls none of the "
                    "methods that AIR's did (call_model, …). Let the model return what is wanted, or write a class "
                    "of your own, from headrace.compat.ray.train.predictor.Predictor."
                )
            if not callable(getattr(self._checkpoint, "given_to", None)):
                raise ArgumentError(
                    f"from_checkpoint: {self._kind.__name__} takes a checkpoint such as TorchCheckpoint.from_model("
                    f"model), not {type(self._checkpoint).__name__}."
                )
            self._adapter({})
            return
        if not isinstance(self._kind, type) or not callable(getattr(self._kind, "from_checkpoint", None)):
            name = getattr(self._kind, "__name__", repr(self._kind))
            raise ArgumentError(
                f"from_checkpoint: {name} is not a predictor class. It takes TorchPredictor or one of its like, "
                "or a class with the class method from_checkpoint(checkpoint) and the method predict(batch)."
            )
        UserPredictor(self._kind, self._checkpoint, self.options, {}, COLUMN)

    def _adapter(self, options: Mapping[str, Any]) -> Any:
        given = dict(options)
        if self._kind.__name__ == "TorchPredictor" and "dtype" in given:
            # The one of `predict`; that of `from_checkpoint` is the weights'.
            given["input_dtype"] = given.pop("dtype")
        made: Direct = self._kind.from_checkpoint(self._checkpoint, **{**self.options, **given})
        made.preparing = None  # the data come prepared
        return made

    def score(
        self,
        given: ScoredData,
        features: tuple[str, ...] | None,
        keep: tuple[str, ...],
        size: int,
        needs: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        """Return the predictions, in the form of the data."""
        column = column_named(options.pop(OUTPUT, COLUMN))
        if column in keep:
            raise ColumnExists(
                f"The predictions are to be named {column!r}, and keep_columns has a column of that name. Name them "
                f"otherwise: predict_batch_kwargs={{{OUTPUT!r}: 'score'}}."
            )
        if given.eager and not given.sample(1)[0]:
            return given.empty_result(keep, column)
        here = given.eager and fits_one_process(needs)
        model: Any
        if is_ours(self._kind):
            key = repr(sorted(options.items()))
            model = self._made[key] = self._made.get(key) or self._adapter(options)
            here = here or (given.eager and self._kind.__name__ in _ALONE and not any(needs.values()))
            if here:
                model = InProcessPredictor(model, size)
                size *= max(1, _rows_per_call(given) // size)
        else:
            prepared = isinstance(given, Prepared)
            model = UserPredictor(
                self._kind, self._checkpoint, self.options, options, column, prepared=prepared
            )
        data = given.dataset(alone=here)
        step = given_predict(
            model,
            inputs=data._inputs(features),
            output=column,
            own_names=True,
            keep=given.columns_to_carry(keep),
            replace=False,
            batch_size=size,
            **(checked_only(needs) if here else needs),
        )
        made = data.with_step(step)
        return given.result(made, keep, column)


def is_ours(kind: Any) -> bool:
    """Say whether a predictor class is one of Headrace, or derives from one."""
    return isinstance(kind, type) and issubclass(kind, Direct)


def _rows_per_call(given: ScoredData) -> int:
    """Return how many rows a model in this process gets at a time, by the size of the first of them."""
    rows, weight = given.sample(_SAMPLE)
    return min(_AT_A_TIME, int(_AT_A_TIME_BYTES // max(weight / max(rows, 1), 1)))

"""Scoring with a function of DataFrames."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.compat.air.scored_data import ScoredData
from headrace.compat.air.scoring_arguments import (
    BATCH_SIZE,
    OUTPUT,
    argument_names,
    column_named,
    takes_argument,
)
from headrace.compat.air.scoring_hosts import NamedResults
from headrace.compat.air.scoring_needs import checked_only, fits_one_process
from headrace.core.direct_predictor import COLUMN
from headrace.errors import ArgumentError
from headrace.session.models import given_predict


class FunctionScoring:
    """A function, the arguments that it is given, and how many bytes its batches have, if that was said."""

    def __init__(
        self, function: Callable[..., Any], options: dict[str, Any], batch_bytes: int | None
    ) -> None:
        self.options = options
        self._function = function
        self._bytes = batch_bytes

    def __str__(self) -> str:
        return f"PandasUDF={getattr(self._function, '__name__', self._function)!s}"

    def preprocessor(self) -> None:
        """Return None: there is not a checkpoint that could have one."""

    def argument_names(self) -> tuple[str, ...] | None:
        """Return the names of arguments that ``predict`` may be given for it; None: any."""
        return argument_names(self._function)

    def score(
        self,
        given: ScoredData,
        features: tuple[str, ...] | None,
        keep: tuple[str, ...],
        size: int,
        needs: dict[str, Any],
        options: dict[str, Any],
    ) -> Any:
        """Return what the function makes of the data, in the form of the data."""
        options = {**self.options, **options}
        named = options.pop(OUTPUT, None)
        column = column_named(COLUMN if named is None else named)
        if takes_argument(self._function, OUTPUT, given=named is not None):
            options[OUTPUT] = column
        if self._bytes is not None and size != BATCH_SIZE:
            raise ArgumentError(
                f"batch_size={size}: from_pandas_udf was given batch_size_bytes, which already sets it."
            )
        here = given.eager and fits_one_process(needs)
        data = given.dataset(alone=here)
        more: dict[str, Any] = {"batch_format": "pandas", "fn_kwargs": options}
        more |= {"batch_size": size} if self._bytes is None else {"batch_size_bytes": self._bytes}
        more |= checked_only(needs) if here else needs
        if keep:
            carried = given.columns_to_carry(keep)
            step = given_predict(
                self._function,
                inputs=data._inputs(features),
                output=column,
                own_names=True,
                keep=carried,
                replace=False,
                **more,
            )
            made = data.with_step(step)
        else:
            function = (
                self._function if isinstance(self._function, type) else NamedResults(self._function, column)
            )
            made = data.map_batches(function, columns=data._inputs(features), **more)
        return given.result(made, keep, column)

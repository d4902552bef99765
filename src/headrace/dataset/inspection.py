"""Verbs that look at a dataset: a few rows, what is known about it, numbers about a column, a notebook's view."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from headrace.core.arguments import known_arguments
from headrace.core.source_ports import Source
from headrace.core.terminal import say
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError, HeadraceError
from headrace.plan import ray_arguments
from headrace.plan.compile import known_columns
from headrace.plan.logical import Plan
from headrace.plan.parameters import given_batch_format, given_names, given_rows
from headrace.plan.steps.functions import Accumulate
from headrace.plan.steps.selection import SelectColumns

if TYPE_CHECKING:
    from typing import Literal

    import pyarrow as pa

    from headrace.session.explain import Explanation


class InspectionVerbs(DatasetBase):
    """Verbs that return some rows, or what is known of them."""

    __slots__ = ()

    @known_arguments
    def take(self, limit: int = 20) -> list[dict[str, Any]]:
        """Return the first ``limit`` rows as dicts, made in this process; reads no further than needed.

        Strings are ``str``, tensors read-only arrays of shape (k…), times Python's ``datetime`` where it can hold
        them. A notebook shows the list as a table. Without a GPU that a step asks for, it runs on the CPU; that is
        warned of, and so is a function that could not travel to a worker. Raises ``ArgumentError`` unless ``limit``
        is a whole number, 0 or more; and what a run raises.

        >>> import headrace as hr
        >>> hr.range(1000).take(2)
        [{'id': 0}, {'id': 1}]
        """
        from headrace.core.tables import Rows

        return Rows(*self._first(given_rows("take", "limit", limit)))

    def _first(self, limit: int) -> tuple[list[dict[str, Any]], list[pa.Schema]]:
        """Return the first rows, and the schemas that they came with."""
        from headrace.core.arrow.forms import unmarked
        from headrace.core.arrow.views import output_rows
        from headrace.core.arrow.widening import filled_rows, with_equal_dicts

        batches = with_equal_dicts([*self._head(limit)])
        rows = filled_rows([row for batch in batches for row in output_rows(batch, live=self._shares_memory)])
        return rows, [unmarked(batch.schema) for batch in batches]

    @known_arguments
    def take_batch(
        self,
        batch_size: int = 20,
        *,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] = "numpy",
    ) -> Any:
        """Return the first ``batch_size`` rows as one batch in ``batch_format``, made in this process.

        A dict of arrays of shape (n,) or (n, k…), a DataFrame or a Table, as in ``map_batches``. Raises
        ``ArgumentError`` for another size or format, and if there are no rows; and what a run raises.

        >>> import headrace as hr
        >>> hr.range(1000).take_batch(3)
        {'id': array([0, 1, 2])}
        """
        from headrace.core.arrow.batch import concat, empty_batch
        from headrace.core.arrow.views import output_view
        from headrace.core.arrow.widening import widened

        format_ = given_batch_format(batch_format)
        rows = given_rows("take_batch", "batch_size", batch_size)
        batches = list(self._head(rows))
        if rows and not any(batch.num_rows for batch in batches):
            raise ArgumentError(
                "take_batch: the dataset is empty. schema() has its columns, and to_arrow() a table without rows."
            )
        batch = concat(widened(batches)) if batches else empty_batch(self._schema())
        return output_view(batch, format_, live=self._shares_memory)

    @known_arguments
    def take_all(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return all rows as dicts, as ``take`` makes them.

        On a machine without a GPU, steps that ask for one run in this process, with a warning. Raises
        ``ArgumentError`` if there are more than ``limit``, as soon as that is known; and what a run raises.

        >>> import headrace as hr
        >>> hr.from_items(["a", "b"]).take_all()
        [{'item': 'a'}, {'item': 'b'}]
        """
        from headrace.core.arrow.views import output_rows
        from headrace.core.arrow.widening import filled_rows, with_equal_dicts

        batches = with_equal_dicts([*self._all_batches("take_all", limit, look=True)])
        return filled_rows([row for batch in batches for row in output_rows(batch, live=self._shares_memory)])

    @known_arguments
    def show(self, limit: int = 20) -> None:
        """Print the first ``limit`` rows as a table; a notebook shows it with images.

        Long values are cut, and columns in the middle are left out where the terminal has no room; a single row then
        goes on downwards. ``take`` has all of the values. Raises what ``take`` does.

        >>> import headrace as hr
        >>> hr.range(1000).show(limit=2)
           id
        int64
        -----
            0
            1
        """
        from headrace.core.tables import rows_table, show

        show(rows_table(*self._first(given_rows("show", "limit", limit))))

    @known_arguments(also=ray_arguments.SCHEMA)
    def schema(self) -> pa.Schema:
        """Return the output's Arrow schema; runs the first rows through the functions if only that tells.

        Arrays of shape (n, k) are fixed-size lists. Raises ``UnknownColumn`` for a plan that asks for one.

        >>> import headrace as hr
        >>> hr.range(3).schema()
        id: int64
        """
        return self._schema()

    @known_arguments(also=ray_arguments.SCHEMA)
    def columns(self) -> list[str]:
        """Return the names of the output's columns. Raises what ``schema`` does.

        >>> import headrace as hr
        >>> hr.range(3).rename_columns({"id": "x"}).columns()
        ['x']
        """
        return list(self._schema().names)

    @known_arguments
    def input_files(self) -> list[str]:
        """Return the absolute paths of the files that the source reads, in order; [] for data in memory.

        Raises ``NothingMatched`` and ``UnreadableFile``, as reading them would.

        >>> import headrace as hr
        >>> hr.range(3).input_files()
        []
        """
        self._plan.source.splits()
        return [path for path, _, _ in self._plan.source.files()]

    @known_arguments
    def count(self) -> int:
        """Count the output's rows; reads only metadata where that suffices. Raises what a run raises.

        >>> import headrace as hr
        >>> hr.range(1000).count()
        1000
        """
        known = self._known_rows()
        if known is not None:
            return known
        from headrace.session import read as execution

        return execution.count(self._plan, self._options, self._note)

    @known_arguments
    def size_bytes(self) -> int:
        """Return how many bytes the output's rows have in memory, as Arrow lays them out; runs the plan.

        Raises what a run raises.

        >>> import headrace as hr
        >>> hr.range(5).size_bytes()
        40
        """
        return sum(batch.nbytes for batch in self._batches())

    @known_arguments
    def explain(self) -> Explanation:
        """Print how the plan would run: stages, workers, columns read, shards. Reads only metadata.

        Returns the same text. At an interactive prompt it is not printed besides, as the prompt shows it. Without the
        GPUs that a plan asks for, it shows the stages that there would be, and that a run is refused. Raises
        ``PlanError`` for a plan that cannot run otherwise, with the numbers.

        >>> import headrace as hr
        >>> text = hr.range(3).explain()  # doctest: +ELLIPSIS
        source...
        """
        from headrace.session.explain import Explanation, explain

        text = Explanation(explain(self._plan, self._options))
        if not hasattr(sys, "ps1"):
            say(text, sys.stdout)
        return text

    @known_arguments
    def stats(self) -> str:
        """Say how the last run of this very dataset was: rows in and out of each step, seconds, the workers' time.

        Runs are ``write_*``, ``take_all``, ``iter_*``, ``to_*``, ``count`` where metadata does not tell, and the
        like; ``take`` and ``show`` do not count. A verb returns a new dataset, which has not run. Raises nothing.

        >>> import headrace as hr
        >>> data = hr.range(3).filter(expr="id > 0")
        >>> data.stats()
        This dataset has not run yet: write it, iterate over it, or take_all() first.
        >>> _ = data.take_all()
        >>> print(data.stats())  # doctest: +ELLIPSIS
        3 rows in, 2 out, 1 filtered in ...
        """
        from headrace.session.explain import Explanation

        return Explanation(
            self._last_report
            or "This dataset has not run yet: write it, iterate over it, or take_all() first."
        )

    # ------------------------------------------------------------ numbers

    @known_arguments
    def sum(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Add up a column.

        Parameters
        ----------
        on
            A column's name, or a list of them; None: all columns. Of one column, one number comes back; of
            several, a dict ``{"sum(x)": number, …}``, as in Ray Data. Integers and decimals add up exactly.
        ignore_nulls
            False: the result is None if there is a null. It is None, too, if there is no value at all.

        Raises
        ------
        ArgumentError
            A column holds nothing of which there is such a number. ``UnknownColumn``: there is no such column.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(5).sum("id")
        10
        """
        return self._number("sum", on, ignore_nulls)

    @known_arguments
    def min(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return a column's smallest value; ``on``, ``ignore_nulls`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.from_items([{"x": "b"}, {"x": "a"}]).min("x")
        'a'
        """
        return self._number("min", on, ignore_nulls)

    @known_arguments
    def max(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return a column's biggest value; ``on``, ``ignore_nulls`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(5).max()
        4
        """
        return self._number("max", on, ignore_nulls)

    @known_arguments
    def mean(self, on: str | Sequence[str] | None = None, ignore_nulls: bool = True) -> Any:
        """Return a column's mean; ``on``, ``ignore_nulls`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(4).mean("id")
        1.5
        """
        return self._number("mean", on, ignore_nulls)

    @known_arguments
    def std(self, on: str | Sequence[str] | None = None, ddof: int = 1, ignore_nulls: bool = True) -> Any:
        """Return a column's standard deviation, in float64, by Chan's way of merging (1979), which is stable.

        ``ddof`` is taken from the number of values to divide by; None comes back if nothing is left. ``on``,
        ``ignore_nulls`` and what is raised as in ``sum``.

        >>> import headrace as hr
        >>> hr.range(3).std("id")
        1.0
        """
        return self._number("std", on, ignore_nulls, ddof=given_rows("std", "ddof", ddof))

    @known_arguments
    def unique(self, column: str, ignore_nulls: bool = False) -> list[Any]:
        """Return the different values of ``column``, in the order in which they first appear; they fit into memory.

        ``ignore_nulls`` leaves None out. Raises what ``sum`` does.

        >>> import headrace as hr
        >>> hr.from_items(["b", "a", "b"]).unique("item")
        ['b', 'a']
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        (name,) = given_names("unique", column)
        seen: dict[Any, Any] = {}
        plan = self._plan.then(SelectColumns((name,), asked_by="unique"))
        for batch in self._batches(plan, shows_progress=True):
            values = batch.column(0)
            try:
                for value in pc.unique(values).to_pylist():
                    seen.setdefault("nan" if value != value else (type(value), value), value)
            except (pa.ArrowException, TypeError) as error:
                raise ArgumentError(
                    f"unique({name!r}): values of type {values.type} cannot be compared."
                ) from error
        return [value for value in seen.values() if value is not None or not ignore_nulls]

    def _number(self, kind: str, on: str | Sequence[str] | None, ignore_nulls: bool, **settings: int) -> Any:
        """Run the plan for a number about each column; the workers count, and only their sums are sent."""
        from headrace.accumulators.columns import NUMBERS

        names = tuple(self._schema().names) if on is None else given_names(kind, on)
        metrics = {
            f"{kind}({name})": NUMBERS[kind](name, ignore_nulls=ignore_nulls, **settings) for name in names
        }
        plan = self._plan.without_metrics().then(Accumulate(tuple(metrics.items()), asked_by=kind))
        results = dict(self._evaluated(plan))
        return results[f"{kind}({names[0]})"] if len(names) == 1 else results


# ---------------------------------------------------------------- as a notebook shows it

# No function of the user's is called, and no row is read.

_COLUMNS = 30  # that have a row each
_PATHS = 3


def dataset_html(plan: Plan) -> str:
    """Return what is read, by which steps it goes, and which columns with which types come out."""
    from headrace.core.tables import Table, card, columns_table

    source = plan.source
    kind = type(source).__name__.removesuffix("Source")
    facts = [("reads", _read(source, kind)), *_numbered([step.label() for step in plan.steps])]
    if not type(source).__module__.startswith("headrace."):  # its methods are the user's code
        return card("Dataset", [*facts, ("columns", "known when it runs")])
    try:
        columns, adds = known_columns(plan.steps, source.known_schema())
    except HeadraceError as error:
        return card("Dataset", [*facts, ("columns", f"not known: {error}")])
    rows = columns_table(dict(list(columns.items())[:_COLUMNS])).rows
    if adds is not None and not columns:
        return card("Dataset", [*facts, ("columns", f"what {adds} makes; schema() runs a few rows to see")])
    more = [f"and {len(columns) - _COLUMNS:,} more columns"] if len(columns) > _COLUMNS else []
    more += [f"and what {adds} makes"] if adds is not None else []
    return card("Dataset", facts, Table(("column", "type"), rows, "; ".join(more)))


def _read(source: Source, kind: str) -> str:
    paths = [str(path) for path in source.paths]
    if not paths:
        return kind
    shown = ", ".join(paths[:_PATHS])
    return f"{kind}: {shown}" + (f" and {len(paths) - _PATHS:,} more" if len(paths) > _PATHS else "")


def _numbered(steps: list[str]) -> list[tuple[str, str]]:
    return [("steps" if i == 1 else "", f"{i}. {label}") for i, label in enumerate(steps, 1)]

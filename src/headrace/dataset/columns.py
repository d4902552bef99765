"""Verbs that choose columns and rows, and that put datasets together: nothing runs yet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from headrace.core.arguments import known_arguments
from headrace.core.door import annex
from headrace.core.terminal import warn
from headrace.dataset.base import DatasetBase
from headrace.errors import ArgumentError, NotOffered, UnknownArgument
from headrace.plan import ray_arguments
from headrace.plan.logical import Plan
from headrace.plan.parameters import given_names, given_number, given_rows
from headrace.plan.steps.selection import DropColumns, RenameColumns, SelectColumns

if TYPE_CHECKING:
    from headrace.plan.steps.selection import RandomSample


class ColumnVerbs(DatasetBase):
    """Verbs without a function of the user's."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.COLUMNS)
    def select_columns(self, cols: str | Sequence[str]) -> Self:
        """Keep the columns ``cols``, in this order; others are not even read where the source allows.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1, "b": 2}]).select_columns(["b"]).take_all()
        [{'b': 2}]
        """
        return self.with_step(SelectColumns(given_names("select_columns", cols)))

    @known_arguments(also=ray_arguments.COLUMNS)
    def drop_columns(self, cols: str | Sequence[str]) -> Self:
        """Leave the columns ``cols`` out; an empty list leaves none out, and a name may stand there twice.

        Raises ``ArgumentError`` if ``cols`` is not a name or a list of names; ``UnknownColumn`` comes when the plan
        is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1, "b": 2}]).drop_columns(["b"]).take_all()
        [{'a': 1}]
        """
        once = list(dict.fromkeys(cols)) if isinstance(cols, (list, tuple)) else cols
        names = given_names("drop_columns", once, allow_none=True)
        return self.with_step(DropColumns(names)) if names else self

    @known_arguments(also=ray_arguments.COLUMNS)
    def rename_columns(self, names: Mapping[str, str] | Sequence[str]) -> Self:
        """Give columns other names: ``names`` is ``{old: new}``, or a list of new names for all columns in order.

        Raises ``ArgumentError`` for what is no name, or another number of names than columns; ``UnknownColumn`` comes
        when the plan is checked.

        >>> import headrace as hr
        >>> hr.from_items([{"a": 1}]).rename_columns({"a": "b"}).take_all()
        [{'b': 1}]
        """
        if not isinstance(names, Mapping):
            if isinstance(names, str):
                raise UnknownArgument(
                    f"rename_columns({names!r}): say {{'old': {names!r}}}, or give a list of names."
                )
            new = given_names("rename_columns", names)
            old = self._schema().names
            if len(old) != len(new):
                raise ArgumentError(
                    f"rename_columns got {len(new)} names for {len(old)} columns ({', '.join(old)})."
                )
            names = dict(zip(old, new, strict=True))
        if not all(isinstance(name, str) for name in (*names, *names.values())) or "" in names.values():
            raise ArgumentError(f"rename_columns({dict(names)!r}): column names are non-empty strings.")
        if len(set(names.values())) < len(names):
            raise ArgumentError(f"rename_columns({dict(names)!r}) would give two columns one name.")
        return self.with_step(RenameColumns(tuple(names.items())))

    @known_arguments
    def random_sample(self, fraction: float, *, seed: int | None = None) -> Self:
        """Keep about this part of the rows, chosen by a hash of file and row: the same rows come again each time.

        Whatever workers and batch sizes there are, after a kill, and when other files come in: a row of a Parquet or
        image file is chosen or not by the file's path and its number there. (In text files that are read in several
        parts, by its number in its part, which depends on how much there is in all.) Rows stay in their order.

        Parameters
        ----------
        fraction
            From 0 to 1. Each row is kept with this probability, so that the number of rows varies a little.
        seed
            A whole number: other seeds choose other rows. None is 0, and not, as in Ray Data, another one each time.

        Raises
        ------
        ArgumentError
            There is no such part or seed, or ``flat_map`` stands before: its rows have no place in the input.
            ``StepError`` comes if ``map_batches`` before it gave other rows than it got.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(1000).random_sample(0.1, seed=7).count()
        97
        """
        return self.with_step(_sample(self._plan, "random_sample", fraction, seed))

    @known_arguments(also=ray_arguments.SPLIT_IN_TWO)
    def train_test_split(
        self, test_size: float, *, seed: int | None = None, stratify: str | None = None
    ) -> tuple[Self, Self]:
        """Divide the rows in two by a hash of file and row: those to train with, and those to test with.

        A row is always on the same side, as ``random_sample`` says, and each row is on one. Both are lazy.

        Parameters
        ----------
        test_size
            Between 0 and 1: about which part of the rows is for testing. A whole number: how many rows.
        seed
            As in ``random_sample``.
        stratify
            A column, of each value of which that part is for testing, as exactly as rows can be divided.

        With a number of rows, and with ``stratify``, all rows are counted first, by a query as ``sort`` makes it, and
        the hash is that of a row's number in this dataset.

        Returns
        -------
        tuple
            Two datasets: ``(train, test)``.

        Raises
        ------
        ArgumentError
            As in ``random_sample``. ``UnknownColumn``: there is no column ``stratify``.

        Examples
        --------
        >>> import headrace as hr
        >>> train, test = hr.range(1000).train_test_split(0.25, seed=1)
        >>> train.count() + test.count(), 200 < test.count() < 300
        (1000, True)
        """
        if stratify is not None or (isinstance(test_size, int) and test_size > 1):
            train, test = _queries("train_test_split").split_exactly(self, test_size, seed, stratify)
            return train, test
        made = _sample(self._plan, "train_test_split", test_size, seed)
        test = replace(made, call=f"{made.call} → test")
        train = replace(made, low=made.high, high=1.0, call=f"{made.call} → train")
        return self.with_step(train), self.with_step(test)

    @known_arguments(also=ray_arguments.REPARTITION)
    def repartition(
        self,
        num_blocks: int | None = None,
        target_num_rows_per_block: int | None = None,
        *,
        keys: str | Sequence[str] | None = None,
        shuffle: bool = False,
    ) -> Self:
        """Put rows that have the same ``keys`` one behind the other, or with ``shuffle`` all in a random order.

        There are no blocks here, so ``num_blocks`` and ``target_num_rows_per_block`` have no effect, and give a
        warning where nothing else is said. Batches depend on ``batch_size``, the number of workers on
        ``concurrency``, files on ``min_rows_per_file`` and ``max_rows_per_file`` of the verb that writes.
        Raises ``ArgumentError`` for no number, and what ``sort`` does.

        >>> import headrace as hr
        >>> hr.range(3).repartition(2).count()  # doctest: +SKIP
        3
        """
        if keys is not None or shuffle:
            gathered: Self = _queries("repartition").gathered(self, keys)
            return gathered
        blocks, rows = ("num_blocks", num_blocks), ("target_num_rows_per_block", target_num_rows_per_block)
        name, value = blocks if num_blocks is not None else rows
        if given_rows("repartition", name, value) < 1:
            raise ArgumentError(f"{name}={value!r}: it takes a number above zero.")
        given = value if num_blocks is not None else f"{name}={value}"
        warn(
            f"repartition({given}) has no effect: there are no blocks here. batch_size= says how many rows a "
            "function gets, concurrency= how many workers there are, and min_rows_per_file= of write_* about how "
            "many rows a file has. Leave the call out."
        )
        return self

    @known_arguments
    def limit(self, limit: int) -> Self:
        """Let the first ``limit`` rows pass, in input order over the whole dataset.

        Raises ``ArgumentError`` unless ``limit`` is a whole number of rows, 0 or more.

        >>> import headrace as hr
        >>> hr.range(1000).limit(2).take_all()
        [{'id': 0}, {'id': 1}]
        """
        from headrace.plan.steps.selection import Limit

        return self.with_step(Limit(given_rows("limit", "limit", limit)))


def _queries(verb: str) -> Any:
    """Return the annex that answers queries."""
    found = annex("queries.texts")
    if found is None:
        raise NotOffered(f"{verb}: this needs queries, which this installation lacks.")
    return found


def _sample(plan: Plan, verb: str, part: Any, seed: Any) -> RandomSample:
    """Return the step that keeps the first ``part`` of the shares; a second one in a plan draws anew."""
    from headrace.plan.steps.base import innermost
    from headrace.plan.steps.selection import RandomSample

    within = given_number(f"{verb}: {'fraction' if verb == 'random_sample' else 'test_size'}", part)
    if within is None or within > 1 or (verb == "train_test_split" and not 0 < within < 1):
        kind = (
            "a part of the rows, from 0 to 1"
            if verb == "random_sample"
            else "a part of the rows, such as 0.2"
        )
        raise ArgumentError(
            f"{verb}({part!r}): it takes {kind}. For a number of rows, no matter which, use limit({part!r})."
        )
    if seed is not None and (not isinstance(seed, int) or isinstance(seed, bool)):
        raise ArgumentError(f"{verb}: seed={seed!r} is not a whole number.")
    for step in plan.steps:
        if step.makes_rows and step.changes_row_count:
            raise ArgumentError(
                f"{verb} chooses rows by their position in the input, and rows that {step.label()} makes have no "
                f"position. Put {verb} before it."
            )
    number = sum(isinstance(innermost(step), RandomSample) for step in plan.steps)
    call = f"{verb}({part:g}, seed={seed or 0})"
    return RandomSample(0.0, float(within), seed or 0, number, call)


# ---------------------------------------------------------------- several datasets


class CombiningVerbs(DatasetBase):
    """Verbs that make one dataset of several."""

    __slots__ = ()

    @known_arguments
    def union(self, *other: Self) -> Self:
        """Put the rows of other datasets behind those of this one, in this order.

        Each dataset's steps, those before the union, get its own rows only; steps behind it get all. A column that
        one dataset lacks is null in its rows; types are widened where no value changes. Where a function makes the
        columns of a dataset, nobody knows them before it runs: then steps behind the union get each row with the
        columns of its own dataset, and the output has those of all.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            One of them is no dataset, or has ``limit`` or ``accumulate``, which are about all rows: they come behind
            the union. ``SchemaMismatch``: two types of a column do not unify; raised when it is known.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).union(hr.from_items([{"id": 7, "name": "x"}])).take_all()
        [{'id': 0, 'name': None}, {'id': 1, 'name': None}, {'id': 7, 'name': 'x'}]
        >>> old, new = hr.range(3).filter(lambda row: row["id"] > 0), hr.range(2).map(lambda row: {"id": -1})
        >>> old.union(new).map(lambda row: {"id": row["id"] * 10}).take_all()
        [{'id': 10}, {'id': 20}, {'id': -10}, {'id': -10}]
        """
        from headrace.session.combined import united

        return type(self)(united([each._plan for each in self._datasets_with("union", other)]), self._options)

    @known_arguments
    def zip(self, *other: Self) -> Self:
        """Put the columns of other datasets beside those of this one: row i beside row i.

        A column whose name is there already gets ``_1`` behind its name, or ``_2``, …. Steps before the zip see the
        columns of their own dataset; steps behind it see all. A dataset with steps is made first, when a run begins:
        its rows are written beside the output, and are removed when the run has ended. Steps that only choose or
        rename columns need none of this. A row that fails in a step before the zip ends the run, as the rows behind
        it would stand beside others.

        Parameters
        ----------
        other
            The other datasets; this one's ``with_options`` hold.

        Raises
        ------
        ArgumentError
            They differ in their numbers of rows: raised when these are known. One has ``accumulate``, which comes
            behind the zip; or is no dataset. ``TooManyErrors``, when a run begins: a row of one has failed.

        Examples
        --------
        >>> import headrace as hr
        >>> hr.range(2).zip(hr.range(2), hr.from_items([{"name": "a"}, {"name": "b"}])).take_all()
        [{'id': 0, 'id_1': 0, 'name': 'a'}, {'id': 1, 'id_1': 1, 'name': 'b'}]
        >>> halves = hr.range(2).map_batches(lambda batch: {"half": batch["id"] / 2})
        >>> hr.range(2).zip(halves).map(lambda row: {"sum": row["id"] + row["half"]}).take_all()
        [{'sum': 0.0}, {'sum': 1.5}]
        """
        from headrace.session.made import zipped

        return type(self)(zipped([each._plan for each in self._datasets_with("zip", other)]), self._options)

    def _datasets_with(self, verb: str, others: Sequence[Any]) -> list[DatasetBase]:
        """Return this dataset and others."""
        if not others:
            raise ArgumentError(f"{verb}() needs another dataset: a.{verb}(b).")
        for each in others:
            if not isinstance(each, DatasetBase):
                raise ArgumentError(
                    f"{verb}: {type(each).__name__} is not a dataset; read_* and from_* make datasets."
                )
        for each in (self, *others):
            each._check_unrequired(verb)
        return [self, *others]

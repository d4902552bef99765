"""Verbs that run the plan and bring its rows here, in batches or all at once."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from headrace.core.arguments import known_arguments
from headrace.dataset.base import DatasetBase
from headrace.dataset.iteration import LocalShuffle, RepeatableIterable
from headrace.errors import ArgumentError
from headrace.plan import ray_arguments
from headrace.plan.logical import Plan
from headrace.plan.parameters import given_batch_format, given_batch_size

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

    from headrace.core.arrow.batch_formats import BatchFormat


class ConsumptionVerbs(DatasetBase):
    """Verbs that return all rows."""

    __slots__ = ()

    @known_arguments(also=ray_arguments.ITERATE)
    def iter_batches(
        self,
        *,
        batch_size: int | None = 256,
        batch_format: Literal["numpy", "pandas", "pyarrow", "default"] | None = "numpy",
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> RepeatableIterable[Any]:
        """Return the output in order, in batches, to iterate over as often as one likes: each ``for`` runs the plan.

        Workers run ahead of the reader by a few blocks, no further, however slow it is; when it stops early,
        they end. ``next`` works on it, too: a ``for`` after it goes on with what is left.

        Parameters
        ----------
        batch_size
            Rows per batch, the last one perhaps fewer; None: as they come.
        batch_format
            ``"numpy"``: a dict of read-only arrays of shape (n,) or (n, k…); ``"pandas"``: a DataFrame;
            ``"pyarrow"`` or None: a Table.
        drop_last
            Whether to leave out a last batch of fewer rows.
        local_shuffle_buffer_size
            Rows are drawn by chance from a buffer of at least so many rows, here in this process; for training.
        local_shuffle_seed
            A whole number: the same one gives the same order each time.

        Raises
        ------
        ArgumentError
            There is no such size or format, or rows are shuffled without a ``batch_size``. What a run raises comes
            where its batch would.

        Examples
        --------
        >>> import headrace as hr
        >>> [batch["id"].tolist() for batch in hr.range(5).iter_batches(batch_size=2)]
        [[0, 1], [2, 3], [4]]
        """
        size, format_ = given_batch_size(batch_size), given_batch_format(batch_format)
        shuffle = LocalShuffle.given(local_shuffle_buffer_size, local_shuffle_seed, size)
        return RepeatableIterable(
            lambda: self._iterate(size, format_, drop_last, shuffle),
            lambda: self._known_batches(size, drop_last),
        )

    def _known_batches(self, size: int | None, drop_last: bool) -> int | None:
        """Return how many batches there will be, if that is known without running the plan."""
        rows = None if size is None else self._known_rows()
        if rows is None or size is None:
            return None
        return rows // size if drop_last else -(-rows // size)

    def _iterate(
        self,
        size: int | None,
        batch_format: BatchFormat | Literal["tensors"],
        drop_last: bool,
        shuffle: LocalShuffle | None = None,
    ) -> Generator[Any, None, None]:
        from headrace.core.arrow.views import output_tensors, output_view
        from headrace.worker.rows import Rows, rebatch

        live = self._shares_memory
        read = self._batches(marks=True)
        batches: Iterator[pa.RecordBatch] = read
        if size is not None:
            parts = rebatch((Rows(batch, ()) for batch in read), size)
            batches = (part.batch for part in parts) if shuffle is None else shuffle.over(read, size)
        for batch in batches:
            if not (drop_last and size is not None and batch.num_rows < size):
                yield (
                    output_tensors(batch, live=live)
                    if batch_format == "tensors"
                    else output_view(batch, batch_format, live=live)
                )

    @known_arguments
    def iter_rows(self) -> RepeatableIterable[dict[str, Any]]:
        """Return the output's rows in order, as dicts, as ``take`` makes them; each ``for`` over them runs the plan.

        Raises what a run raises.

        >>> import headrace as hr
        >>> next(hr.range(1000).iter_rows())
        {'id': 0}
        """
        return RepeatableIterable(self._rows, self._known_rows)

    def _rows(self) -> Generator[dict[str, Any], None, None]:
        from headrace.core.arrow.views import output_rows

        for batch in self._batches():
            yield from output_rows(batch, live=self._shares_memory)

    @known_arguments(also=ray_arguments.ITERATE)
    def iter_torch_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> RepeatableIterable[Any]:
        """Return the output in order, in batches of PyTorch tensors of shape (n,) or (n, k…), free to be written to.

        Each ``for`` over it runs the plan, as with ``iter_batches``. Lists of numbers are tensors, too, where they
        are of one length in a batch. A column of ragged tensors is a list with one tensor per row.

        Parameters
        ----------
        batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in ``iter_batches``.
        dtypes
            A ``torch.dtype`` for all columns, or a dict of them by column. Default: that of the column.
        device
            Where tensors go: ``"cuda"``, ``0``, a ``torch.device``. ``"auto"``: the CPU.
        collate_fn
            A function that makes what is yielded of a batch, a dict of read-only numpy arrays; ``dtypes`` has no
            place beside it. What it returns is moved to ``device``, if one is given.
        pin_memory
            Whether tensors lie in page-locked memory, from which a copy to a GPU need not be waited for.

        Raises
        ------
        ArgumentError
            A column holds text, nulls or lists of different lengths, without ``collate_fn``; or there is no such
            device or dtype. ``MissingLibrary``: PyTorch is not installed.

        Examples
        --------
        >>> import pytest, headrace as hr
        >>> torch = pytest.importorskip("torch")
        >>> next(hr.range(3).iter_torch_batches(dtypes=torch.float32))
        {'id': tensor([0., 1., 2.])}
        """
        from headrace.interop import Tensors

        size, tensors = given_batch_size(batch_size), Tensors(dtypes, device, collate_fn, pin_memory)
        tensors.check()
        shuffle = LocalShuffle.given(local_shuffle_buffer_size, local_shuffle_seed, size)
        return RepeatableIterable(
            lambda: tensors.over(self._iterate(size, tensors.batch_format, drop_last, shuffle)),
            lambda: self._known_batches(size, drop_last),
        )

    @known_arguments(also=ray_arguments.ITERATE)
    def to_torch(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: Any = None,
        device: Any = "auto",
        collate_fn: Callable[[dict[str, Any]], Any] | None = None,
        drop_last: bool = False,
        pin_memory: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Any:
        """Return a ``torch.utils.data.IterableDataset`` of batches; its elements are those of ``iter_torch_batches``.

        It has a length where that is known without running the plan. Batches are made here, so a ``DataLoader`` gets
        it with ``batch_size=None``, and without workers of its own: the dataset's own run ahead of the reader.

        Parameters
        ----------
        batch_size, dtypes, device, collate_fn, drop_last, pin_memory, local_shuffle_buffer_size, local_shuffle_seed
            As in ``iter_torch_batches``.

        Raises
        ------
        ArgumentError
            As in ``iter_torch_batches``. ``MissingLibrary``: PyTorch is not installed.

        Examples
        --------
        >>> import pytest, headrace as hr
        >>> torch = pytest.importorskip("torch")
        >>> batches = hr.range(5).to_torch(batch_size=2)
        >>> len(batches), [batch["id"].tolist() for batch in torch.utils.data.DataLoader(batches, batch_size=None)]
        (3, [[0, 1], [2, 3], [4]])
        """
        from headrace.interop import iterable_dataset

        return iterable_dataset(
            self.iter_torch_batches(
                batch_size=batch_size,
                dtypes=dtypes,
                device=device,
                collate_fn=collate_fn,
                drop_last=drop_last,
                pin_memory=pin_memory,
                local_shuffle_buffer_size=local_shuffle_buffer_size,
                local_shuffle_seed=local_shuffle_seed,
            )
        )

    @known_arguments(also=ray_arguments.ITERATE)
    def iter_tf_batches(
        self,
        *,
        batch_size: int | None = 256,
        dtypes: Any = None,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> RepeatableIterable[dict[str, Any]]:
        """Return the output in order, in batches of TensorFlow tensors of shape (n,) or (n, k…).

        Each ``for`` over it runs the plan, as with ``iter_batches``. ``batch_size`` (rows), ``drop_last``,
        ``local_shuffle_buffer_size`` (rows) and ``local_shuffle_seed`` as there; ``dtypes`` is a
        ``tf.DType`` for all columns, or a dict of them. Raises ``ArgumentError`` for a column that
        cannot become a tensor, ``MissingLibrary`` if TensorFlow is not installed; and what a run raises.

        >>> import headrace as hr
        >>> for batch in hr.range(3).iter_tf_batches(batch_size=2):  # doctest: +SKIP
        ...     print(batch["id"])
        tf.Tensor([0 1], shape=(2,), dtype=int64)
        tf.Tensor([2], shape=(1,), dtype=int64)
        """
        from headrace.core.door import library
        from headrace.interop import tf_batches

        size, tf = given_batch_size(batch_size), library("iter_tf_batches", "tensorflow", "keras")
        shuffle = LocalShuffle.given(local_shuffle_buffer_size, local_shuffle_seed, size)
        return RepeatableIterable(
            lambda: tf_batches(tf, self._iterate(size, "tensors", drop_last, shuffle), dtypes),
            lambda: self._known_batches(size, drop_last),
        )

    @known_arguments(also=ray_arguments.TO_TF)
    def to_tf(
        self,
        feature_columns: str | Sequence[str],
        label_columns: str | Sequence[str],
        *,
        additional_columns: str | Sequence[str] | None = None,
        batch_size: int = 1,
        drop_last: bool = False,
        local_shuffle_buffer_size: int | None = None,
        local_shuffle_seed: int | None = None,
    ) -> Any:
        """Return a ``tf.data.Dataset`` of batches, for ``model.predict`` and ``model.fit``; each pass runs the plan.

        Parameters
        ----------
        feature_columns, label_columns, additional_columns
            A name: that column's tensor, of shape (n,) or (n, k…). A list: a dict of tensors by name. An element is
            (features, labels), or (features, labels, additional).
        batch_size, drop_last, local_shuffle_buffer_size, local_shuffle_seed
            As in ``iter_batches``.

        Raises
        ------
        UnknownColumn
            There is no such column. ``ArgumentError``: it cannot become a tensor. ``MissingLibrary``: TensorFlow is
            not installed.

        Examples
        --------
        >>> import headrace as hr
        >>> pairs = hr.from_items([{"x": 1.0, "y": 0}, {"x": 2.0, "y": 1}])
        >>> list(pairs.to_tf("x", "y", batch_size=2).as_numpy_iterator())  # doctest: +SKIP
        [(array([1., 2.]), array([0, 1]))]
        """
        from headrace.interop import tf_dataset

        size = given_batch_size(batch_size)
        shuffle = LocalShuffle.given(local_shuffle_buffer_size, local_shuffle_seed, size)
        return tf_dataset(
            lambda: self._iterate(size, "tensors", drop_last, shuffle),
            self._schema(),
            feature_columns,
            label_columns,
            additional_columns,
        )

    @known_arguments
    def materialize(self) -> Self:
        """Run the plan, and return a dataset of its rows, which are in this process's memory from now on.

        What is done with it again does not run the functions before again. Raises what a run raises.

        >>> import headrace as hr
        >>> data = hr.range(3).filter(expr="id > 0").materialize()
        >>> data.count(), data.take_all()
        (2, [{'id': 1}, {'id': 2}])
        """
        from headrace.sources.memory import MemorySource

        self._check_unrequired("materialize")
        source = MemorySource(self._marked_table("materialize"), "materialize")
        made = type(self)(Plan(source), self._options)
        made._last_report = self._last_report
        return made

    @known_arguments
    def to_arrow(self) -> pa.Table:
        """Return the whole output as an Arrow table. Raises what a run raises, ``ArgumentError`` for Python objects.

        >>> import headrace as hr
        >>> hr.range(2).to_arrow().to_pydict()
        {'id': [0, 1]}
        """
        from headrace.core.arrow.objects import refuse_objects

        table = self._table("to_arrow")
        refuse_objects(table, ArgumentError)
        return table

    @known_arguments
    def to_pandas(self, limit: int | None = None) -> pd.DataFrame:
        """Return the whole output as a DataFrame.

        Raises ``ArgumentError`` if it has more than ``limit`` rows, ``MissingLibrary`` if pandas is not installed;
        and what a run raises.

        >>> import pytest, headrace as hr
        >>> _ = pytest.importorskip("pandas")
        >>> hr.range(2).to_pandas(limit=10).shape
        (2, 1)
        """
        from headrace.core.door import library

        library("to_pandas", "pandas")
        from headrace.core.arrow.batch_formats import to_frame

        return to_frame(self._table("to_pandas", limit))

    @known_arguments
    def to_polars(self) -> Any:
        """Return the whole output as a Polars DataFrame; numbers and times are not copied.

        Tensors of shape (k…) become Arrays of that shape. Raises ``MissingLibrary`` if Polars is not installed; and
        what a run raises.

        >>> import pytest, headrace as hr
        >>> _ = pytest.importorskip("polars")
        >>> hr.range(2).to_polars()["id"].to_list()
        [0, 1]
        """
        from headrace.interop import to_polars

        return to_polars(self._table("to_polars"))

    @known_arguments
    def to_daft(self) -> Any:
        """Return the whole output as a Daft DataFrame.

        Tensors of shape (k…) become fixed-size lists. Raises ``MissingLibrary`` if Daft is not installed; and what a
        run raises.

        >>> import pytest, headrace as hr
        >>> _ = pytest.importorskip("daft")
        >>> hr.range(2).to_daft().to_pydict()
        {'id': [0, 1]}
        """
        from headrace.interop import to_daft

        return to_daft(self._table("to_daft"))

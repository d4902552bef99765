"""Verbs that write arrays, and samples for training: ``.npy`` and ``.npz`` files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.core.arguments import known_arguments
from headrace.core.ports import Sink
from headrace.dataset.writes import WriteVerbs
from headrace.plan import ray_unsupported
from headrace.plan.parameters import given_folder, given_names
from headrace.plan.steps.columns import SelectColumns

if TYPE_CHECKING:
    import os

    import pyarrow as pa

    from headrace.core.work import Durability
    from headrace.options import Mode, OnChange
    from headrace.result import Result


class SampleWriteVerbs(WriteVerbs):
    """Verbs that write all rows in formats of their own."""

    __slots__ = ()

    @known_arguments(also=ray_unsupported.WRITE)
    def write_numpy(
        self,
        path: str | os.PathLike[str],
        *,
        column: str | None = None,
        schema: pa.Schema | None = None,
        mode: Mode | None = None,
        on_change: OnChange | None = None,
        durability: Durability | None = None,
    ) -> Result:
        """Run the plan and write its rows to the folder ``path`` as arrays that ``numpy.load`` reads.

        Numbers, booleans, and dates and times without a zone keep their dtypes, tensors of shape (k…) their shapes:
        n rows of them are an array (n, k…). Texts become arrays of ``<U…``. A null is NaN among fractions and NaT
        among times.

        Parameters
        ----------
        path, schema, mode, on_change, durability
            As in ``write_parquet``.
        column
            The column to write: each file is then a ``.npy`` of that one array, as in Ray Data. None: each file is a
            ``.npz`` with an array for each column.

        Raises
        ------
        SinkError
            A column has no numpy dtype, such as lists of different lengths or decimals; or holds a null among
            integers, booleans or texts. All else as in ``write_parquet``.

        Examples
        --------
        >>> import tempfile, headrace as hr
        >>> folder = tempfile.mkdtemp()
        >>> data = hr.range_tensor(3, shape=(2, 2)).with_options(engine="inline", progress=False)
        >>> data.write_numpy(f"{folder}/out", column="data").rows
        3
        >>> hr.read_numpy(f"{folder}/out").take_batch()["data"].shape
        (3, 2, 2)
        """

        def sink() -> Sink:
            from headrace.sinks.numpy import NumpySink

            return NumpySink(given_folder(path), single=column is not None)

        if column is None:
            return self._write(sink, schema, mode, on_change, durability)
        (name,) = given_names("write_numpy", [column])
        chosen = self.with_step(SelectColumns((name,)))
        result = chosen._write(sink, schema, mode, on_change, durability)
        self._note(result.summary)
        return result

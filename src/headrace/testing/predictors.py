"""What every predictor promises, as tests. A subclass gives the predictor, a batch, and what should come out."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import cloudpickle
import numpy as np
import pyarrow as pa
import pytest

from headrace.core.arrow.batch import one_array
from headrace.core.arrow.batch_formats import to_numpy
from headrace.core.arrow.values import from_columns
from headrace.core.door import completed
from headrace.core.model_ports import PredictorParts
from headrace.dataset.dataset import Dataset
from headrace.errors import BadInput
from headrace.plan.fingerprint import fingerprint
from headrace.sources.memory import MemorySource
from headrace.testing.steps import check, same

Arrays = dict[str, np.ndarray[Any, Any]]
_ONLY = "the result"


class PredictorContract:
    """Subclass it, override ``make``, ``batch`` and ``expected``, and pytest runs every promise.

    ``self.folder`` is an empty folder for the test's files, as a ``pathlib.Path``.
    """

    tolerance: float = 0.0
    """How far a result may be from ``expected``, absolutely; 0.0 means identical, dtype included."""

    batching_tolerance: float | None = None
    """How far results may move with the rows they are batched with; None means ``tolerance``."""

    submits: bool = False
    """Whether it has ``submit`` and ``collect``; ``SubmittingPredictorContract`` has what these promise."""

    def make(self) -> Any:
        """Return an unloaded predictor; another one, of the same model, at every call."""
        raise NotImplementedError

    def batch(self) -> Any:
        """Return a batch of at least 8 rows in the predictor's ``batch_format``."""
        raise NotImplementedError

    def expected(self) -> Any:
        """Return what the library itself gives for ``batch()``: an array, or a dict of arrays."""
        raise NotImplementedError

    def bad_batches(self) -> Iterable[tuple[Any, str]]:
        """Yield batches that the model cannot take, each with some words that the error should have."""
        return ()

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path: Any) -> None:
        self.folder = tmp_path

    @pytest.fixture
    def predictor(self) -> Iterator[Any]:
        """Load one, as the in-process engine does, and close it when the test is done."""
        predictor = self.make()
        predictor.load()
        yield predictor
        predictor.close()

    def test_there_is_something_to_test(self, predictor: Any) -> None:
        check(row_count(self.batch()) >= 8, "batch() must return eight rows or more")
        same(
            _kind(self.batch()),
            predictor.batch_format,
            "the kind of batch(), by the predictor's batch_format",
        )

    def test_predicts_what_the_library_predicts(self, predictor: Any) -> None:
        self._same(predictor.predict(sealed(self.batch())), self.expected())

    def test_there_is_one_result_per_row(self, predictor: Any) -> None:
        batch = sealed(self.batch())
        lengths = {len(array) for array in _columns(predictor.predict(batch)).values()}
        same(lengths, {row_count(batch)}, "the number of results of a batch")

    def test_predicts_the_same_again(self, predictor: Any) -> None:
        first, second = (predictor.predict(sealed(self.batch())) for _ in range(2))
        self._same(first, second)

    def test_a_copy_that_travelled_predicts_the_same(self) -> None:
        data = cloudpickle.dumps(self.make(), protocol=5)
        worker = cloudpickle.loads(data)
        worker.load()
        self._same(worker.predict(sealed(self.batch())), self.expected())
        worker.close()

    def test_what_was_loaded_does_not_travel(self) -> None:
        predictor = self.make()
        before = len(cloudpickle.dumps(predictor, protocol=5))
        predictor.load()
        predictor.predict(sealed(self.batch()))
        data = cloudpickle.dumps(predictor, protocol=5)
        grown = len(data) - before
        check(
            grown < 1024, f"pickled after load(), it is {grown:,} bytes bigger: what was loaded travels, too"
        )
        predictor.close()
        worker = cloudpickle.loads(data)
        worker.load()
        self._same(worker.predict(sealed(self.batch())), self.expected())
        worker.close()

    def test_close_is_not_the_end(self) -> None:
        predictor = self.make()
        for _ in range(2):
            predictor.load()
            self._same(predictor.predict(sealed(self.batch())), self.expected())
            predictor.close()

    @pytest.mark.parametrize("rows", [3, 5])
    def test_slices_give_what_the_whole_gives(self, predictor: Any, rows: int) -> None:
        batch = self.batch()
        parts = [
            _columns(predictor.predict(sealed(cut(batch, start, start + rows))))
            for start in range(0, row_count(batch), rows)
        ]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        self._same(joined, _columns(predictor.predict(sealed(batch))), self._when_batched())

    def test_a_single_row_is_a_batch(self, predictor: Any) -> None:
        first = {name: array[:1] for name, array in _columns(self.expected()).items()}
        made = _columns(predictor.predict(sealed(cut(self.batch(), 0, 1))))
        self._same(made, first, self._when_batched())

    def test_the_batch_is_left_as_it_was(self, predictor: Any) -> None:
        batch = sealed(self.batch())
        before = copy.deepcopy(batch)
        predictor.predict(batch)
        check(equal(batch, before), "predict() has written to the batch that it was given")

    def test_results_outlive_the_next_batch(self, predictor: Any) -> None:
        batch = self.batch()
        kept = predictor.predict(sealed(cut(batch, 0, 4)))
        before = copy.deepcopy(kept)
        predictor.predict(sealed(cut(batch, 4, 8)))
        self._same(kept, before, 0.0)

    def test_bad_batches_are_refused_and_not_fatal(self, predictor: Any) -> None:
        for bad, words in self.bad_batches():
            with pytest.raises(BadInput) as refused:
                predictor.predict(sealed(bad))
            check(words in str(refused.value), f"the error must have {words!r} in it: {refused.value}")
        self._same(predictor.predict(sealed(self.batch())), self.expected())

    def test_what_submits_is_tested_for_it(self) -> None:
        for name in ("submit", "collect"):
            there = callable(getattr(self.make(), name, None))
            same(there, self.submits, f"whether it has {name}(), which SubmittingPredictorContract is for")

    def test_has_a_label_and_says_where_weights_are(self) -> None:
        predictor = self.make()
        for words in (predictor.label, predictor.weights()):
            named = isinstance(words, str) and words.strip()
            check(named, f"label and weights() are texts that are not empty, not {words!r}")

    def test_identity_is_that_of_the_model(self) -> None:
        one, other = (fingerprint(self.make().identity()) for _ in range(2))
        same(other, one, "the identity of another predictor of the same model")

    def test_identity_travels(self) -> None:
        predictor = self.make()
        worker = cloudpickle.loads(cloudpickle.dumps(predictor, protocol=5))
        same(
            fingerprint(worker.identity()), fingerprint(predictor.identity()), "the identity of a pickled one"
        )

    def test_use_leaves_the_model_as_it_was(self) -> None:
        predictor = self.make()
        before = fingerprint(predictor.identity())
        predictor.load()
        predictor.predict(sealed(self.batch()))
        predictor.close()
        same(fingerprint(predictor.identity()), before, "the identity after use")

    def test_works_as_a_step_of_a_dataset(self) -> None:
        self._works_as_a_step()

    def _works_as_a_step(self, **how: Any) -> None:
        batch = self.batch()
        columns = batch if isinstance(batch, Mapping) else {name: batch[name] for name in _names(batch)}
        given = pa.Table.from_batches([from_columns(columns)])
        predicted = (
            Dataset.from_source(MemorySource(given, "from_arrow"))
            .with_options(engine="inline")
            .predict(self.make(), **how)
        )
        made = predicted.to_arrow().combine_chunks()
        same(made.select(given.column_names), given, "the columns that go past the step")
        new = [name for name in made.column_names if name not in given.column_names]
        wanted = _columns(self.expected())
        same(new, ["prediction"] if list(wanted) == [_ONLY] else list(wanted), "the new columns")
        for name, array in zip(new, wanted.values(), strict=True):
            got = to_numpy(one_array(made.column(name)))
            array = array.reshape(-1) if array.shape[1:] == (1,) else array
            if array.dtype.kind in "biufc":
                np.testing.assert_allclose(got, array, rtol=0, atol=max(self._when_batched(), 1e-12))
            else:
                same(made.column(name).to_pylist(), _listed(np.asarray(array, object)), f"column {name!r}")

    def _when_batched(self) -> float:
        return self.tolerance if self.batching_tolerance is None else self.batching_tolerance

    def _same(self, made: Any, wanted: Any, tolerance: float | None = None) -> None:
        close = self.tolerance if tolerance is None else tolerance
        left, right = _columns(made), _columns(wanted)
        same(list(left), list(right), "the names of the results")
        for name, array in left.items():
            same(array.shape, right[name].shape, f"the shape of {name!r}")
            if close == 0.0 or array.dtype.kind not in "fc":
                same(array.dtype, right[name].dtype, f"the dtype of {name!r}")
                if _listed(array) != _listed(right[name]):
                    raise AssertionError(
                        f"the values of {name!r}: expected {right[name]}, and they are {array}"
                    )
            else:
                np.testing.assert_allclose(array, right[name], rtol=0, atol=close, err_msg=name)


def _columns(result: Any) -> Arrays:
    """Name the arrays of a result; a single one has no name."""
    if _kind(result) == "pandas":
        return {str(name): result[name].to_numpy() for name in result.columns}
    if not isinstance(result, Mapping):
        return {_ONLY: np.asarray(result)}
    return {name: np.asarray(array) for name, array in result.items()}


def _listed(array: np.ndarray[Any, Any]) -> Any:
    """Return what compares by bits, so that NaN is itself; objects as lists, whatever they hold."""
    if array.dtype.kind != "O":
        return array.tobytes()
    return [each.tolist() if isinstance(each, np.ndarray) else each for each in array.tolist()]


def _kind(batch: Any) -> str:
    if isinstance(batch, Mapping):
        return "numpy"
    return "pandas" if hasattr(batch, "iloc") else "pyarrow"


def row_count(batch: Any) -> int:
    """Return how many rows a batch of whatever format has."""
    return len(next(iter(batch.values()))) if isinstance(batch, Mapping) else len(batch)


def cut(batch: Any, start: int, stop: int) -> Any:
    """Return some of its rows."""
    if isinstance(batch, Mapping):
        return {name: array[start:stop] for name, array in batch.items()}
    return batch.iloc[start:stop] if hasattr(batch, "iloc") else batch.slice(start, stop - start)


def _names(batch: Any) -> list[str]:
    return list(batch.columns) if hasattr(batch, "iloc") else list(batch.column_names)


def sealed(batch: Any) -> Any:
    """Make a batch's arrays read-only, as a worker does; copies, so the test's own stay writable."""
    if not isinstance(batch, Mapping):
        return batch
    sealed = {name: np.array(array) for name, array in batch.items()}
    for array in sealed.values():
        array.flags.writeable = False
    return sealed


def equal(left: Any, right: Any) -> bool:
    """Say whether two batches are the same, bit by bit."""
    if not isinstance(left, Mapping):
        return bool(left.equals(right))
    return list(left) == list(right) and all(
        left[name].dtype == right[name].dtype and _listed(left[name]) == _listed(right[name]) for name in left
    )


# ------------------------------------------------------------ that compute by themselves


class SubmittingPredictorContract(PredictorContract):
    """The contract of predictors that have ``submit`` and ``collect``: all of ``PredictorContract``, and these."""

    submits = True

    def test_several_in_flight_come_out_as_predict_gives_them(self, predictor: Any) -> None:
        number = completed(predictor, PredictorParts).in_flight
        check(number >= 1, f"in_flight is 1 or more, not {number!r}")
        parts = self._parts()
        before = copy.deepcopy(parts)
        wanted = [copy.deepcopy(predictor.predict(part)) for part in parts]
        handles = [predictor.submit(part) for part in parts]
        made = [predictor.collect(handle) for handle in handles]
        unchanged = all(equal(part, was) for part, was in zip(parts, before, strict=True))
        check(unchanged, "it has written to a batch that it was given")
        for got, want in zip(made, wanted, strict=True):  # all are collected: results outlive one another
            self._same(got, want)

    def test_a_handle_stands_for_its_batch_whenever_it_is_collected(self, predictor: Any) -> None:
        parts = self._parts()
        wanted = [copy.deepcopy(predictor.predict(part)) for part in parts]
        handles = [predictor.submit(part) for part in parts]
        self._same(predictor.predict(parts[0]), wanted[0])
        for handle, want in zip(reversed(handles), reversed(wanted), strict=True):
            self._same(predictor.collect(handle), want)

    def test_a_handle_may_be_forgotten(self, predictor: Any) -> None:
        for part in self._parts():
            predictor.submit(part)
        batch = sealed(self.batch())
        self._same(predictor.collect(predictor.submit(batch)), self.expected())

    def test_bad_batches_spoil_no_other_in_flight(self, predictor: Any) -> None:
        batch = sealed(self.batch())
        for bad, words in self.bad_batches():
            before = predictor.submit(batch)
            refused = _refused(predictor, sealed(bad), lambda: predictor.submit(batch))
            check(words in str(refused), f"the error of a bad batch must have {words!r} in it: {refused}")
            self._same(predictor.collect(before), self.expected())
        self._same(predictor.collect(predictor.submit(batch)), self.expected())

    def test_close_waits_for_nobody_to_collect(self, predictor: Any) -> None:
        for _ in range(2):
            for part in self._parts():
                predictor.submit(part)
            predictor.close()
            predictor.load()
        self._same(predictor.predict(sealed(self.batch())), self.expected())

    def test_works_as_a_step_with_several_in_flight(self, predictor: Any) -> None:
        self._works_as_a_step(batch_size=2, max_in_flight=3)

    def _parts(self) -> list[Any]:
        """Cut the batch into four of different lengths."""
        batch = self.batch()
        cuts = [0, 1, 3, 6, row_count(batch)]
        return [sealed(cut(batch, *ends)) for ends in itertools.pairwise(cuts)]


def _refused(predictor: Any, bad: Any, meanwhile: Callable[[], Any]) -> BadInput:
    """Return what a bad batch raises when it is submitted, or collected after ``meanwhile``."""
    with pytest.raises(BadInput) as refused:
        handle = predictor.submit(bad)
        meanwhile()
        predictor.collect(handle)
    return refused.value

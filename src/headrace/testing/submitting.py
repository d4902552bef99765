"""What predictors promise that compute by themselves, as tests."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from headrace.core.ports import PredictorParts, completed
from headrace.errors import BadInput
from headrace.testing.expect import check
from headrace.testing.predictors import PredictorContract, cut, equal, row_count, sealed


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

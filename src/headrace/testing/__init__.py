"""For tests of your own sources, sinks, verbs and engines: contract suites, fakes, and faults on demand.

A contract is a class of pytest tests; subclass it, override ``make``, and pytest runs every promise of the
port. Only the contracts need pytest, and they are imported when first asked for.

>>> from headrace.testing import FakeClock
>>> clock = FakeClock()
>>> clock.advance(2.5)
>>> clock()
2.5
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.testing.fakes import FakeClock, FakeEngine, FakePool, failpoints

if TYPE_CHECKING:
    from headrace.testing.engines import EngineContract
    from headrace.testing.llm_server import FakeLLMServer
    from headrace.testing.places import PlaceContract
    from headrace.testing.predictors import PredictorContract, SubmittingPredictorContract
    from headrace.testing.sinks import FormatContract, TargetContract
    from headrace.testing.sources import SourceContract
    from headrace.testing.steps import AccumulatorContract, StepContract

__all__ = [
    "AccumulatorContract",
    "EngineContract",
    "FakeClock",
    "FakeEngine",
    "FakeLLMServer",
    "FakePool",
    "FormatContract",
    "PlaceContract",
    "PredictorContract",
    "SourceContract",
    "StepContract",
    "SubmittingPredictorContract",
    "TargetContract",
    "failpoints",
]

_HOMES = {
    "AccumulatorContract": "steps",
    "EngineContract": "engines",
    "FakeLLMServer": "llm_server",
    "FormatContract": "sinks",
    "PlaceContract": "places",
    "PredictorContract": "predictors",
    "SourceContract": "sources",
    "StepContract": "steps",
    "SubmittingPredictorContract": "predictors",
    "TargetContract": "sinks",
}


def __getattr__(name: str) -> Any:
    """Import a contract, and with it pytest, when it is first used."""
    import importlib

    if name not in _HOMES:
        raise AttributeError(f"module 'headrace.testing' has no attribute {name!r}")
    return getattr(importlib.import_module(f"headrace.testing.{_HOMES[name]}"), name)

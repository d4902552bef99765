"""Every engine keeps the promises of the port; so does the fake one."""

from __future__ import annotations

from headrace.core.engine_ports import Engine
from headrace.engines.inline import InlineEngine
from headrace.engines.local.pool import LocalEngine
from headrace.testing import EngineContract, FakeEngine


class TestLocal(EngineContract):
    def make(self) -> Engine:
        return LocalEngine()


class TestLocalWithWarmWorkers(EngineContract):
    def make(self) -> Engine:
        return LocalEngine(warm=2, threads=3)


OF_POOLS = {
    "test_calls_are_answered",
    "test_a_worker_knows_who_it_is",
    "test_closing_closes_what_is_hosted",
    "test_pools_have_the_size_asked_for",
    "test_a_lost_worker_is_an_answer_and_is_replaced",
    "test_what_cannot_be_made_fails_every_call",
}
"""What may depend on whether a worker was started before it was asked for."""
for name in {name for name in dir(EngineContract) if name.startswith("test_")} - OF_POOLS:
    setattr(TestLocalWithWarmWorkers, name, None)


class TestInline(EngineContract):
    processes = False
    sizes = False
    blocks = False

    def make(self) -> Engine:
        return InlineEngine()


class TestFake(EngineContract):
    processes = False

    def make(self) -> Engine:
        return FakeEngine()

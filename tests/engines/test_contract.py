"""Every engine keeps the promises of the port; so does the fake one."""

from __future__ import annotations

from headrace.core.engine_ports import Engine
from headrace.engines.inline import InlineEngine
from headrace.engines.local.engine import LocalEngine
from headrace.testing import EngineContract, FakeEngine


class TestLocal(EngineContract):
    def make(self) -> Engine:
        return LocalEngine()


class TestLocalWithWarmWorkers(EngineContract):
    def make(self) -> Engine:
        return LocalEngine(warm=2, threads=3)


class TestInline(EngineContract):
    processes = False
    sizes = False

    def make(self) -> Engine:
        return InlineEngine()


class TestFake(EngineContract):
    processes = False

    def make(self) -> Engine:
        return FakeEngine()

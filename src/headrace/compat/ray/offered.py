"""Names of Ray that are not offered here, and the errors that say what to do instead."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar

from headrace.core.arguments import Unsupported
from headrace.errors import NotOffered, nearest

PAGE = "docs/coming-from-ray.md"

_ONE_MACHINE = "there is one machine, and a call asks for what it needs by num_cpus=, num_gpus= and memory="
_OFFLINE = "Headrace predicts offline, and does nothing else of what Ray does"
_NO_INSIGHT = "there is no cluster to look at; ray.cluster_resources() has what there is"

REASONS = {
    "address": "all runs on this machine, without a cluster to join",
    "experimental": _OFFLINE,
    **dict.fromkeys(("list_objects", "list_tasks", "summarize_tasks"), "calls that are over are not kept"),
    "nodes": _NO_INSIGHT,
    "placement_group": _ONE_MACHINE,
    "queue": "the program directs actors and calls: submit what is to be done from there",
    "rllib": _OFFLINE,
    "serve": _OFFLINE,
    "timeline": "there is no trace of calls",
    "tune": _OFFLINE,
    "workflow": "what is to go on after a kill is a Dataset that is written",
}

_WITHOUT_EFFECT = (
    "accelerator_type", "allow_out_of_order_execution", "enable_task_events", "max_calls", "max_pending_calls",
    "object_store_memory", "placement_group", "placement_group_bundle_index",
    "placement_group_capture_child_tasks", "_generator_backpressure_num_objects", "_labels", "_metadata",
)  # fmt: skip
OPTIONS = {  # of ray.remote, and where they ask for nothing
    **dict.fromkeys(_WITHOUT_EFFECT, Unsupported("", None)),
    "concurrency_groups": Unsupported("max_concurrency= says how many methods run at a time", (None, {})),
    "concurrency_group": Unsupported("max_concurrency= says how many methods run at a time"),
    "label_selector": Unsupported(_ONE_MACHINE),
    "get_if_exists": Unsupported("it is for actors", (None, False)),
    "lifetime": Unsupported("it is for actors", (None, "non_detached")),
    "max_concurrency": Unsupported("it is for actors", (None, 1)),
    "namespace": Unsupported("it is for actors"),
    "retry_exceptions": Unsupported("it is for tasks, and for @ray.method(retry_exceptions=…)", (None, False)),
}  # fmt: skip


def not_offered(name: str, known: Sequence[str] = (), why: str = "") -> NotOffered:
    """Return the error for a name of Ray's that is not there."""
    last = name.rpartition(".")[2]
    why = why or REASONS.get(last, "")
    hint = "" if why else nearest(last, known)
    because = f": {why.rstrip('.')}" if why else ""
    return NotOffered(f"{name} is not offered here{because}.{hint} {PAGE} says what to do instead.")


def check_options(of: str, options: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise ``NotOffered`` for an option that is not there, unless it asks for nothing."""
    for name, value in options.items():
        if name not in known and not (name in OPTIONS and OPTIONS[name].takes(value)):
            raise not_offered(f"{of}({name}=…)", known, OPTIONS[name].reason if name in OPTIONS else "")


def missing(module: str, name: str, known: Sequence[str], why: str = "") -> AttributeError:
    """Return the error for a module's ``__getattr__``; Python makes its own ``ImportError`` of it for ``import``."""
    return AttributeError(name) if name.startswith("__") else not_offered(f"{module}.{name}", known, why)


class Kept:
    """Keeps what it was made with, by name: arguments by place, and defaults, are those above a class's body.

    >>> class Point(Kept, x=0, y=0): ...
    >>> vars(Point(1))
    {'x': 1, 'y': 0}
    """

    _settings: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls, **settings: Any) -> None:
        super().__init_subclass__()
        cls._settings = {**cls._settings, **settings}

    def __init__(self, *args: Any, **given: Any) -> None:
        self.__dict__.update({**self._settings, **dict(zip(self._settings, args, strict=False)), **given})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any: ...


class _Named(ModuleType):
    """A module by Ray's name, whose names stand in a module of ours, which is loaded when one is asked for."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        own = importlib.import_module(self.__dict__["room"])
        if not hasattr(own, name):
            known = [each for each in vars(own) if not each.startswith("_")]
            raise missing(self.__name__.replace("headrace.compat.", ""), name, known)
        return getattr(own, name)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


def named_modules(package: str, rooms: Mapping[str, str]) -> None:
    """Let modules of Ray be imported from ``package``: for each of ours, the names that its parts have in Ray."""
    for room, names in rooms.items():
        for name in names.split():
            made = _Named(f"{package}.{name}")
            made.__dict__["room"] = f"{package}.{room}".rstrip(".")
            sys.modules[made.__name__] = made
    for module in (package, *(name for name, made in [*sys.modules.items()] if isinstance(made, _Named))):
        vars(sys.modules[module]).update(parts_of(module))


def parts_of(module: str) -> dict[str, ModuleType]:
    """Return the named modules right below a module, by their last names."""
    below = f"{module}."
    named = {
        name.removeprefix(below): made for name, made in [*sys.modules.items()] if name.startswith(below)
    }
    return {name: made for name, made in named.items() if isinstance(made, _Named) and "." not in name}


_HOMES = {"BatchPredictor": "headrace.compat.air.batch_predictor"}


def names_of_headrace(
    module: str,
    names: Sequence[str] | Mapping[str, str],
    adapt: Callable[[Any], Any] = lambda found: found,
) -> Callable[[str], Any]:
    """Return a module's ``__getattr__`` that looks names up in ``headrace``, and passes what it finds to ``adapt``.

    A mapping has the names by Ray's. Names of Ray AIR are looked up in ``headrace.compat.air``.
    """
    known = tuple(names)

    def look_up(name: str) -> Any:
        if name in names:
            ours = names[name] if isinstance(names, Mapping) else name
            home = "headrace.compat.air.checkpoint" if ours.endswith("Checkpoint") else "headrace"
            return adapt(getattr(importlib.import_module(_HOMES.get(ours, home)), ours))
        reasons = importlib.import_module("headrace.plan.ray_unsupported").NO_FUNCTIONS
        raise missing(module, name, known, reasons.get(name, ""))

    return look_up

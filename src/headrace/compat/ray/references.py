"""Ray's one name for what ``put`` and what calls return."""

from __future__ import annotations

from abc import ABC

from headrace.tasks import CallFuture, Ref
from headrace.tasks.streams import ResultStream


class ObjectRef(ABC):  # noqa: B024 - only a name: nobody implements it
    """A reference to a value that is put, or to the result of a call."""


class ObjectRefGenerator(ABC):  # noqa: B024 - only a name, too
    """The references to what a generator yields."""


ObjectRefGenerator.register(ResultStream)
ObjectRef.register(Ref)
ObjectRef.register(CallFuture)

"""A warning about requests that may wait forever."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from headrace.core.warn import warn
from headrace.tasks.admission import Admission

WARN_AFTER = 5.0  # seconds after which a request for what only actors have is worth a warning


class BlockedRequests:
    """Warns, once, of a request that waits for what only actors have."""

    def __init__(self, admission: Admission, clock: Callable[[], float]) -> None:
        self._admission = admission
        self._clock = clock
        self._since: float | None = None
        self._warned = False

    def advance(self) -> float | None:
        """Warn if it is time to; return in how many seconds to ask again, if at all."""
        needs = None if self._warned else self._admission.blocked_by_actors()
        if needs is None:
            self._since = None
            return None
        now = self._clock()
        self._since = now if self._since is None else self._since
        if now - self._since < WARN_AFTER:
            return WARN_AFTER
        self._warned = True
        with contextlib.suppress(Warning):  # where warnings are errors, the dispatcher must go on
            warn(
                f"A call or actor that needs {needs} waits for what actors hold, and nothing else runs: drop the "
                "handles of actors that are not needed any more.",
            )
        return None

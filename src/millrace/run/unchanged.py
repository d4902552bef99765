"""Whether the files that an attempt read stayed as they were until it had read them."""

from __future__ import annotations

import msgspec

from millrace.core.ports import Source
from millrace.core.work import Split
from millrace.errors import InputChanged


class InputCheck:
    """Knows which split an attempt is reading. ``begin`` may be called from another thread than the rest."""

    def __init__(self, source: Source) -> None:
        # A source of somebody else's may be older than this method of the port.
        self._check_of_source = getattr(source, "check_unchanged", None)
        self._split: Split | None = None

    def begin(self, split: Split) -> None:
        """Check the split that was read before this one."""
        self.check()
        self._split = msgspec.structs.replace(split, low=0, high=-1)

    def check(self) -> None:
        """Raise ``InputChanged`` if a file that was read since ``begin`` is not what it was then."""
        if self._split is not None and self._check_of_source is not None:
            self._check_of_source(self._split)

    def reason(self, error: BaseException) -> BaseException:
        """Return why an attempt failed: a file that changes while it is read may fail in any way."""
        if isinstance(error, Exception):
            try:
                self.check()
            except InputChanged as changed:
                changed.__cause__ = error
                return changed
        return error

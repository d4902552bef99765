"""``python -m headrace``: the same as the program ``headrace``."""

from __future__ import annotations

import sys

from headrace.annex.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""``python -m millrace``: the same as the program ``millrace``."""

from __future__ import annotations

import sys

from millrace.cli import main

if __name__ == "__main__":
    sys.exit(main())

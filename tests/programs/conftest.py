"""The programs have no doctests, and importing some of them does their work."""

from pathlib import Path

collect_ignore = [
    each.name for each in Path(__file__).parent.glob("*.py") if not each.name.startswith("test_")
]

"""Two sets of rows side by side: what is the same, what changed, and by how much."""

from headrace.annex.compare.comparing import Comparison, compare

__all__ = ["Comparison", "compare"]

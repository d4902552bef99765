"""Carrying a plan out: decisions, attempts, the journal and the one loop."""
